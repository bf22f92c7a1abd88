package server

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	createCalendar = perceptorv1.CalendarService_CreateCalendar_FullMethodName
	updateCalendar = perceptorv1.CalendarService_UpdateCalendar_FullMethodName
	getCalendar    = perceptorv1.CalendarService_GetCalendar_FullMethodName
	listCalendars  = perceptorv1.CalendarService_ListCalendars_FullMethodName
	deleteCalendar = perceptorv1.CalendarService_DeleteCalendar_FullMethodName
)

// fakeCalendars keeps calendars of one tenant in memory.
type fakeCalendars struct {
	mu  sync.Mutex
	all map[string]*task.DayCalendar
	// before is when the last replacement had to be stored.
	before task.Instant
}

func (f *fakeCalendars) Create(_ context.Context, _ int32, c *task.DayCalendar) error {
	return f.put(c, func(old *task.DayCalendar) bool { return old == nil }, task.ReasonCalendarExists)
}

func (f *fakeCalendars) Replace(_ context.Context, _ int32, c *task.DayCalendar, version int32, before task.Instant) error {
	f.before = before
	return f.put(c, func(old *task.DayCalendar) bool { return old != nil && (version == 0 || version == old.Version) }, task.ReasonVersionMismatch)
}

func (f *fakeCalendars) put(c *task.DayCalendar, allowed func(old *task.DayCalendar) bool, reason task.ErrorReason) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.all[c.Name]
	if !allowed(old) {
		return task.Errorf(reason, "no")
	}
	if c.Version = 1; old != nil {
		c.Version += old.Version
	}
	c.UpdatedAt = fakeNow
	f.all[c.Name] = c
	return nil
}

func (f *fakeCalendars) Delete(_ context.Context, _ int32, name string, _ int32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, name)
	return nil
}

func (f *fakeCalendars) Get(_ context.Context, _ int32, name string) (*task.DayCalendar, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.all[name]; c != nil {
		return c, nil
	}
	return nil, task.Errorf(task.ReasonCalendarNotFound, "no")
}

func (f *fakeCalendars) List(context.Context, int32) (list []*task.DayCalendar, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.all {
		list = append(list, c)
	}
	return list, nil
}

func (f *fakeCalendars) Load(context.Context, int32, []string) (string, error) { return "", nil }

func (f *fakeCalendars) Windows(_ int32, exclude, only []string) (*task.Windows, task.MissingCalendar) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lists [2][][]task.Range
	for i, names := range [][]string{exclude, only} {
		for _, name := range names {
			if f.all[name] == nil {
				return nil, task.MissingCalendar{Name: name}
			}
			lists[i] = append(lists[i], slices.Clone(f.all[name].Ranges))
		}
	}
	return task.NewWindows(lists[0], lists[1]), task.MissingCalendar{}
}

func withCalendars(t *testing.T) *bundle {
	return setupWith(t, func(d *Deps) { d.Calendars = &fakeCalendars{all: map[string]*task.DayCalendar{}} })
}

func TestACalendarIsTheSumOfItsContents(t *testing.T) {
	b := withCalendars(t)
	var got perceptorv1.Calendar
	c := &perceptorv1.Calendar{
		Name: "closed", TimeZone: "Europe/Berlin", Days: []string{"2026-12-25/2026-12-26"},
		Icalendar: "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;VALUE=DATE:20261227\nEND:VEVENT\nEND:VCALENDAR\n",
		Ranges:    []*perceptorv1.Calendar_Range{{StartTime: utc("2027-01-01T12:00:00Z"), EndTime: utc("2027-01-01T13:00:00Z")}},
	}
	if a := b.overHTTP("acme-secret", createCalendar, &perceptorv1.CreateCalendarRequest{Calendar: c}, &got); a.http != http.StatusOK {
		t.Fatal(a.message)
	}
	if a := b.overGRPC("acme-secret", getCalendar, &perceptorv1.GetCalendarRequest{Name: "closed"}, &got); a.code != codes.OK {
		t.Fatal(a.message)
	}
	var ranges []string
	for _, r := range got.Ranges {
		ranges = append(ranges, r.StartTime.AsTime().Format(time.RFC3339)+"/"+r.EndTime.AsTime().Format(time.RFC3339))
	}
	if want := "2026-12-24T23:00:00Z/2026-12-27T23:00:00Z 2027-01-01T12:00:00Z/2027-01-01T13:00:00Z"; strings.Join(ranges, " ") != want ||
		got.RangeCount != 2 || got.Version != 1 || got.TimeZone != "Europe/Berlin" || got.ExpandedUntilTime != nil || got.Days != nil {
		t.Errorf("got %v, want %s", &got, want)
	}
	change := &perceptorv1.UpdateCalendarRequest{Name: "closed", Version: 1, Calendar: &perceptorv1.Calendar{
		Icalendar: "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;VALUE=DATE:20261225\nRRULE:FREQ=YEARLY\nEND:VEVENT\nEND:VCALENDAR\n",
	}}
	if a := b.overHTTP("acme-secret", updateCalendar, change, &got); a.http != http.StatusOK || got.Version != 2 || got.RangeCount < 4 || got.ExpandedUntilTime == nil {
		t.Errorf("%s: %v", a.message, &got)
	}
	var list perceptorv1.ListCalendarsResponse
	if a := b.overHTTP("acme-secret", listCalendars, &perceptorv1.ListCalendarsRequest{}, &list); a.http != http.StatusOK || len(list.Calendars) != 1 {
		t.Errorf("%s: %v", a.message, &list)
	}
	if a := b.overHTTP("acme-secret", deleteCalendar, &perceptorv1.DeleteCalendarRequest{Name: "closed"}, &perceptorv1.DeleteCalendarResponse{}); a.http != http.StatusOK {
		t.Error(a.message)
	}
	if a := b.overHTTP("acme-secret", getCalendar, &perceptorv1.GetCalendarRequest{Name: "closed"}, &got); a.http != http.StatusNotFound {
		t.Errorf("after its deletion: %d", a.http)
	}
}

