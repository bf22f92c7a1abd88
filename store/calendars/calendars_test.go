package calendars

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store/calendars/sql"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func day(n task.Instant) []task.Range {
	const long = task.Instant(86_400_000)
	return []task.Range{{From: n * long, Until: (n + 1) * long}}
}

func calendar(name string, n task.Instant) *task.DayCalendar {
	return &task.DayCalendar{Name: name, Zone: "Europe/Berlin", ExpandedUntil: task.Never, Count: 1, Ranges: day(n)}
}

func TestACalendarIsWhatWasStoredLast(t *testing.T) {
	s := New(storetest.Open(t))
	ctx, c := t.Context(), calendar("a/b ü", 1)
	if err := s.Create(ctx, 7, c); err != nil || c.Version != 1 || c.UpdatedAt == 0 {
		t.Fatalf("Create: %+v, %v", c, err)
	}
	if err := s.Create(ctx, 7, calendar(c.Name, 2)); task.CodeOf(err) != task.AlreadyExists {
		t.Errorf("a second calendar with the name: %v", err)
	}
	if err := s.Replace(ctx, 7, calendar(c.Name, 3), 2, task.Never); task.CodeOf(err) != task.Aborted {
		t.Errorf("a replacement of another version: %v", err)
	}
	for _, version := range []int32{0, 1} { // the operation that moves the tasks may have ended
		if err := s.Replace(ctx, 7, calendar(c.Name, 3), version, c.UpdatedAt); task.CodeOf(err) != task.Unavailable {
			t.Errorf("a replacement that comes too late: %v", err)
		}
	}
	second := calendar(c.Name, 3)
	second.ExpandedUntil = 12_345
	if err := s.Replace(ctx, 7, second, 1, task.Never); err != nil || second.Version != 2 || second.UpdatedAt <= c.UpdatedAt {
		t.Errorf("Replace: %+v, %v", second, err)
	}
	got, err := s.Get(ctx, 7, c.Name)
	if err != nil || got.Version != 2 || got.Zone != "Europe/Berlin" || got.ExpandedUntil != 12_345 || got.Count != 1 || !slices.Equal(got.Ranges, day(3)) {
		t.Errorf("Get: %+v, %v", got, err)
	}
	if _, err := s.Get(ctx, 8, c.Name); task.CodeOf(err) != task.NotFound {
		t.Errorf("the calendar of another tenant: %v", err)
	}
	if list, err := s.List(ctx, 7); err != nil || len(list) != 1 || list[0].Count != 1 || list[0].Ranges != nil {
		t.Errorf("List: %+v, %v", list, err)
	}
	if err := s.Delete(ctx, 7, c.Name, 1); task.CodeOf(err) != task.Aborted {
		t.Errorf("a deletion of another version: %v", err)
	}
	if err := s.Create(ctx, 7, calendar("other", 1)); err != nil {
		t.Error(err)
	}
	defer func() {
		err := s.DropTenant(ctx, 7)
		if list, e := s.List(ctx, 7); err != nil || e != nil || len(list) > 0 {
			t.Errorf("after the tenant was dropped: %+v, %v, %v", list, err, e)
		}
	}()
	for _, want := range []task.ErrorCode{0, task.NotFound} {
		if err := s.Delete(ctx, 7, c.Name, 0); (err == nil) != (want == 0) || err != nil && task.CodeOf(err) != want {
			t.Errorf("Delete: %v, want %v", err, want)
		}
	}
}

