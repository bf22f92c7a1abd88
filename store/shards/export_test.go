package shards

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/RoaringBitmap/roaring/v2/roaring64"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

var errEnough = errors.New("enough")

// exportAll exports the bundle's database in pages of a few rows. It returns how often each task
// came.
func (b *bundle) exportAll(f task.Filter, pageRows int, between func(*task.ExportPage)) map[task.ID]int {
	b.t.Helper()
	seen := map[task.ID]int{}
	q := &task.ExportQuery{Tenant: b.tenant, Filter: f, After: task.ExportCursor{Database: b.d}}
	err := b.export(b.t.Context(), q, pageRows, func(p *task.ExportPage) error {
		if p.At.Database != b.d {
			return errEnough
		}
		for _, r := range p.Rows {
			seen[r.ID]++
		}
		between(p)
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		b.t.Fatal(err)
	}
	return seen
}

func TestAnExportHasEachSelectedTaskOnceAsItIsRead(t *testing.T) {
	b := setup(t, nearOnly)
	all := b.spread()
	paused := b.add(b.spec(task.NonBlocking, kept), b.spec(task.Blocking, kept))
	for _, id := range paused {
		if _, err := b.Pause(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
		all[id] = b.spec(task.NonBlocking)
	}
	other := *b
	other.tenant++
	other.add(b.spec(task.OneShot, b.inHours(2)))
	for _, f := range []task.Filter{
		{}, {Tags: []string{"red"}}, {Tags: []string{"blue", "green"}}, {Kind: "k", Type: task.OneShot}, {State: task.Scheduled}, {State: task.Running},
		{DueFrom: b.now.Add(3 * time.Hour), DueUntil: b.now.Add(7 * time.Hour)}, {DueUntil: b.now.Add(5 * time.Hour), Tags: []string{"red"}},
	} {
		want := map[task.ID]bool{}
		for id := range all {
			if got, err := b.Get(t.Context(), b.tenant, id); err == nil && f.Matches(&got.Row) {
				want[id] = true
			}
		}
		for _, rows := range []int{1, 5, 4096} {
			seen := b.exportAll(f, rows, func(p *task.ExportPage) {
				for _, r := range p.Rows {
					got, err := b.Get(t.Context(), b.tenant, r.ID)
					if err != nil || !cmp.Equal(&got.Row, r, cmpopts.IgnoreFields(task.Row{}, "Change")) {
						t.Fatalf("exported %+v, got %+v, %v", r, got, err)
					}
					if p.ReadAt != b.now {
						t.Errorf("task %d was read at %s, not at %s", r.ID, p.ReadAt, b.now)
					}
				}
			})
			for id, n := range seen {
				if n != 1 || !want[id] {
					t.Errorf("%+v by %d: task %d came %d times; wanted: %t", f, rows, id, n, want[id])
				}
			}
			if len(seen) != len(want) {
				t.Errorf("%+v by %d: %d tasks came, want %d", f, rows, len(seen), len(want))
			}
		}
	}
}

func TestAnExportOfFinishedTasksHasWhenTheyEnded(t *testing.T) {
	b := setup(t)
	ids := b.add(b.spec(task.OneShot, b.inHours(3), kept), b.spec(task.OneShot, b.inHours(3), kept), b.spec(task.OneShot, b.inHours(3), kept))
	for _, id := range ids[:2] {
		if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
	}
	seen := b.exportAll(task.Filter{State: task.Cancelled}, 1, func(p *task.ExportPage) {
		for i := range p.Rows {
			if p.Finished[i] != b.now {
				t.Errorf("task %d ended at %s, not at %s", p.Rows[i].ID, p.Finished[i], b.now)
			}
		}
	})
	if len(seen) != 2 || seen[ids[0]] != 1 || seen[ids[1]] != 1 {
		t.Errorf("%v came, want %v", seen, ids[:2])
	}
}

// A task leaves the near tier after the newer packs were read, and before its rows are.
func TestAPageOfTheNearTierHasTheTasksThatHaveJustLeftIt(t *testing.T) {
	b := setup(t, nearOnly)
	near := b.add(b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)))
	moved := b.add(b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)))
	b.put(inPack, pack.Hour, moved...)
	var got []task.ID
	e := &exporting{
		store: b.Store, q: &task.ExportQuery{Tenant: b.tenant}, at: task.ExportCursor{Database: b.d, Stage: task.ExportRows},
		seen: roaring64.New(), pageRows: 1, visit: func(p *task.ExportPage) error {
			for i, r := range p.Rows {
				got = append(got, r.ID)
				if text := p.After(i).String(); p.After(i).Database == b.d {
					if at, err := task.ParseExportCursor(text); err != nil || at != p.After(i) {
						t.Errorf("position %s became %v, %v", text, at, err)
					}
				}
			}
			return nil
		},
	}
	for e.at.Database == b.d {
		if err := e.rows(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := slices.Concat(near, moved)
	slices.SortFunc(want, inOrder)
	if !slices.Equal(got, want) {
		t.Errorf("%v came, want %v", got, want)
	}
}

func TestADamagedPackIsToldAndTheOtherTasksAreExported(t *testing.T) {
	b := setup(t, nearOnly)
	lost := b.add(b.spec(task.OneShot, b.inHours(5)))
	b.put(inPack, pack.Hour, lost...)
	b.exec(`UPDATE far_pack SET keys = set_byte(keys, 20, get_byte(keys, 20) # 255)`)
	good := b.add(b.spec(task.OneShot, b.inHours(5)))
	damaged := 0
	seen := b.exportAll(task.Filter{}, 100, func(p *task.ExportPage) { damaged += p.DamagedPacks })
	if len(seen) != 1 || seen[good[0]] != 1 || damaged != 1 {
		t.Errorf("%v came, and %d damaged packs; want %v and one", seen, damaged, good)
	}
}

func TestPositionsOfExportsThatAreNoneAreRefused(t *testing.T) {
	for _, text := range []string{"", "1.2.3", "16.0.0.0.0", "1.3.0.0.0", "1.0.0.0.512", "0.0.0.512.0", "0.0.-1.0.0", "0.0.0.0.99999999999999999999", "a.0.0.0.0"} {
		if at, err := task.ParseExportCursor(text); err == nil {
			t.Errorf("%q became %v", text, at)
		}
	}
	for _, text := range []string{"", "16.0.0.0.0.0", "1.2.3", "1.2.3.4.5.x"} {
		if at, err := task.ParseRunCursor(text); err == nil {
			t.Errorf("%q became %v", text, at)
		}
	}
}

// exporter exports while everything moves. Half of the exports are interrupted, and continue.
func (f *farRace) exporter() {
	f.mu.Lock()
	var before []task.ID
	for _, t := range f.tasks {
		before = append(before, t.id)
	}
	interrupted := f.r.IntN(2) == 0
	f.mu.Unlock()
	seen := map[task.ID]int{}
	q := &task.ExportQuery{Tenant: f.tenant, After: task.ExportCursor{Database: f.d}}
	for q.After.Database == f.d {
		err := f.export(context.Background(), q, 1+f.random(300), func(p *task.ExportPage) error {
			if p.At.Database != f.d {
				return errEnough
			}
			upto := len(p.Rows)
			if q.After = p.Next; interrupted && len(p.Rows) > 0 && f.random(10) == 0 {
				upto = 1 + f.random(len(p.Rows))
				q.After = p.After(upto - 1)
			}
			for _, r := range p.Rows[:upto] {
				seen[r.ID]++
			}
			time.Sleep(time.Duration(f.random(2000)) * time.Microsecond)
			if upto < len(p.Rows) {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			f.fail("export: %v", err)
			return
		}
	}
	f.judgeExport(before, seen, interrupted)
}

// judgeExport checks an export of the tasks that had been added before it.
func (f *farRace) judgeExport(before []task.ID, seen map[task.ID]int, interrupted bool) {
	f.exports.Add(1)
	for _, id := range before {
		n := seen[id]
		if n > 1 && !interrupted {
			f.fail("task %d came %d times in an export", id, n)
		}
		if n > 0 {
			continue
		}
		for tries := 0; ; tries++ {
			got, err := f.Get(context.Background(), f.tenant, id)
			if err != nil && allowed(err) && tries < 100 {
				continue
			}
			if err != nil || !got.State.Final() {
				f.fail("task %d is missing in an export; afterwards it is %s", id, fmt.Sprint(got, err))
			}
			break
		}
	}
}

func TestASnapshotOfAStandbyHasTheTasksAsOfOneInstant(t *testing.T) {
	primary := storetest.NewServer(t)
	on := storetest.OpenDSN(t, primary.DSN())
	s := New(on, Config{})
	running, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(running) }()
	var ids []task.ID
	for i := range 40 {
		spec := (&bundle{t: t}).spec(task.OneShot, func(s *task.Spec) {
			s.Begin = task.At(time.Now()).Add(time.Duration(i) * time.Minute)
		})
		added, err := s.Add(t.Context(), task.AddRequest{Tenant: 7, RequestID: fmt.Sprint("r", i), Specs: []task.Spec{spec}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, added.Items[0].ID)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	standby := storetest.OpenDSN(t, testenv.NewStandby(t, primary, "standby").DSN(), func(c *store.Config) { c.ReadOnly = true; c.IdleInTransaction = time.Minute })
	var got []task.ID
	q := &task.ExportQuery{Tenant: 7}
	visit := func(p *task.ExportPage) error {
		for _, r := range p.Rows {
			got = append(got, r.ID)
		}
		return nil
	}
	eventually(t, "the standby has all tasks", func() bool {
		got = nil
		return New(standby, Config{}).ExportSnapshot(t.Context(), q, false, visit) == nil && len(got) == len(ids)
	})
	slices.Sort(got)
	slices.Sort(ids)
	if !slices.Equal(got, ids) {
		t.Errorf("%v came, want %v", got, ids)
	}
	readOnly := storetest.OpenDSN(t, primary.DSN(), func(c *store.Config) { c.ReadOnly = true; c.IdleInTransaction = time.Minute })
	if err := New(readOnly, Config{}).ExportSnapshot(t.Context(), q, false, visit); !errors.Is(err, ErrPrimary) {
		t.Errorf("on a primary: %v, want %v", err, ErrPrimary)
	}
	if got = nil; New(readOnly, Config{}).ExportSnapshot(t.Context(), q, true, visit) != nil || len(got) != len(ids) {
		t.Errorf("%d tasks came from the primary, want %d", len(got), len(ids))
	}
	if _, err := readOnly.Pool(0).Exec(t.Context(), "DELETE FROM task"); err == nil {
		t.Error("a session that only reads has written")
	}
}

// TestASnapshotHasADatabaseThatHasMoved: the configuration still has it at the place where it began.
func TestASnapshotHasADatabaseThatHasMoved(t *testing.T) {
	t.Parallel()
	const moved = 3
	old, place := storetest.DSN(t), storetest.DSN(t)
	at, err := pgx.ParseConfig(place)
	if err != nil {
		t.Fatal(err)
	}
	exec := func(c *store.Cluster, statement string) {
		t.Helper()
		if _, err := c.Pool(moved).Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	exec(storetest.OpenDSN(t, place), "UPDATE database_place SET number = 2")
	exec(storetest.OpenDSN(t, old), fmt.Sprintf(`ALTER SCHEMA perceptor_03 RENAME TO perceptor_03_moved_2; CREATE SCHEMA perceptor_03;
		CREATE TABLE perceptor_03.database_place (LIKE perceptor_03_moved_2.database_place INCLUDING ALL);
		INSERT INTO perceptor_03.database_place (number, state, address) VALUES (2, 'moved', '%s:%d/%s')`, at.Host, at.Port, at.Database))
	reader := storetest.OpenDSN(t, old, func(c *store.Config) { c.ReadOnly = true; c.IdleInTransaction = time.Minute })
	visit := func(*task.ExportPage) error { return nil }
	if err := New(reader, Config{}).ExportSnapshot(t.Context(), &task.ExportQuery{Tenant: 7}, true, visit); err != nil {
		t.Error(err)
	}
	if number, at := reader.Place(moved); number != 2 {
		t.Errorf("the database was read at place %d, %s", number, at)
	}
}

// The server hangs while a page is visited, so that nothing answers the end of the snapshots.
func TestASnapshotOfAServerThatHangsEnds(t *testing.T) {
	t.Parallel()
	dsn := storetest.DSN(t)
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	proxy := testenv.NewProxy(t, net.JoinHostPort(config.Host, fmt.Sprint(config.Port)))
	if dsn, err = proxy.Through(dsn); err != nil {
		t.Fatal(err)
	}
	s := New(storetest.OpenDSN(t, dsn, func(c *store.Config) { c.ReadOnly = true; c.IdleInTransaction = time.Minute }), Config{})
	defer proxy.Thaw()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- s.ExportSnapshot(ctx, &task.ExportQuery{Tenant: 7}, true, func(*task.ExportPage) error {
			proxy.Freeze()
			cancel() // as Ctrl-C does
			return ctx.Err()
		})
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(endSnapshots + 30*time.Second):
		t.Error("it does not end")
	}
}

// A demotion has drawn the id of its pack, and has not committed. The load draws a higher one.
func TestAnExportMissesNoTaskThatMovesBesideALoad(t *testing.T) {
	g := newGate("demote:" + kernel.BeforeCommit)
	b := setup(t, withGate(g))
	own := b.chores()
	rare := b.spec(task.NonBlocking, func(s *task.Spec) { s.Interval = 36 * time.Hour })
	ids := b.add(rare, rare)
	b.claim(task.RangeForm)
	b.report(success(ids[0], 1, 1, 7), success(ids[1], 1, 1, 7))
	demoted := async(func() error { _, err := b.Demote(context.Background(), b.d, own, 0); return err })
	<-g.reached
	rows := b.chunk(3, time.Minute)
	for i := range rows {
		at := b.now.Add(40 * 24 * time.Hour)
		rows[i].Tenant, rows[i].Begin, rows[i].ScheduledAt, rows[i].Anchor, rows[i].DueAt = b.tenant, at, at, at, at
	}
	loaded := async(func() error { _, err := b.Load(context.Background(), b.d, rows); return err })
	for len(loaded) == 0 && b.count(lockWaits, application) == 0 { // it is there, or waits for the demotion
		time.Sleep(time.Millisecond)
	}
	q := &task.ExportQuery{Tenant: b.tenant, After: task.ExportCursor{Database: b.d}}
	seen := map[task.ID]int{}
	opened := false
	err := b.export(t.Context(), q, 100, func(p *task.ExportPage) error {
		if p.At.Database != b.d {
			return errEnough
		}
		if !opened { // the demotion ends while the export runs
			opened = true
			g.open <- nil
			if err := <-demoted; err != nil {
				return err
			}
		}
		for _, r := range p.Rows {
			seen[r.ID]++
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	if err := <-loaded; err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if seen[id] != 1 {
			t.Errorf("task %d came %d times", id, seen[id])
		}
	}
}
