package figures

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestFiguresSurviveStorage(t *testing.T) {
	f := &Figures{}
	for p := range size {
		if p%3 == 0 {
			f.Set(p, int64(p)*1000+1)
		}
	}
	f.unhandled("mail", 7)
	f.unhandled("<script>", 1)
	got, err := Decode(f.Encode())
	if err != nil || got.n != f.n || got.Unhandled["mail"] != 7 || got.Unhandled["<script>"] != 1 {
		t.Errorf("%v %v", got, err)
	}
	whole := f.Encode()
	f.Unhandled = nil
	for i := range f.Encode() { // up to the byte that ends the numbers
		if _, err := Decode(whole[:i]); err == nil {
			t.Errorf("the first %d bytes are read as figures", i)
		}
	}
	if _, err := Decode([]byte{9, 0}); !errors.Is(err, errFigures) {
		t.Errorf("another version: %v", err)
	}
}

func TestADurationIsInTheClassOfItsSize(t *testing.T) {
	for us := int64(1); us < 8e9; us += 1 + us/7 {
		d := time.Duration(us) * time.Microsecond
		c := class(d)
		if c < Classes-1 && d > upper(c)+time.Microsecond || c > 0 && d < upper(c-1)-time.Microsecond {
			t.Fatalf("%s is in class %d, which ends at %s", d, c, upper(c))
		}
	}
}

func TestQuantilesAreWithinAFifth(t *testing.T) {
	f, n := &Figures{}, 10_000
	for i := range n {
		f.Observe(Lateness, time.Duration(i+1)*time.Millisecond, 1)
	}
	d := f.Distribution(Lateness)
	for name, c := range map[string][2]float64{"p50": {d.P50.Seconds(), 5}, "p99": {d.P99.Seconds(), 9.9}} {
		if math.Abs(c[0]/c[1]-1) > .2 {
			t.Errorf("%s is %.3f s, want %.3f s", name, c[0], c[1])
		}
	}
	if d.Count != int64(n) || d.Max < 10*time.Second || d.Max > 15*time.Second {
		t.Errorf("%+v", d)
	}
}

// memory is a store in memory.
type memory struct {
	mu   sync.Mutex
	rows []Stored
}

func (m *memory) Write(_ context.Context, at task.Instant, process int64, rows []Row) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range rows {
		m.rows = append(m.rows, Stored{r.Tenant, at, process, r.Data})
	}
	return nil
}

func TestProcessesAreSummedByTenantAndInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var recorders []*Recorder
		for i := range 2 {
			due := int64(10 * (i + 1))
			r := New(Config{
				Store: m, Number: int64(i + 1), Log: slog.New(slog.DiscardHandler), Describe: func() []byte { return (&Self{Name: "p"}).Encode() },
				Measure: func(_ context.Context, set func(int32, Place, int64)) { set(7, Due, due) },
			})
			recorders = append(recorders, r)
			go func() { _ = r.Run(ctx) }()
		}
		for range 3 {
			for _, r := range recorders {
				r.Published(7, task.OneShot, true, 30*time.Millisecond)
				r.Count(8, Succeeded, 2)
			}
			time.Sleep(Every)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		now := task.At(time.Now())
		processes, newest := Newest(m.rows)
		maps.DeleteFunc(processes, func(number int64, _ task.Instant) bool { return number < 0 }) // of news
		if len(processes) != 2 || newest != Complete(now) {
			t.Errorf("processes %v, newest %d, want %d", processes, newest, Complete(now))
		}
		of := Collect(m.rows, processes, now)
		seven, total := of[7], of[Total]
		if n := seven.Sum(0, task.Never); n.Of(Fired.ByType(task.OneShot)) != 6 || len(seven.Points) < 3 {
			t.Errorf("fired %d times in %d points", n.Of(Fired.ByType(task.OneShot)), len(seven.Points))
		}
		if n := total.Sum(0, task.Never); n.Of(Succeeded) != 12 || n.Distribution(Lateness).Count != 6 {
			t.Errorf("total %v", n)
		}
		if seven.Now.Of(Due) != 30 {
			t.Errorf("%d due, want the sum of both processes", seven.Now.Of(Due))
		}
		stop()
		synctest.Wait()
	})
}

// TestNewsAreStoredBeforeTheIntervalEnds: within three seconds readers know a kind without a
// handler and a tenant without a listener; no count is told twice, and none is lost.
func TestNewsAreStoredBeforeTheIntervalEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		r := New(Config{Store: m, Number: 1, Log: slog.New(slog.DiscardHandler), Describe: func() []byte { return nil }})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = r.Run(ctx) }()
		stored := func() []Stored {
			m.mu.Lock()
			defer m.mu.Unlock()
			return slices.Clone(m.rows)
		}
		seven := func() *Of {
			rows := stored()
			processes, _ := Newest(rows)
			of := Collect(rows, processes, task.At(time.Now()))[7]
			if of == nil {
				t.Fatal("nothing is known of the tenant")
			}
			return of
		}
		unhandled := func() int64 { sum := seven().Sum(0, task.Never); return sum.Unhandled["mail"] }
		r.Unhandled(7, "mail", 3)
		r.Count(7, HandedBack, 3)
		r.Listeners(7, task.At(time.Now()), 0, 5)
		time.Sleep(3 * time.Second)
		if of := seven(); unhandled() != 3 || of.Now.Of(Asked) == 0 || of.Now.Of(Lag) != 5 || of.Points[0].At >= task.At(time.Now().Truncate(Every)) {
			t.Errorf("early: %+v", of)
		}
		r.Unhandled(7, "mail", 2)
		time.Sleep(3 * time.Second)
		if n := len(stored()); n != 1 {
			t.Errorf("%d rows: the same news was stored again", n)
		}
		time.Sleep(Every)
		if sum := seven().Sum(0, task.Never); unhandled() != 5 || sum.Of(HandedBack) != 3 {
			t.Errorf("%d runs without a handler, %d handed back", unhandled(), sum.Of(HandedBack))
		}
		stop()
		synctest.Wait()
	})
}

// The clock of the machine is set back by an hour while an interval is under way.
func TestAnIntervalEndsAfterTheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if New(Config{Store: &memory{}}).await(t.Context(), began.Add(time.Hour)) || time.Since(began) > Every {
			t.Errorf("the interval ends %s later", time.Since(began))
		}
	})
}

func TestTheRowsOfAnIntervalAreBounded(t *testing.T) {
	r := New(Config{Describe: func() []byte { return nil }})
	const tenants = 3 * known
	for i := range int32(tenants) {
		r.Count(i+1, Succeeded, 1)
	}
	for i := range int32(Named) {
		r.Count(i+1, Succeeded, 5) // the busiest
	}
	rows := r.take()
	if len(rows) != Named+1 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		f, err := Decode(row.Data)
		if err != nil {
			t.Fatal(err)
		}
		switch want := int64(6); {
		case row.Tenant == Total && f.Of(Succeeded) != tenants+5*Named:
			t.Errorf("the sum is %d", f.Of(Succeeded))
		case row.Tenant != Total && f.Of(Succeeded) != want:
			t.Errorf("tenant %d has %d and a row", row.Tenant, f.Of(Succeeded))
		}
	}
}
