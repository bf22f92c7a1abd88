package figures

import (
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/figures"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store/figures/sql"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func data(n int64) []byte {
	f := &figures.Figures{}
	f.Set(figures.Succeeded, n)
	return f.Encode()
}

// TestFiguresAreReadFromAllDatabases takes the table of one database away, which is like a server
// that does not answer: its intervals go elsewhere, and a reader is told.
func TestFiguresAreReadFromAllDatabases(t *testing.T) {
	t.Parallel()
	c := storetest.Open(t)
	s, every := New(c), task.Instant(figures.Every.Milliseconds())
	begin := task.At(time.Now().Add(-10*time.Minute)) / (16 * every) * 16 * every
	write := func(i int, process int64) {
		t.Helper()
		rows := []figures.Row{{Tenant: figures.Total, Data: data(3)}, {Tenant: 5, Data: data(1)}, {Tenant: 6, Data: data(2)}}
		for range 2 { // repeating it changes nothing
			if err := s.Write(t.Context(), begin+task.Instant(i)*every, process, rows); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 20 {
		write(i, 1)
		write(i, 2)
	}
	if _, err := c.Pool(3).Exec(t.Context(), "ALTER TABLE figure RENAME TO hidden"); err != nil {
		t.Fatal(err)
	}
	write(35, 1) // 35 % 16 = 3
	rows, missing, err := s.Of(t.Context(), []int32{5}, begin)
	if err != nil || len(missing) != 1 || missing[0] != 3 {
		t.Fatalf("%v %v", missing, err)
	}
	processes, newest := figures.Newest(rows)
	of := figures.Collect(rows, processes, newest)
	if sum := of[5].Sum(0, task.Never); len(of) != 1 || len(of[5].Points) != 19 || sum.Of(figures.Succeeded) != 2*18+1 {
		t.Errorf("%d tenants, %d points, sum %d: want whole intervals to be missing", len(of), len(of[5].Points), sum.Of(figures.Succeeded))
	}
	if all, _, err := s.Since(t.Context(), begin+10*every); err != nil || len(all) != 3*(2*9+1) {
		t.Errorf("%d rows of all tenants, %v", len(all), err)
	}
	if active, err := s.Active(t.Context(), begin, 10); err != nil || len(active) != 2 || !active[5] || !active[6] {
		t.Errorf("active: %v, %v", active, err)
	}
	if n, more, err := s.Purge(t.Context(), 4); n != 0 || more || err != nil {
		t.Errorf("purged %d of the last hour, %v", n, err)
	}
	if _, err := c.Pool(4).Exec(t.Context(), "UPDATE figure SET at = at - 4000000"); err != nil {
		t.Fatal(err)
	}
	if n, _, err := s.Purge(t.Context(), 4); n != 6+3 || err != nil {
		t.Errorf("purged %d, %v", n, err)
	}
}

func TestDatabasesOfATimeHaveItsIntervals(t *testing.T) {
	every := task.Instant(figures.Every.Milliseconds())
	for _, c := range []struct {
		from, until task.Instant
		want        []int
	}{
		{14*every + 1, 14*every + 2, []int{14, 15}},
		{14*every + 9999, 16*every + 1, []int{14, 15, 0, 1}},
		{5 * every, 0, []int{5, 6}},
		{0, 1000 * every, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
	} {
		got := databasesOf(c.from, c.until)
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("of %d to %d: %v, want %v", c.from, c.until, got, c.want)
		}
	}
}

func TestEveryStatementIsUsed(t *testing.T) {
	if unused := sql.Unused(); len(unused) > 0 {
		t.Errorf("unused: %v", unused)
	}
}