// TestAChangeOfACalendarMovesTasks checks that the operation has what has changed, that a repeated
// call creates none, and that a change is stored without one if there are too many. A change with an
// operation must be stored before that begins.
func TestAChangeOfACalendarMovesTasks(t *testing.T) {
	calendars := &fakeCalendars{all: map[string]*task.DayCalendar{}}
	b := setupWith(t, func(d *Deps) { d.Calendars = calendars })
	days := func(days ...string) *perceptorv1.Calendar { return &perceptorv1.Calendar{Name: "closed", Days: days} }
	var got perceptorv1.Calendar
	if a := b.overHTTP("acme-secret", createCalendar, &perceptorv1.CreateCalendarRequest{Calendar: days("2198-12-25", "2198-12-26")}, &got); a.http != http.StatusOK {
		t.Fatal(a.message)
	}
	for _, c := range []struct {
		days    []string
		full    bool
		calls   int
		changed string
		before  task.Instant
	}{
		{[]string{"2198-12-25"}, false, 1, "2198-12-26", storeBefore},
		{[]string{"2198-12-25"}, false, 1, "2198-12-26", task.Never},
		{[]string{"2198-12-24", "2198-12-25", "2001-01-01"}, false, 2, "2198-12-24", storeBefore},
		{[]string{"2198-12-24"}, true, 2, "2198-12-24", task.Never},
	} {
		b.bulk.full = c.full
		if a := b.overHTTP("acme-secret", updateCalendar, &perceptorv1.UpdateCalendarRequest{Name: "closed", Calendar: days(c.days...)}, &got); a.http != http.StatusOK {
			t.Fatal(a.message)
		}
		if len(b.bulk.calls) != c.calls || len(b.bulk.changed) != 1 || b.bulk.changed[0].From.Time().Format(time.DateOnly) != c.changed {
			t.Errorf("%v: %v of %v", c.days, b.bulk.calls, b.bulk.changed)
		}
		if calendars.before != c.before {
			t.Errorf("%v: to be stored before %d, want %d", c.days, calendars.before, c.before)
		}
	}
}

func TestACalendarKeepsItsZoneUnlessAnotherOneIsGiven(t *testing.T) {
	b := withCalendars(t)
	var got perceptorv1.Calendar
	create := &perceptorv1.CreateCalendarRequest{Calendar: &perceptorv1.Calendar{Name: "holidays", TimeZone: "Europe/Berlin", Days: []string{"2026-12-25"}}}
	if a := b.overHTTP("acme-secret", createCalendar, create, &got); a.http != http.StatusOK {
		t.Fatal(a.message)
	}
	for _, c := range []struct{ given, kept, begins string }{
		{"", "Europe/Berlin", "2026-12-25T23:00:00Z"},
		{"UTC", "UTC", "2026-12-26T00:00:00Z"},
	} {
		change := &perceptorv1.UpdateCalendarRequest{Name: "holidays", Calendar: &perceptorv1.Calendar{TimeZone: c.given, Days: []string{"2026-12-26"}}}
		a := b.overHTTP("acme-secret", updateCalendar, change, &got)
		if a.http != http.StatusOK || got.TimeZone != c.kept || len(got.Ranges) != 1 || !got.Ranges[0].StartTime.AsTime().Equal(utc(c.begins).AsTime()) {
			t.Errorf("%q: %s %v, want %s from %s", c.given, a.message, &got, c.kept, c.begins)
		}
	}
	gone := &perceptorv1.UpdateCalendarRequest{Name: "unknown", Calendar: &perceptorv1.Calendar{Days: []string{"2026-12-26"}}}
	if a := b.overHTTP("acme-secret", updateCalendar, gone, &got); a.http != http.StatusNotFound {
		t.Errorf("a calendar that does not exist: %d %s", a.http, a.message)
	}
}

