package shards

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// chunk returns n new tasks due at random between now and the given distance.
func (b *bundle) chunk(n int, within time.Duration) []task.Row {
	b.t.Helper()
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	rows := make([]task.Row, n)
	for i := range rows {
		spec := b.spec(task.Types[rng.IntN(3)], func(s *task.Spec) {
			s.Begin = b.now + task.Instant(rng.Int64N(within.Milliseconds()))
			s.Kind = fmt.Sprintf("kind-%d", rng.IntN(5))
			s.ParamsWire = fmt.Appendf(nil, "params %d", i)
			if i%4 == 0 {
				s.Tags = []string{fmt.Sprint("tag-", i%3)}
			}
		})
		rows[i] = *task.NewRow(b.tenant+int32(rng.IntN(20)), 0, &spec, b.now)
	}
	return rows
}

// dump returns all living tasks of the bundle's database by their ids.
func (b *bundle) dump() map[task.ID]*task.Row {
	b.t.Helper()
	out := map[task.ID]*task.Row{}
	err := b.Dump(context.Background(), b.d, func(rows []*task.Row) error {
		for _, r := range rows {
			if out[r.ID] != nil {
				return fmt.Errorf("task %s is there twice", r.ID)
			}
			out[r.ID] = r
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

func TestWhatIsLoadedIsThereOnceAndAsItWasGiven(t *testing.T) {
	for _, tc := range []struct {
		name    string
		n       int
		within  time.Duration
		horizon time.Duration
	}{
		{"a few over a year", 3000, 365 * 24 * time.Hour, 10 * time.Minute},
		{"full hours", 30000, 26 * time.Hour, 10 * time.Minute},
		{"minutes and the near tier", 9000, time.Hour, 10 * time.Minute},
		{"near only", 3000, 24 * time.Hour, far.HorizonOff},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := setup(t, func(c *Config) { c.Horizon = tc.horizon })
			rows := b.chunk(tc.n, tc.within)
			got, err := b.Load(context.Background(), b.d, rows)
			if err != nil {
				t.Fatal(err)
			}
			if got.Near+got.Packed != tc.n {
				t.Errorf("%d tasks went to the near tier and %d into packs, of %d", got.Near, got.Packed, tc.n)
			}
			want := map[task.ID]*task.Row{}
			for i := range rows {
				r := rows[i]
				r.Change = task.Kept
				want[r.ID] = &r
				if r.ID.Shard().Database() != b.d {
					t.Fatalf("task %s is in the wrong database", r.ID)
				}
			}
			if d := cmp.Diff(want, b.dump()); d != "" {
				t.Errorf("stored tasks differ (-given +stored):\n%.2000s", d)
			}
			b.checkPlaces(want)
		})
	}
}

// checkPlaces makes sure that packed tasks are beyond the horizon and can be
// found: in the bucket that their locator's minute tells, within the pack's span.
func (b *bundle) checkPlaces(want map[task.ID]*task.Row) {
	b.t.Helper()
	var astray int
	query := `SELECT count(*) FROM far_pack p WHERE p.bucket_at % (ARRAY[60000, 3600000, 86400000, 2592000000])[p.level] <> 0`
	if err := b.db.Pool(b.d).QueryRow(context.Background(), query).Scan(&astray); err != nil || astray > 0 {
		b.t.Errorf("%d packs are in no bucket (%v)", astray, err)
	}
	i := 0
	for id, r := range want {
		if i++; i > 300 {
			break
		}
		near := b.cfg.Horizon < 0 || r.DueAt < b.now.Add(b.cfg.Horizon)
		copies := b.copies(r.Tenant, id)
		f, err := far.Find(copies, r.Tenant, id)
		if err != nil {
			b.t.Fatal(err)
		}
		if f == nil && b.rowsOf(id) != 1 {
			b.t.Errorf("task %s, due in %s, is found nowhere", id, r.DueAt.Sub(b.now))
		}
		if f != nil && near {
			b.t.Errorf("task %s, due in %s, is in a pack", id, r.DueAt.Sub(b.now))
		}
	}
}

func (b *bundle) copies(tenant int32, id task.ID) []far.Copy {
	b.t.Helper()
	rows, err := sql.FarCopies.Query(context.Background(), b.db.Pool(b.d), tenant, int64(id))
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	var out []far.Copy
	for rows.Next() {
		var c far.Copy
		if err := rows.Scan(&c.Pack, &c.Damaged, &c.Keys); err != nil {
			b.t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

func (b *bundle) rowsOf(id task.ID) (n int) {
	b.t.Helper()
	if err := b.db.Pool(b.d).QueryRow(context.Background(), `SELECT count(*) FROM task WHERE id = $1`, int64(id)).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func TestLoadedTasksAreCounted(t *testing.T) {
	b := setup(t)
	rows := b.chunk(5000, 40*24*time.Hour)
	want := map[int32]map[task.Type]int64{}
	for i := range rows {
		if want[rows[i].Tenant] == nil {
			want[rows[i].Tenant] = map[task.Type]int64{}
		}
		want[rows[i].Tenant][rows[i].Type]++
	}
	if _, err := b.Load(context.Background(), b.d, rows); err != nil {
		t.Fatal(err)
	}
	counts, err := counters.Read(context.Background(), b.db.Pool(b.d), 0)
	if err != nil {
		t.Fatal(err)
	}
	got := map[int32]map[task.Type]int64{}
	for _, c := range counts {
		if got[c.Tenant] == nil {
			got[c.Tenant] = map[task.Type]int64{}
		}
		got[c.Tenant][c.Type] = c.Scheduled
		if c.Added != c.Scheduled {
			t.Errorf("tenant %d, %s: %d added, %d scheduled", c.Tenant, c.Type, c.Added, c.Scheduled)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("counters differ (-loaded +counted):\n%s", d)
	}
}

func TestALoadThatFailsLeavesNothing(t *testing.T) {
	stop := errors.New("stop")
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if point == "load:"+kernel.BeforeCommit {
				return stop
			}
			return nil
		}
	})
	if _, err := b.Load(context.Background(), b.d, b.chunk(3000, 10*24*time.Hour)); !errors.Is(err, stop) {
		t.Fatalf("err = %v", err)
	}
	if n := len(b.dump()); n != 0 {
		t.Errorf("%d tasks were stored", n)
	}
}

func TestLoadRefusesWhatIsNotNew(t *testing.T) {
	b := setup(t)
	rows := b.chunk(3, time.Hour)
	rows[1].State = task.Running
	if _, err := b.Load(context.Background(), b.d, rows); err == nil {
		t.Error("a running task was loaded")
	}
	if _, err := b.Load(context.Background(), b.d, nil); err == nil {
		t.Error("a chunk of nothing was loaded")
	}
}

// TestLoadedTasksBeginWhereAddedOnesWould: where the first instant depends on the id.
func TestLoadedTasksBeginWhereAddedOnesWould(t *testing.T) {
	b := setup(t)
	const n = 400
	terms := []func(*task.Spec){
		func(s *task.Spec) { s.Interval = 2 * time.Hour; s.Spread = time.Hour },
		byCron("H H * * *", "Europe/Berlin"),
		func(s *task.Spec) {
			byCron("0 0 * * *", "UTC")(s)
			s.Spread = 6 * time.Hour
		},
		func(s *task.Spec) { s.Tags = []string{"red"} },
		func(*task.Spec) {},
	}
	specs, rows := make([]task.Spec, n), make([]task.Row, n)
	for i := range rows {
		specs[i] = b.spec(task.NonBlocking, func(s *task.Spec) { s.Begin = b.now.Add(time.Duration(i) * time.Minute) }, terms[i%len(terms)])
		rows[i] = *task.NewRow(b.tenant, 0, &specs[i], b.now)
	}
	if _, err := b.Load(t.Context(), b.d, rows); err != nil {
		t.Fatal(err)
	}
	stored, firsts := b.dump(), map[task.Instant]bool{}
	for i := range rows {
		id := rows[i].ID
		want, faults := b.machines.Place(b.tenant, id, &specs[i], b.now)
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		for what, got := range map[string]*task.Row{"given back": &rows[i], "stored": stored[id]} {
			if got == nil || got.ScheduledAt != want.ScheduledAt || got.Anchor != want.Anchor || got.DueAt != want.DueAt || got.Begin != want.Begin {
				t.Fatalf("task %d, as it is %s: %+v, want %+v", i, what, got, want)
			}
		}
		if i%len(terms) == 1 {
			firsts[want.ScheduledAt%task.Instant(24*time.Hour/time.Millisecond)] = true
		}
	}
	if len(firsts) < n/len(terms)/2 {
		t.Errorf("%d tasks at H of H begin at %d times of the day", n/len(terms), len(firsts))
	}
}

func TestLoadRefusesWhatAnAddWould(t *testing.T) {
	b := setup(t)
	for field, change := range map[string]func(*task.Spec){
		"cron.expression": byCron("0 0 H(30-31) 2 *", "UTC"),
		"spread": func(s *task.Spec) {
			s.Spread, s.End = 50*time.Second, b.now.Add(30*time.Second)
		},
		"begin_time": func(s *task.Spec) {
			s.Type, s.Interval, s.MaxCount = task.OneShot, 0, 1
			s.Misfire, s.Grace, s.Begin = task.Skip, time.Second, b.now.Add(-time.Hour)
		},
		"end_time": func(s *task.Spec) {
			s.Tags, s.Begin, s.End = []string{"red"}, b.now.Add(-time.Hour), b.now
		},
	} {
		rows := b.chunk(3, time.Hour)
		spec := b.spec(task.NonBlocking, func(s *task.Spec) { s.Begin = b.now }, change)
		rows[1] = *task.NewRow(b.tenant, 0, &spec, b.now)
		_, err := b.Load(t.Context(), b.d, rows)
		var known *task.Error
		if !errors.As(err, &known) || known.Code != task.InvalidArgument || known.Faults[0].Field != field || !strings.Contains(err.Error(), "task 1 of the chunk") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if n := len(b.dump()); n != 0 {
		t.Errorf("%d tasks were stored", n)
	}
}

// BenchmarkLoad prints what one task of a chunk costs over one connection. The
// processor time of PostgreSQL is not in it.
func BenchmarkLoad(b *testing.B) {
	bundle := setup(b)
	const n = 1 << 20
	rows := bundle.chunk(n, 30*24*time.Hour)
	var bytes int64
	for b.Loop() {
		out, err := bundle.Load(context.Background(), bundle.d, rows)
		if err != nil {
			b.Fatal(err)
		}
		bytes += out.Bytes
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/n, "us/task")
	b.ReportMetric(float64(bytes)/float64(b.N)/n, "B/task")
	b.ReportMetric(0, "ns/op")
	bundle.empty()
}
