package shards

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// place is where a test puts a task.
type place int

const (
	inNear place = iota
	inLevel0
	inPack
)

func (p place) String() string { return [...]string{"near", "arrival", "pack"}[p] }

var everyPlace = []place{inNear, inLevel0, inPack}

// put moves rows of the near tier to a place, all into one pack, as an add or a
// compaction would leave them.
func (b *bundle) put(p place, level pack.Level, ids ...task.ID) {
	b.t.Helper()
	if p == inNear {
		return
	}
	slices.Sort(ids)
	all := b.rows()
	var rows []*task.Row
	for _, id := range ids {
		r := all[kernel.KeyOf(b.tenant, id, 0)]
		if r == nil {
			b.t.Fatalf("task %d is not in the near tier", id)
		}
		rows = append(rows, r)
	}
	b.exec(`DELETE FROM task WHERE id = ANY ($1)`, ids)
	packed, err := pack.Encode(rows, true)
	if err != nil {
		b.t.Fatal(err)
	}
	if p == inLevel0 && !b.inRange(packed.MinID, packed.MaxID) {
		b.exec(`INSERT INTO far_level0 (first, last, n, created_at, min_tenant, max_tenant, keys, params) VALUES ($1, $2, $3, now_ms(), $4, $5, $6, $7)`,
			kernel.NumberOf(packed.MinID), kernel.NumberOf(packed.MaxID), packed.N, packed.MinTenant, packed.MaxTenant, packed.Keys, packed.Params)
		return
	}
	b.exec(`INSERT INTO far_pack (bucket_at, level, n, min_tenant, max_tenant, min_id, max_id, keys, params) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		int64(pack.BucketOf(rows[0].DueAt, level).At), int16(level), packed.N, packed.MinTenant, packed.MaxTenant,
		int64(packed.MinID), int64(packed.MaxID), packed.Keys, packed.Params)
	for _, r := range rows {
		b.locate(r)
	}
}

// inRange reports whether a pack of level 0 may still cover the numbers of the ids from
// first to last. If it returns false, a second such pack is not allowed.
func (b *bundle) inRange(first, last task.ID) (yes bool) {
	b.t.Helper()
	err := b.db.Pool(b.d).QueryRow(b.t.Context(), `SELECT EXISTS (SELECT FROM far_level0 a WHERE a.first <= $2 AND a.last >= $1)`,
		kernel.NumberOf(first), kernel.NumberOf(last)).Scan(&yes)
	if err != nil {
		b.t.Fatal(err)
	}
	return yes
}

// locate enters a row's minute into the locator.
func (b *bundle) locate(r *task.Row) {
	b.t.Helper()
	number, minute := kernel.NumberOf(r.ID), pack.MinuteOf(r.DueAt)
	b.exec(`INSERT INTO far_locator (page, latest, minutes) VALUES ($1, $2, overlay(decode(repeat('00', 1024), 'hex') PLACING int4send($2) FROM $3))
		ON CONFLICT (page) DO UPDATE SET latest = greatest(far_locator.latest, excluded.latest),
			minutes = overlay(far_locator.minutes PLACING int4send($2) FROM $3)`,
		number/256, minute, int32(number%256*4+1))
}

// packs returns the names of all packs.
func (b *bundle) packs() []far.PackName {
	b.t.Helper()
	rows, err := b.db.Pool(b.d).Query(b.t.Context(), `SELECT -first FROM far_level0 UNION ALL SELECT id FROM far_pack ORDER BY 1`)
	if err != nil {
		b.t.Fatal(err)
	}
	var out []far.PackName
	for rows.Next() {
		var p far.PackName
		if err := rows.Scan(&p); err != nil {
			b.t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// unpack moves the living tasks of a pack into the near tier, as a compaction does. It
// returns an error if another transaction locks the pack for too long.
func (b *bundle) unpack(p far.PackName) error {
	ctx := context.Background()
	tx, err := b.db.Pool(b.d).Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	table, column, name := "far_pack", "id", int64(p)
	if p.Level0() {
		table, column, name = "far_level0", "first", -name
	}
	var params []byte
	if err := tx.QueryRow(ctx, `SELECT params FROM `+table+` WHERE `+column+` = $1 FOR UPDATE`, name).Scan(&params); err != nil {
		return err
	}
	packs, err := far.ReadPacks(ctx, tx, []int64{int64(p)})
	if err != nil {
		return err
	}
	rows, err := pack.Decode(packs[0].Keys, params)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if slices.Contains(packs[0].Void, int64(r.ID)) {
			continue
		}
		if _, err := far.RecallRow(ctx, tx, p, r); err != nil {
			return err
		}
	}
	for _, statement := range []string{`DELETE FROM far_tombstone WHERE pack = ` + fmt.Sprint(int64(p)), `DELETE FROM ` + table + ` WHERE ` + column + ` = ` + fmt.Sprint(name)} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

// farRows returns the packed rows of the bundle's tenant that are not void.
func (b *bundle) farRows() map[kernel.Key]*task.Row {
	b.t.Helper()
	out := map[kernel.Key]*task.Row{}
	for _, p := range b.packs() {
		packs, err := far.ReadPacks(b.t.Context(), b.db.Pool(b.d), []int64{int64(p)})
		if err != nil {
			b.t.Fatal(err)
		}
		for _, k := range packs {
			all, rows, err := k.Living()
			if err != nil {
				b.t.Fatal(err)
			}
			if gone, err := far.ReadParams(b.t.Context(), b.db.Pool(b.d), p, all, nil); gone || err != nil {
				b.t.Fatal(gone, err)
			}
			for _, r := range rows {
				if _, twice := out[kernel.RowKey(r)]; twice {
					b.t.Fatalf("task %d is packed twice", r.ID)
				}
				out[kernel.RowKey(r)] = r
			}
		}
	}
	return out
}

// inHours makes a spec begin n hours from now.
func (b *bundle) inHours(n int) func(*task.Spec) {
	return func(s *task.Spec) { s.Begin = b.now.Add(time.Duration(n) * time.Hour) }
}

func nearOnly(c *Config) { c.Horizon = far.HorizonOff }

// answersOf adds one task in a place and returns the answers of all calls about it.
func answersOf(t *testing.T, p place) []any {
	b := setup(t, nearOnly)
	ctx := t.Context()
	hourly := func(s *task.Spec) {
		s.Interval, s.Retention, s.ParamsWire, s.Begin = time.Hour, time.Hour, []byte{10, 6, 10, 1, 'a', 18, 1, 'b'}, b.now
	}
	one := b.add(b.spec(task.Blocking, hourly), b.spec(task.NonBlocking, hourly))
	for _, pub := range b.claim(task.RangeForm).Publications {
		b.start(7, attempt(pub.Task, 1, 1))
		b.report(success(pub.Task, 1, 1, 7))
	}
	b.add(b.spec(task.OneShot, b.inHours(3))) // a neighbour
	var out []any
	see := func(what string, x any, err error) {
		if err != nil {
			var e *task.Error
			if !errors.As(err, &e) {
				t.Fatalf("%s: %v", what, err)
			}
			x = e.Code
		}
		if s, ok := x.(*task.Snapshot); ok {
			c := *s
			c.ID, c.Tenant, c.Change = 0, 0, 0
			x = c
		}
		out = append(out, what, x)
	}
	move := func() {
		for _, id := range one {
			if r := b.rows()[kernel.KeyOf(b.tenant, id, 0)]; r != nil && r.State == task.Scheduled && !r.Paused {
				b.put(p, pack.Hour, id)
			}
		}
	}
	for _, id := range one {
		late := attempt(id, 1, 1)
		move()
		got, err := b.Get(ctx, b.tenant, id)
		see("get", got, err)
		got, err = b.Get(ctx, b.tenant+1, id)
		see("get of another tenant", got, err)
		got, err = b.Cancel(ctx, b.tenant+1, id)
		see("cancel of another tenant", got, err)
		see("late success", b.report(success(id, 1, 1, 7)), nil)
		see("late failure", b.report(failure(id, 1, 1, 7)), nil)
		see("early success", b.report(success(id, 2, 1, 7)), nil)
		see("late start", b.start(7, late), nil)
		see("late heartbeat", b.heartbeat(7, late), nil)
		see("late hand-back", b.handBack(7, late), nil)
		see("late success of another tenant", codes(b.doReports(ctx, b.d, []reported{{tenant: b.tenant + 1, Report: success(id, 1, 1, 7)}})), nil)
		if p != inNear && len(b.packs()) == 0 {
			t.Fatal("a call that changes nothing has recalled the task")
		}
		got, err = b.Resume(ctx, b.tenant, id) // is not paused
		see("resume", got, err)
		terms := got.Spec()
		update := func(e task.Edit) (*task.Snapshot, error) { return b.Update(ctx, b.tenant, id, e) }
		got, err = update(task.Edit{Spec: &terms})
		see("update that changes nothing", got, err)
		if p != inNear && len(b.packs()) == 0 {
			t.Fatal("an update that changes nothing has recalled the task")
		}
		terms.Kind, terms.Interval, terms.MaxCount = "edited", 2*time.Hour, 9
		terms.Tags = []string{"new"}
		got, err = update(task.Edit{Spec: &terms, If: 7})
		see("update of another version", got, err)
		got, err = update(task.Edit{Spec: &terms, If: 1})
		see("update", got, err)
		got, err = update(task.Edit{Spec: &terms, If: 1})
		see("the same update again", got, err)
		move() // an arrival's range is taken by now: into a pack
		terms.MaxCount = 1
		got, err = update(task.Edit{Spec: &terms})
		see("update to a count that is used up", got, err)
		move()
		seq, again, err := b.Trigger(ctx, b.tenant, id, "now")
		see("trigger", []any{seq, again}, err)
		seq, again, err = b.Trigger(ctx, b.tenant, id, "now")
		see("trigger again", []any{seq, again}, err)
		b.claim(task.RangeForm)
		see("start of the triggered run", codes(b.start(7, attempt(id, 2, 1))), nil)
		see("result of the triggered run", b.report(success(id, 2, 1, 7)), nil)
		got, err = b.Get(ctx, b.tenant, id)
		see("get after the triggered run", got, err)
		got, err = b.Pause(ctx, b.tenant, id)
		see("pause", got, err)
		got, err = b.Pause(ctx, b.tenant, id)
		see("pause again", got, err)
		got, err = b.Resume(ctx, b.tenant, id)
		see("resume after pause", got, err)
		got, err = b.Get(ctx, b.tenant, id)
		see("get after resume", got, err)
		move() // an arrival's range is taken by now: into a pack
		got, err = b.Cancel(ctx, b.tenant, id)
		see("cancel", got, err)
		got, err = b.Cancel(ctx, b.tenant, id)
		see("cancel again", got, err)
		got, err = b.Pause(ctx, b.tenant, id)
		see("pause after the end", got, err)
		see("success after the end", b.report(success(id, 1, 1, 7)), nil)
		got, err = b.Get(ctx, b.tenant, id)
		see("get after the end", got, err)
	}
	return out
}

func TestEveryCallAnswersTheSameWhereverTheTaskIs(t *testing.T) {
	want := answersOf(t, inNear)
	for _, p := range everyPlace[1:] {
		t.Run(p.String(), func(t *testing.T) {
			if diff := cmp.Diff(want, answersOf(t, p), cmpopts.EquateComparable()); diff != "" {
				t.Fatalf("near -, %s +\n%s", p, diff)
			}
		})
	}
}

func TestAddsBeyondTheHorizonArePackedAndFound(t *testing.T) {
	b := setup(t)
	var specs []task.Spec
	for i := range 30 {
		specs = append(specs, b.spec(task.OneShot, b.inHours(i), func(s *task.Spec) { s.ParamsWire = fmt.Appendf(nil, "p%d", i) }))
	}
	ids := b.add(specs...)
	if near := b.rows(); len(near) != 1 {
		t.Fatalf("%d of 1 due within the horizon are rows", len(near))
	}
	if packs := b.packs(); len(packs) != 1 {
		t.Fatalf("a group made %d packs", len(packs))
	}
	for i, id := range ids {
		got, err := b.Get(t.Context(), b.tenant, id)
		if err != nil || got.Begin != specs[i].Begin || string(got.Params) != fmt.Sprintf("p%d", i) || got.ID != id {
			t.Fatalf("task %d: %+v, %v", i, got, err)
		}
	}
	if _, err := b.Get(t.Context(), b.tenant, ids[29]+task.Shards); task.CodeOf(err) != task.NotFound {
		t.Fatal(err)
	}
}

func TestHorizonOffKeepsEverythingInRows(t *testing.T) {
	b := setup(t, nearOnly)
	b.add(b.spec(task.OneShot, b.inHours(1000)))
	if len(b.packs()) != 0 || len(b.rows()) != 1 {
		t.Fatal("the task is not a row")
	}
}

func TestARepeatedRequestForFarTasksStoresNothing(t *testing.T) {
	b := setup(t)
	req := task.AddRequest{Tenant: b.tenant, RequestID: b.requestID(), Specs: []task.Spec{b.spec(task.OneShot, b.inHours(1)), b.spec(task.OneShot)}}
	add := func() task.AddResult {
		a := &adding{req: req, home: placeOf(b.tenant, req.RequestID), key: req.RequestID}
		if err := b.dbs[b.d].doAdds(t.Context(), []*adding{a})[0]; err != nil {
			t.Fatal(err)
		}
		if a.repeated {
			if err := b.lookUp(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
		return a.result
	}
	first, second := add(), add()
	if !second.Replayed || !cmp.Equal(first.Items, second.Items) {
		t.Fatalf("first %+v, second %+v", first, second)
	}
	if len(b.packs()) != 1 || len(b.rows()) != 1 {
		t.Fatalf("%d packs and %d rows", len(b.packs()), len(b.rows()))
	}
}

func TestRangesOfArrivalsNeverOverlap(t *testing.T) {
	b := setup(t)
	other := New(b.db.Cluster, Config{}) // another process
	var wg sync.WaitGroup
	for g := range 4 {
		db := b.dbs[b.d]
		if g%2 == 1 {
			db = other.dbs[b.d]
		}
		wg.Go(func() {
			for range 6 {
				group := b.mixed(b.spec(task.OneShot, b.inHours(1)), b.spec(task.OneShot), b.spec(task.OneShot, b.inHours(99)))
				for _, err := range db.doAdds(context.Background(), group) {
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	var overlaps, packed, packs int
	err := b.db.Pool(b.d).QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE before >= first), sum(n), count(*)
		FROM (SELECT *, lag(last) OVER (ORDER BY first) AS before FROM far_level0) a`).Scan(&overlaps, &packed, &packs)
	if err != nil || overlaps != 0 || packed != 4*6*40*2 {
		t.Fatalf("%d of %d packs overlap, with %d tasks, %v", overlaps, packs, packed, err)
	}
	if packs > 2*4*6 {
		t.Fatalf("24 groups made %d packs", packs)
	}
	if got := len(b.farRows()); got != packed {
		t.Fatalf("found %d of %d", got, packed)
	}
}