func utc(text string) *timestamppb.Timestamp {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return timestamppb.New(at)
}

func TestABadCalendarIsRefusedWithItsFields(t *testing.T) {
	b := withCalendars(t)
	for name, c := range map[string]struct {
		calendar *perceptorv1.Calendar
		field    string
	}{
		"nothing":         {nil, "calendar.name"},
		"a slash":         {&perceptorv1.Calendar{Name: "a/b"}, "calendar.name"},
		"a zone":          {&perceptorv1.Calendar{Name: "a", TimeZone: "Mars/Phobos"}, "calendar.time_zone"},
		"a day":           {&perceptorv1.Calendar{Name: "a", Days: []string{"25.12.2026"}}, "calendar.days"},
		"a file":          {&perceptorv1.Calendar{Name: "a", Icalendar: "<html>"}, "calendar.icalendar"},
		"a large file":    {&perceptorv1.Calendar{Name: "a", Icalendar: strings.Repeat("x", maxICalendarBytes+1)}, "calendar.icalendar"},
		"half a range":    {&perceptorv1.Calendar{Name: "a", Ranges: []*perceptorv1.Calendar_Range{{StartTime: utc("2027-01-01T12:00:00Z")}}}, "calendar.ranges"},
		"a range":         {&perceptorv1.Calendar{Name: "a", Ranges: []*perceptorv1.Calendar_Range{{StartTime: utc("2027-01-02T12:00:00Z"), EndTime: utc("2027-01-01T12:00:00Z")}}}, "calendar.ranges.end_time"},
		"too many ranges": {&perceptorv1.Calendar{Name: "a", Ranges: make([]*perceptorv1.Calendar_Range, task.MaxCalendarRanges+1)}, "calendar.ranges"},
	} {
		a := b.overGRPC("acme-secret", createCalendar, &perceptorv1.CreateCalendarRequest{Calendar: c.calendar}, &perceptorv1.Calendar{})
		if a.code != codes.InvalidArgument || !strings.Contains(a.message, c.field) {
			t.Errorf("%s: %s %q, want a fault of %s", name, a.code, a.message, c.field)
		}
	}
	a := b.overGRPC("acme-secret", updateCalendar, &perceptorv1.UpdateCalendarRequest{Name: "a", Calendar: &perceptorv1.Calendar{Name: "b"}, Version: -1}, &perceptorv1.Calendar{})
	expectFaults(t, a, "", []string{"calendar.name", "version"}, "cannot change")
}

func TestAPreviewLeavesClosedInstantsOut(t *testing.T) {
	b := withCalendars(t)
	create := &perceptorv1.CreateCalendarRequest{Calendar: &perceptorv1.Calendar{Name: "closed", Days: []string{"2030-01-02/2030-01-04"}}}
	if a := b.overGRPC("acme-secret", createCalendar, create, &perceptorv1.Calendar{}); a.code != codes.OK {
		t.Fatal(a.message)
	}
	daily := &perceptorv1.Task{Type: perceptorv1.Task_NON_BLOCKING, BeginTime: utc("2030-01-01T09:00:00Z"), Schedule: every(24 * time.Hour), ExcludeCalendars: []string{"closed"}}
	var got perceptorv1.PreviewScheduleResponse
	if a := b.overGRPC("acme-secret", perceptorv1.TaskService_PreviewSchedule_FullMethodName, &perceptorv1.PreviewScheduleRequest{Task: daily, Count: 3}, &got); a.code != codes.OK {
		t.Fatal(a.message)
	}
	var days []int
	for _, at := range got.Instants {
		days = append(days, at.AsTime().Day())
	}
	if !slices.Equal(days, []int{1, 5, 6}) {
		t.Errorf("instants on the days %d", days)
	}
	daily.ExcludeCalendars, daily.OnlyCalendars = nil, []string{"no such"}
	a := b.overGRPC("acme-secret", perceptorv1.TaskService_PreviewSchedule_FullMethodName, &perceptorv1.PreviewScheduleRequest{Task: daily}, &got)
	if a.code != codes.InvalidArgument || !strings.Contains(a.message, `task.only_calendars[0]: "no such"`) {
		t.Errorf("an unknown calendar: %s %q", a.code, a.message)
	}
}