func TestATenantHasABoundedNumberOfCalendars(t *testing.T) {
	s := New(storetest.Open(t))
	for i := range task.MaxCalendars {
		if err := s.Create(t.Context(), 7, calendar(fmt.Sprint(i), 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Create(t.Context(), 7, calendar("more", 1)); task.CodeOf(err) != task.ResourceExhausted {
		t.Errorf("one too many: %v", err)
	}
	if err := s.Create(t.Context(), 7, calendar("1", 1)); task.CodeOf(err) != task.AlreadyExists {
		t.Errorf("one that is there: %v", err)
	}
	if err := s.Create(t.Context(), 7+task.Databases, calendar("more", 1)); err != nil {
		t.Errorf("one of another tenant: %v", err)
	}
}

// running runs a store until the test ends.
func running(t *testing.T, s *Store) *Store {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// eventually waits until the windows of a store have one day open or closed.
func eventually(t *testing.T, s *Store, what string, want func(w *task.Windows, missing task.MissingCalendar) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if w, missing := s.Windows(7, []string{"a"}, nil); want(w, missing) {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("%s: %+v, %+v", what, w, missing)
		}
	}
}

func TestAProcessLearnsOfCalendarsAndTheirChanges(t *testing.T) {
	cluster := storetest.Open(t)
	writer, reader := New(cluster), running(t, New(cluster))
	closed := func(n task.Instant) func(*task.Windows, task.MissingCalendar) bool {
		return func(w *task.Windows, _ task.MissingCalendar) bool {
			return w != nil && !w.Open(day(n)[0].From) && w.Open(day(n + 1)[0].From)
		}
	}
	gone := func(w *task.Windows, missing task.MissingCalendar) bool {
		return w == nil && missing == task.MissingCalendar{Name: "a"}
	}
	if _, missing := reader.Windows(7, []string{"a"}, nil); missing != (task.MissingCalendar{Name: "a", Reading: true}) {
		t.Errorf("at first: %+v", missing)
	}
	eventually(t, reader, "one that does not exist", gone)
	if err := writer.Create(t.Context(), 7, calendar("a", 1)); err != nil {
		t.Fatal(err)
	}
	eventually(t, reader, "a new one", closed(1))
	if err := writer.Replace(t.Context(), 7, calendar("a", 5), 0, task.Never); err != nil {
		t.Fatal(err)
	}
	eventually(t, reader, "a changed one", closed(5))
	if err := writer.Delete(t.Context(), 7, "a", 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, reader, "a deleted one", gone)
}

func TestTheProcessThatWritesACalendarKnowsItAtOnce(t *testing.T) {
	s := New(storetest.Open(t))
	names := []string{"a"}
	if missing, err := s.Load(t.Context(), 7, names); missing != "a" || err != nil {
		t.Errorf("before: %q, %v", missing, err)
	}
	if err := s.Create(t.Context(), 7, calendar("a", 1)); err != nil {
		t.Fatal(err)
	}
	if missing, err := s.Load(t.Context(), 7, names); missing != "" || err != nil {
		t.Errorf("after: %q, %v", missing, err)
	}
	if w, missing := s.Windows(7, nil, names); missing.Name != "" || !w.Open(day(1)[0].From) || w.Open(day(2)[0].From) {
		t.Errorf("windows: %+v, %+v", w, missing)
	}
}

// TestAnErasureDoesNotTakeAMoveForItsEnd: the database of the calendars is elsewhere, and this process has not heard of it.
func TestAnErasureDoesNotTakeAMoveForItsEnd(t *testing.T) {
	const tenant = 7
	cluster := storetest.Open(t)
	s := New(cluster)
	if err := s.Create(t.Context(), tenant, calendar("holidays", 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Pool(home(tenant)).Exec(t.Context(), "ALTER SCHEMA perceptor_07 RENAME TO perceptor_07_moved_2"); err != nil {
		t.Fatal(err)
	}
	if err := s.DropTenant(t.Context(), tenant); task.CodeOf(err) != task.Unavailable {
		t.Errorf("the calendars are there, and their removal returned %v", err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	s := New(storetest.Open(t))
	big := make([]task.Range, 1000)
	for i := range 3 {
		s.known[key{7, fmt.Sprint(i)}] = &entry{exists: true, ranges: big, used: time.Now().Add(time.Duration(i-9) * time.Minute)}
		s.ranges += len(big)
	}
	s.ranges += maxRanges - 2500 // as if many others were there
	if _, err := s.read(t.Context(), key{7, "new"}); err != nil {
		t.Fatal(err)
	}
	if s.known[key{7, "0"}] != nil || s.known[key{7, "1"}] == nil && s.ranges > maxRanges || s.known[key{7, "new"}] == nil {
		t.Errorf("%d ranges in %d calendars", s.ranges, len(s.known))
	}
	s.known[key{7, "2"}].used = time.Now().Add(-2 * keepUnused)
	if list := s.inUse(); slices.Contains(list, key{7, "2"}) {
		t.Errorf("unused calendars are kept: %v", list)
	}
}

func TestStatements(t *testing.T) {
	if unused := sql.Unused(); len(unused) > 0 {
		t.Errorf("statements that nobody uses: %v", unused)
	}
}