func TestOfManyRecallsAtOnceOneMovesTheTask(t *testing.T) {
	for _, p := range everyPlace[1:] {
		t.Run(p.String(), func(t *testing.T) {
			b := setup(t, nearOnly)
			id := b.add(b.spec(task.OneShot, b.inHours(5)))[0]
			b.put(p, pack.Day, id)
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					if got, err := b.Pause(context.Background(), b.tenant, id); err != nil || !got.Paused || got.Version != 1 {
						t.Errorf("pause: %+v, %v", got, err)
					}
				})
			}
			wg.Wait()
			if near, far := b.rows(), b.farRows(); len(near) != 1 || len(far) != 0 {
				t.Fatalf("%d rows and %d packed", len(near), len(far))
			}
		})
	}
}

func TestNoCancelIsLostWhilePacksAreCut(t *testing.T) {
	b := setup(t, nearOnly)
	var ids []task.ID
	for i := range 12 {
		some := b.add(b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)))
		b.put(everyPlace[1+i%2], pack.Hour, some...)
		ids = append(ids, some[0], some[1])
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, p := range b.packs() {
			for b.unpack(p) != nil { // until nobody holds it
			}
		}
	})
	for half := range 2 {
		wg.Go(func() {
			for i := half; i < len(ids); i += 2 {
				id := ids[len(ids)-1-i]
				if got, err := b.Cancel(context.Background(), b.tenant, id); err != nil || got.State != task.Cancelled {
					t.Errorf("cancel: %+v, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
	rows := b.rows()
	for _, id := range ids {
		if rows[kernel.KeyOf(b.tenant, id, 0)] != nil {
			t.Errorf("task %d was cancelled and lives", id)
		}
	}
	if len(rows) != 12 || len(b.packs()) != 0 {
		t.Fatalf("%d of 12 others live", len(rows))
	}
}

func TestARecallWaitsForTheCutThatHasThePack(t *testing.T) {
	b := setup(t, nearOnly)
	id := b.add(b.spec(task.OneShot, b.inHours(5)))[0]
	b.put(inPack, pack.Hour, id)
	tx, err := b.db.Pool(b.d).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM far_pack FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { _, err := b.Cancel(context.Background(), b.tenant, id); done <- err }()
	for waits := false; !waits; {
		const waiting = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%far_pack%FOR SHARE')`
		if err := b.db.Pool(b.d).QueryRow(t.Context(), waiting).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Fatalf("the recall did not wait: %v", err)
		default:
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestARecalledTaskThatIsLateIsDueNow(t *testing.T) {
	b := setup(t, nearOnly)
	id := b.add(b.spec(task.OneShot, b.inHours(1)))[0]
	b.put(inPack, pack.Minute, id)
	b.advance(2 * time.Hour)
	for _, call := range []func(context.Context, int32, task.ID) (*task.Snapshot, error){b.Pause, b.Resume} {
		if _, err := call(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
	}
	if r := b.rows()[kernel.KeyOf(b.tenant, id, 0)]; r.DueAt != b.now || r.ScheduledAt != b.now.Add(-time.Hour) {
		t.Fatalf("due %s, scheduled %s", r.DueAt, r.ScheduledAt)
	}
}

// mixed returns 40 requests, each with all of the specs.
func (b *bundle) mixed(specs ...task.Spec) []*adding {
	shared.Lock() // request ids are counted
	defer shared.Unlock()
	var group []*adding
	for range 40 {
		key := b.requestID()
		group = append(group, &adding{req: task.AddRequest{Tenant: b.tenant, RequestID: key, Specs: specs}, key: key, home: placeOf(b.tenant, key)})
	}
	return group
}

func TestAListingMeetsEveryTaskWhereverItIs(t *testing.T) {
	b := setup(t, nearOnly)
	all := map[task.ID]bool{}
	for i := range 24 {
		ids := b.add(b.spec(task.OneShot, b.inHours(5)), b.spec(task.Blocking, b.inHours(5), func(s *task.Spec) { s.Kind = "other" }))
		for _, id := range ids {
			all[id] = true
		}
		b.put(everyPlace[i%3], pack.Hour, ids...)
	}
	for _, c := range []struct {
		q    task.ListQuery
		want int
	}{
		{task.ListQuery{}, 48}, {task.ListQuery{Filter: task.Filter{Kind: "other"}}, 24}, {task.ListQuery{Filter: task.Filter{Type: task.OneShot}}, 24},
		{task.ListQuery{Filter: task.Filter{State: task.Scheduled}}, 48}, {task.ListQuery{Filter: task.Filter{State: task.Running}}, 0}, {task.ListQuery{Filter: task.Filter{State: task.Failed}}, 0},
		{task.ListQuery{Filter: task.Filter{Kind: "other", Type: task.OneShot}}, 0},
	} {
		for _, limit := range []int{1, 7, 1000} {
			c.q.Tenant, c.q.Limit, c.q.After = b.tenant, limit, nil
			seen := b.listAll(c.q, func() {})
			for id, n := range seen {
				if n != 1 || !all[id] {
					t.Errorf("task %d is met %d times, or is not ours", id, n)
				}
			}
			if len(seen) != c.want {
				t.Errorf("%+v lists %d tasks, want %d", c.q, len(seen), c.want)
			}
		}
	}
}

// listAll reads all pages and calls between after each. It returns how often each task was
// listed, and checks that page tokens survive their encoding as text.
func (b *bundle) listAll(q task.ListQuery, between func()) map[task.ID]int {
	b.t.Helper()
	seen := map[task.ID]int{}
	for {
		page, err := b.List(b.t.Context(), q)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, s := range page.Tasks {
			seen[s.ID]++
			if got, err := b.Get(b.t.Context(), b.tenant, s.ID); err != nil || !cmp.Equal(got, s, cmpopts.IgnoreFields(task.Row{}, "Change")) {
				b.t.Fatalf("listed %+v, got %+v, %v", s, got, err)
			}
		}
		if page.Next == nil {
			return seen
		}
		if q.After, err = task.ParseListCursor(page.Next.String()); err != nil || *q.After != *page.Next {
			b.t.Fatalf("cursor %+v became %+v, %v", page.Next, q.After, err)
		}
		between()
	}
}

func TestAListingMissesNoTaskThatIsCutMeanwhile(t *testing.T) {
	b := setup(t, nearOnly)
	all := map[task.ID]bool{}
	for i := range 12 {
		ids := b.add(b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)))
		for _, id := range ids {
			all[id] = true
		}
		b.put(everyPlace[1+i%2], pack.Day, ids...)
	}
	for _, limit := range []int{1, 2, 5} {
		turn := 0
		seen := b.listAll(task.ListQuery{Tenant: b.tenant, Limit: limit}, func() {
			packs := b.packs()
			if len(packs) == 0 {
				return
			}
			turn++
			p := packs[turn*7%len(packs)]
			before := b.rows()
			if err := b.unpack(p); err != nil {
				t.Fatal(err)
			}
			if turn%3 == 0 {
				return // promoted
			}
			var moved []task.ID // split
			for k := range b.rows() {
				if before[k] == nil {
					moved = append(moved, k.ID)
				}
			}
			b.put(inPack, pack.Hour, moved...)
		})
		if len(seen) != len(all) {
			t.Errorf("by %d: met %d of %d tasks", limit, len(seen), len(all))
		}
		var near []task.ID
		for k := range b.rows() {
			near = append(near, k.ID)
		}
		b.put(inPack, pack.Day, near...)
	}
}

func TestCountsOfPackedTasksLeaveOutWhatIsVoid(t *testing.T) {
	b := setup(t, nearOnly)
	for _, p := range everyPlace {
		b.put(p, pack.Hour, b.add(b.spec(task.OneShot, b.inHours(5)), b.spec(task.Blocking, b.inHours(5)), b.spec(task.Blocking, b.inHours(5)))...)
	}
	for k, r := range b.farRows() {
		if r.Type == task.Blocking {
			if _, err := b.Cancel(t.Context(), b.tenant, k.ID); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	got, err := b.FarCount(t.Context(), b.d)
	want := map[far.Key]int64{{Tenant: b.tenant, Type: task.OneShot}: 2, {Tenant: b.tenant, Type: task.Blocking}: 3}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Fatal(diff, err)
	}
	if c, err := b.Census(t.Context(), b.tenant); err != nil || c.Scheduled != 8 {
		t.Fatalf("%+v, %v", c, err)
	}
	if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) != 0 {
		t.Fatalf("%+v, %v", found, err)
	}
	f, err := b.FarStats(t.Context(), b.d)
	if err != nil {
		t.Fatal(err)
	}
	if void, err := b.FarVoid(t.Context(), b.d); err != nil || void == 0 || f.Level0Tasks+f.PackedTasks-void != 5 {
		t.Fatalf("%+v, %d void, %v, want 5 tasks besides void copies", f, void, err)
	}
}

func TestADamagedPackIsToldAndStopsNobodyElse(t *testing.T) {
	for _, what := range []string{"keys", "params", "mark"} {
		for _, p := range everyPlace[1:] {
			t.Run(what+" of "+p.String(), func(t *testing.T) {
				b := setup(t, nearOnly)
				ids := b.add(b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)))
				bad, good := ids[0], ids[1]
				b.put(p, pack.Hour, bad)
				change := `SET ` + what + ` = overlay(` + what + ` PLACING '\xff' FROM length(` + what + `))`
				if what == "mark" {
					change = `SET quarantine_reason = 'cannot be moved'`
				}
				b.exec(`UPDATE far_pack ` + change + `; UPDATE far_level0 ` + change)
				b.put(p, pack.Hour, good)
				for name, call := range map[string]func() error{
					"Get":    func() error { _, err := b.Get(t.Context(), b.tenant, bad); return err },
					"Cancel": func() error { _, err := b.Cancel(t.Context(), b.tenant, bad); return err },
				} {
					if err := call(); task.CodeOf(err) != task.DataLoss {
						t.Errorf("%s: %v", name, err)
					}
				}
				if seen := b.listAll(task.ListQuery{Tenant: b.tenant, Limit: 5}, func() {}); len(seen) != 1 || seen[good] != 1 {
					t.Errorf("listed %v", seen)
				}
				if codes := b.report(success(bad, 1, 1, 7), success(good, 1, 1, 7)); codes[1] != task.Unknown {
					t.Errorf("reports: %v", codes)
				}
				if got, err := b.Cancel(t.Context(), b.tenant, good); err != nil || got.State != task.Cancelled {
					t.Errorf("cancel of a neighbour: %v", err)
				}
				found, err := b.FarDamaged(t.Context())
				found = slices.DeleteFunc(found, func(p far.DamagedPack) bool { return p.Database != b.d })
				if err != nil || (what == "mark") != (len(found) == 1) {
					t.Errorf("damaged: %+v, %v", found, err)
				}
			})
		}
	}
}
