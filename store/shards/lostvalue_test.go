package shards

import (
	"crypto/rand"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/RoaringBitmap/roaring/v2/roaring64"
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// loseValue removes the newest large value of the table of row t from where PostgreSQL keeps it, as a
// damaged disk does.
func (b *bundle) loseValue(table, where string) {
	b.t.Helper()
	row := fmt.Sprintf("FROM %s t JOIN pg_class c ON c.oid = t.tableoid WHERE %s", table, where)
	b.exec(`SET allow_system_table_mods = on;
		DO $$ DECLARE large regclass; BEGIN
		  SELECT c.reltoastrelid INTO STRICT large ` + row + `;
		  UPDATE pg_class SET relkind = 'r' WHERE oid = large; -- nobody may change such a table
		  EXECUTE format('DELETE FROM %s WHERE chunk_id = (SELECT max(chunk_id) FROM %s)', large, large);
		  UPDATE pg_class SET relkind = 't' WHERE oid = large;
		END $$;
		RESET allow_system_table_mods`)
	var large string
	if err := b.db.Pool(b.d).QueryRow(b.t.Context(), "SELECT c.reltoastrelid::regclass::text "+row).Scan(&large); err != nil {
		b.t.Fatal(err)
	}
	b.exec("VACUUM " + large) // until then the value can be read
}

// incompressible makes a task have params that do not fit into its row.
func incompressible(s *task.Spec) {
	p := make([]byte, 9000)
	rand.Read(p) //nolint:errcheck // never fails
	s.ParamsWire = p
}

// TestARowOfWhichAValueIsLostStopsNoOtherClaim: PostgreSQL fails every statement that reads the params.
func TestARowOfWhichAValueIsLostStopsNoOtherClaim(t *testing.T) {
	for _, form := range []task.ClaimForm{task.RangeForm, task.CappedForm} {
		t.Run(form.String(), func(t *testing.T) {
			b := setup(t)
			b.add(b.spec(task.OneShot), b.spec(task.OneShot))
			bad := b.add(b.spec(task.OneShot, incompressible))[0]
			b.loseValue("task", fmt.Sprintf("t.id = %d", bad))
			if c := b.claim(form); len(c.Publications) != 2 {
				t.Errorf("claimed %s, want the two other tasks", deliveries(c.Publications))
			}
			if n, err := b.QuarantinedRows(t.Context(), b.d); err != nil || n != 1 {
				t.Errorf("%d rows are quarantined, %v", n, err)
			}
			if _, err := b.Get(t.Context(), b.tenant, bad); task.CodeOf(err) != task.DataLoss {
				t.Errorf("get: %v", err)
			}
			b.exec(`UPDATE task SET params = '' WHERE id = $1`, int64(bad))
			b.advance(quarantineFor)
			if c := b.claim(form); !slices.ContainsFunc(c.Publications, func(p task.Publication) bool { return p.Task == bad }) {
				t.Errorf("claimed %s, want the repaired task", deliveries(c.Publications))
			}
		})
	}
}

// TestAPackOfWhichAValueIsLostStopsNoOther: its tasks are told to be damaged, and all others are moved, listed
// and exported, before and after a compaction finds it.
func TestAPackOfWhichAValueIsLostStopsNoOther(t *testing.T) {
	for _, what := range []string{"params", "keys"} {
		for _, kind := range []task.CompactionKind{task.CompactLevel0, task.CompactPromote} {
			t.Run(what+" "+kind.String(), func(t *testing.T) { losePack(t, what, kind) })
		}
	}
}

func losePack(t *testing.T, what string, kind task.CompactionKind) {
	b := setup(t)
	own := b.chores()
	hour := pack.BucketOf(b.now.Add(5*time.Hour), pack.Hour)
	const packs, each, bad = 5, 100, 2
	var ids []task.ID
	for i := range packs {
		specs := make([]task.Spec, each)
		for j := range specs {
			specs[j] = b.spec(task.OneShot, func(s *task.Spec) {
				s.Begin = hour.At
				switch {
				case what == "keys":
					s.Kind = rand.Text() + rand.Text()
				case j == 0:
					incompressible(s)
				}
			})
		}
		ids = append(ids, b.add(specs...)...)
		if kind == task.CompactPromote {
			b.compact(own, task.CompactLevel0)
		}
		switch {
		case i != bad:
		case kind == task.CompactPromote:
			b.loseValue("far_pack", "t.id = (SELECT max(id) FROM far_pack)")
		default:
			b.loseValue("far_level0", "t.first = (SELECT max(first) FROM far_level0)")
		}
	}
	check := func() {
		t.Helper()
		for i := 0; i < len(ids); i += each {
			if _, err := b.Get(t.Context(), b.tenant, ids[i]); (i == bad*each) != (task.CodeOf(err) == task.DataLoss) {
				t.Errorf("a task of pack %d: %v", i/each, err)
			}
		}
		if _, err := b.Cancel(t.Context(), b.tenant, ids[bad*each]); task.CodeOf(err) != task.DataLoss {
			t.Errorf("cancel: %v", err)
		}
		if seen := b.listAll(task.ListQuery{Tenant: b.tenant, Limit: 100}, func() {}); len(seen) != (packs-1)*each {
			t.Errorf("%d tasks are listed", len(seen))
		}
		damaged := 0
		if seen := b.exportAll(task.Filter{}, 100, func(p *task.ExportPage) { damaged += p.DamagedPacks }); len(seen) != (packs-1)*each || damaged == 0 {
			t.Errorf("%d tasks are exported, and %d damaged packs told", len(seen), damaged)
		}
		if n, damaged := b.exportSnapshot(); n != (packs-1)*each || damaged == 0 {
			t.Errorf("%d tasks are exported in one snapshot, and %d damaged packs told", n, damaged)
		}
		if _, _, err := b.CountForecast(t.Context(), b.d); err != nil {
			t.Error(err)
		}
	}
	check()
	b.setClock(hour.At)
	if got := b.compact(own, kind); got.Near+got.Packed != (packs-1)*each || len(got.Damaged) != 1 {
		t.Fatalf("compaction = %+v", got)
	}
	check()
}

// exportSnapshot exports the bundle's database in one snapshot. It counts the tasks and the damaged packs.
func (b *bundle) exportSnapshot() (tasks, damaged int) {
	b.t.Helper()
	err := b.db.InSnapshot(b.t.Context(), b.d, func(tx pgx.Tx) error {
		e := &exporting{
			store: b.Store, q: &task.ExportQuery{Tenant: b.tenant}, at: task.ExportCursor{Database: b.d}, pageRows: 100, in: tx, seen: roaring64.New(),
			visit: func(p *task.ExportPage) error {
				tasks, damaged = tasks+len(p.Rows), damaged+p.DamagedPacks
				return nil
			},
		}
		return e.database(b.t.Context())
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return tasks, damaged
}

// TestAnOutboxRowOfWhichTheEntriesAreLostIsDerivedAgain: the next owner publishes the runs of that row and those
// of the rows before and after it.
func TestAnOutboxRowOfWhichTheEntriesAreLostIsDerivedAgain(t *testing.T) {
	b := setup(t)
	b.exec(`ALTER TABLE outbox ALTER entries SET STORAGE EXTERNAL`)
	var want []string
	for range 5 {
		b.add(slices.Repeat([]task.Spec{b.spec(task.OneShot), b.spec(task.NonBlocking)}, 200)...) // too many for the row itself
		want = append(want, deliveries(b.claim(task.RangeForm).Publications)...)
	}
	const lost = "t.id = (SELECT max(id) - 2 FROM outbox)"
	b.exec(`UPDATE outbox t SET entries = entries || '' WHERE ` + lost) // stored anew, so last
	b.loseValue("outbox", lost)
	b.acquire()
	batches := b.readPages()
	if got := distinct(batches); !contains(got, want) {
		t.Errorf("%d runs are published, want %d", len(got), len(want))
	}
	b.acknowledge(batches)
	if o, err := b.OutboxStats(t.Context(), b.d); err != nil || o.Rows != 0 || o.Quarantined != 1 {
		t.Errorf("stats %+v, %v", o, err)
	}
	b.acquire()
	if again := b.readPages(); len(again) > 0 {
		t.Errorf("after their publication the next owner reads %s", distinct(again))
	}
}

// readPages reads the outbox to its end.
func (b *bundle) readPages() (all []task.OutboxBatch) {
	b.t.Helper()
	for after, more := int64(0), true; more; {
		batches, next, err := b.Unpublished(b.t.Context(), b.d, b.owned, after, 1_000_000)
		if err != nil {
			b.t.Fatal(err)
		}
		all, after, more = append(all, batches...), next, next != 0
	}
	return all
}
