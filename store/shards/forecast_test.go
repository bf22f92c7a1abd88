package shards

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/forecast"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// forecasted counts what falls due until all packs are counted, and returns the calendar of a
// tenant.
func (b *bundle) forecasted(tenant int32) *forecast.Calendar {
	b.t.Helper()
	for more := true; more; {
		var err error
		if _, more, err = b.CountForecast(b.t.Context(), b.d); err != nil {
			b.t.Fatal(err)
		}
	}
	c, counted, now, err := b.Forecast(b.t.Context(), b.d, tenant)
	if err != nil || c == nil || counted != now {
		b.t.Fatalf("%v, counted at %d, now %d, %v", c, counted, now, err)
	}
	return c
}

// TestTheForecastHasTheNextInstantOfEveryTask: of all places of a task, and again after some have
// been cancelled and the clock has moved, so that packs are counted anew.
func TestTheForecastHasTheNextInstantOfEveryTask(t *testing.T) {
	t.Parallel()
	b := setup(t)
	n := 600
	if testenv.Long() {
		n = 1_000_000
	}
	rng := rand.New(rand.NewPCG(3, 4))
	begins := map[task.ID]task.Instant{}
	for len(begins) < n {
		var specs []task.Spec
		for range 200 {
			at := b.now.Add(time.Duration(rng.Int64N(int64(80 * 24 * time.Hour))))
			if rng.IntN(3) == 0 {
				at = b.now.Add(time.Duration(rng.Int64N(int64(2 * time.Hour))))
			}
			typ := []task.Type{task.OneShot, task.NonBlocking, task.Blocking}[rng.IntN(3)]
			specs = append(specs, b.spec(typ, func(s *task.Spec) {
				s.Begin = at
				if typ != task.OneShot {
					s.Interval, s.MaxCount = 200*24*time.Hour, 0
				}
			}))
		}
		for i, id := range b.add(specs...) {
			begins[id] = specs[i].Begin
		}
	}
	check := func() {
		t.Helper()
		minutes, hours, days := b.forecasted(b.tenant).Spans()
		for _, spans := range [][]forecast.Span{minutes, hours, days} {
			width := spans[1].Begin - spans[0].Begin
			want := make([]int64, len(spans))
			for _, at := range begins {
				if i := (at - spans[0].Begin) / width; at >= spans[0].Begin && int(i) < len(want) {
					want[i]++
				}
			}
			for i, s := range spans {
				if s.Next != want[i] {
					t.Fatalf("spans of %d ms: %d next instants from %d on, want %d", width, s.Next, s.Begin, want[i])
				}
			}
		}
	}
	check()
	b.compact(b.chores(), task.CompactLevel0)
	check()
	cancelled := 0
	for id := range begins {
		if cancelled++; cancelled > 30 {
			break
		}
		if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
		delete(begins, id)
	}
	check()
	b.setClock(b.now.Add(70 * 24 * time.Hour)) // what was counted by the day comes within hours
	check()
}

// TestTheForecastHonoursDayCalendars: of rows and packs, by interval and by expression, also when a
// change of the calendar opens and closes instants after the packs were counted.
func TestTheForecastHonoursDayCalendars(t *testing.T) {
	t.Parallel()
	var closed []task.Range
	known := true
	b := setup(t, nearOnly, func(c *Config) {
		c.Windows = func(_ int32, exclude, only []string) (*task.Windows, task.MissingCalendar) {
			if !known || len(only) > 0 || !slices.Equal(exclude, []string{"days"}) {
				return nil, task.MissingCalendar{Name: "days"}
			}
			return task.NewWindows([][]task.Range{slices.Clone(closed)}, nil), task.MissingCalendar{}
		}
	})
	excluding := func(s *task.Spec) { s.Exclude = []string{"days"} }
	first := b.now.Add(time.Hour).Time().Truncate(time.Hour)
	for _, p := range everyPlace {
		b.put(p, pack.Hour, b.add(b.spec(task.NonBlocking, excluding, func(s *task.Spec) { s.Interval, s.Begin = time.Hour, task.At(first) }))...)
		b.put(p, pack.Hour, b.add(b.spec(task.Blocking, excluding, byCron("0 * * * *", "UTC")))...)
	}
	b.add(b.spec(task.NonBlocking, byCron("0 * * * *", "UTC")))
	n := int64(2 * len(everyPlace))
	check := func(what string, fires func(hour int) int64) {
		t.Helper()
		_, hours, _ := b.forecasted(b.tenant).Spans()
		for i, h := range hours {
			k := int(h.Begin.Time().Sub(first) / time.Hour)
			if h.Begin.Time().Before(first) {
				continue
			}
			if want := 1 + fires(k); h.Next+h.Projected != want {
				t.Fatalf("%s, span %d: %d and %d, want %d", what, i, h.Next, h.Projected, want)
			}
		}
	}
	hour := func(n int) task.Instant { return task.At(first.Add(time.Duration(n) * time.Hour)) }
	check("no days", func(int) int64 { return n })
	closed = []task.Range{{From: hour(0), Until: hour(3)}, {From: hour(30), Until: hour(52)}}
	check("some days", func(k int) int64 {
		if k < 3 || k >= 30 && k < 52 {
			return 0
		}
		return n
	})
	known = false
	check("an unknown calendar", func(int) int64 { return 0 })
}

// TestAListOfPacksServesManySteps: and what becomes void between the steps is not counted.
func TestAListOfPacksServesManySteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const packs = 2*forecastPacks + 30
	var ids []task.ID
	for range packs {
		ids = append(ids, b.add(b.spec(task.OneShot, func(s *task.Spec) { s.Begin = b.now.Add(5 * 24 * time.Hour) }))...)
	}
	var steps []int64
	for more := true; more; {
		var n int
		var err error
		if n, more, err = b.CountForecast(t.Context(), b.d); err != nil {
			t.Fatal(err)
		}
		if n > forecastPacks || len(steps) == packs {
			t.Fatalf("step %d counted %d packs", len(steps), n)
		}
		steps = append(steps, int64(n))
		if len(steps) == 1 { // one that is counted, and one that is not
			for _, id := range []task.ID{ids[0], ids[packs-1]} {
				if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	_, _, days := b.forecasted(b.tenant).Spans()
	var next int64
	for _, s := range days {
		next += s.Next
	}
	if next != packs-2 || len(steps) < 4 {
		t.Errorf("%d next instants after steps of %v packs, want %d", next, steps, packs-2)
	}
}
