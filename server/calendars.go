package server

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/schedule/ranges"
	"github.com/perceptor/perceptor/task"
)

const (
	// calendarAhead is how far ahead recurring events are expanded, and calendarBehind how
	// far back: instants that are still to be caught up may lie there.
	calendarAhead  = 5 * 366 * 24 * time.Hour
	calendarBehind = 366 * 24 * time.Hour
	// maxICalendarBytes bounds an iCalendar file, maxDays a list of days.
	maxICalendarBytes = 1 << 20
	maxCalendarDays   = task.MaxCalendarRanges
)

// Calendars stores the day calendars of tenants. All methods may be called concurrently.
type Calendars interface {
	// Create stores a new calendar and sets its version. [task.AlreadyExists]: there is one
	// with its name. [task.ResourceExhausted]: the tenant has too many.
	Create(ctx context.Context, tenant int32, c *task.DayCalendar) error
	// Replace gives a calendar another content, and sets its version. ifVersion is the
	// version that it must have, or 0. It stores nothing from the instant before on, by the clock of the
	// database: [task.Unavailable]. [task.NotFound], [task.Aborted].
	Replace(ctx context.Context, tenant int32, c *task.DayCalendar, ifVersion int32, before task.Instant) error
	Delete(ctx context.Context, tenant int32, name string, ifVersion int32) error
	Get(ctx context.Context, tenant int32, name string) (*task.DayCalendar, error)
	// List returns all calendars of a tenant by name, without their ranges.
	List(ctx context.Context, tenant int32) ([]*task.DayCalendar, error)
	// Load makes the calendars known to Windows and to the store of tasks. It returns the
	// first one that does not exist.
	Load(ctx context.Context, tenant int32, names []string) (missing string, err error)
	// Windows returns the windows of a task that names known calendars.
	Windows(tenant int32, exclude, only []string) (*task.Windows, task.MissingCalendar)
}

// loadCalendars reads the calendars that specs name. The store refuses those that do not
// exist.
func (s *taskService) loadCalendars(ctx context.Context, tenant int32, specs ...task.Spec) error {
	return loadCalendars(ctx, s.calendars, tenant, specs)
}

func loadCalendars(ctx context.Context, calendars Calendars, tenant int32, specs []task.Spec) error {
	for i := range specs {
		if !specs[i].UsesCalendars() || calendars == nil {
			continue
		}
		if _, err := calendars.Load(ctx, tenant, specs[i].CalendarNames()); err != nil {
			return err
		}
	}
	return nil
}

// setWindows sets the windows of the spec of a preview.
func (s *taskService) setWindows(ctx context.Context, tenant int32, spec *task.Spec) error {
	if !spec.UsesCalendars() {
		return nil
	}
	missing := task.MissingCalendar{Name: spec.CalendarNames()[0]}
	if s.calendars != nil {
		if err := s.loadCalendars(ctx, tenant, *spec); err != nil {
			return err
		}
		spec.Windows, missing = s.calendars.Windows(tenant, spec.Exclude, spec.Only)
	}
	if missing.Name != "" {
		return invalid(under("task", []task.Fault{task.CalendarFault(&spec.Terms, missing.Name)}))
	}
	return nil
}

// calendarService implements the API's CalendarService.
type calendarService struct {
	perceptorv1.UnimplementedCalendarServiceServer
	// store may be nil: no call succeeds.
	store Calendars
	bulk  Bulk
	now   func(ctx context.Context) (task.Instant, error)
}

// available returns an error if the server has no calendars.
func (s *calendarService) available() error {
	if s.store == nil {
		return task.Errorf(task.ReasonUnknownMethod, "this server has no calendars")
	}
	return nil
}

func (s *calendarService) CreateCalendar(ctx context.Context, r *perceptorv1.CreateCalendarRequest) (*perceptorv1.Calendar, error) {
	c, err := s.read(ctx, r.Calendar)
	if err != nil {
		return nil, err
	}
	if err := s.store.Create(ctx, tenantOf(ctx).ID, c); err != nil {
		return nil, err
	}
	return calendarReply(c), nil
}

func (s *calendarService) UpdateCalendar(ctx context.Context, r *perceptorv1.UpdateCalendarRequest) (*perceptorv1.Calendar, error) {
	if faults := present(calendarName("name", r.Name), calendarVersion(r.Version), sameName(r)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	content := proto.CloneOf(r.Calendar)
	if content == nil {
		content = &perceptorv1.Calendar{}
	}
	content.Name = r.Name
	if err := s.available(); err != nil {
		return nil, err
	}
	old, missing := s.store.Get(ctx, tenantOf(ctx).ID, r.Name)
	if missing == nil && content.TimeZone == "" {
		content.TimeZone = old.Zone
	}
	c, err := s.read(ctx, content)
	if err != nil {
		return nil, err
	}
	if missing != nil {
		return nil, missing
	}
	before, err := s.recompute(ctx, old, c, r.Version)
	if err != nil {
		return nil, err
	}
	if err := s.store.Replace(ctx, tenantOf(ctx).ID, c, r.Version, before); err != nil {
		return nil, err
	}
	return calendarReply(c), nil
}

// recompute creates the operation that moves tasks to the instants that the new content of a
// calendar opens, if it may open some. It is created first, because a repeated call finds nothing
// that has changed. A tenant that has too many operations can change its calendars without it:
// the tasks find the instants after their next runs. It returns before when the change must be stored.
func (s *calendarService) recompute(ctx context.Context, old, c *task.DayCalendar, ifVersion int32) (before task.Instant, err error) {
	tenant := tenantOf(ctx).ID
	now, err := s.now(ctx)
	if err != nil {
		return 0, err
	}
	changed := task.ChangedRanges(old.Ranges, c.Ranges, now)
	if len(changed) == 0 || ifVersion != 0 && ifVersion != old.Version {
		return task.Never, nil
	}
	before, err = s.bulk.RecomputeCalendar(ctx, tenant, c.Name, changed, identityOf(ctx).TokenID)
	if e := new(task.Error); errors.As(err, &e) && e.Reason == task.ReasonTooManyOperations {
		return task.Never, nil
	}
	return before, err
}

func (s *calendarService) GetCalendar(ctx context.Context, r *perceptorv1.GetCalendarRequest) (*perceptorv1.Calendar, error) {
	if f := calendarName("name", r.Name); f != nil {
		return nil, invalid([]task.Fault{*f})
	}
	if err := s.available(); err != nil {
		return nil, err
	}
	c, err := s.store.Get(ctx, tenantOf(ctx).ID, r.Name)
	if err != nil {
		return nil, err
	}
	return calendarReply(c), nil
}

func (s *calendarService) ListCalendars(ctx context.Context, _ *perceptorv1.ListCalendarsRequest) (*perceptorv1.ListCalendarsResponse, error) {
	if err := s.available(); err != nil {
		return nil, err
	}
	list, err := s.store.List(ctx, tenantOf(ctx).ID)
	if err != nil {
		return nil, err
	}
	reply := &perceptorv1.ListCalendarsResponse{}
	for _, c := range list {
		reply.Calendars = append(reply.Calendars, calendarReply(c))
	}
	return reply, nil
}

func (s *calendarService) DeleteCalendar(ctx context.Context, r *perceptorv1.DeleteCalendarRequest) (*perceptorv1.DeleteCalendarResponse, error) {
	if faults := present(calendarName("name", r.Name), calendarVersion(r.Version)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	if err := s.available(); err != nil {
		return nil, err
	}
	return &perceptorv1.DeleteCalendarResponse{}, s.store.Delete(ctx, tenantOf(ctx).ID, r.Name, r.Version)
}

// read turns the content of a calendar into ranges.
func (s *calendarService) read(ctx context.Context, c *perceptorv1.Calendar) (*task.DayCalendar, error) {
	if c == nil {
		c = &perceptorv1.Calendar{}
	}
	if err := s.available(); err != nil {
		return nil, err
	}
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	r := &reader{}
	out := r.calendar(c, now)
	if len(r.faults) > 0 {
		return nil, invalid(under("calendar", r.faults))
	}
	return out, nil
}

func (r *reader) calendar(c *perceptorv1.Calendar, now task.Instant) *task.DayCalendar {
	out := &task.DayCalendar{Name: c.Name, Zone: c.TimeZone, ExpandedUntil: task.Never}
	if f := calendarName("name", c.Name); f != nil {
		r.faults = append(r.faults, *f)
	}
	if out.Zone == "" {
		out.Zone = "UTC"
	}
	if err := schedule.CheckZone(out.Zone); err != nil {
		r.fault("time_zone", "%v", err)
		return out
	}
	all := append(r.ranges(c.Ranges), r.days(c.Days, out.Zone)...)
	if c.Icalendar != "" {
		until := now.Add(calendarAhead)
		all = append(all, r.iCalendar(c.Icalendar, out.Zone, now.Add(-calendarBehind), until)...)
		if strings.Contains(c.Icalendar, "RRULE") {
			out.ExpandedUntil = until
		}
	}
	out.Ranges = task.MergeRanges(all)
	if out.Count = len(out.Ranges); out.Count > task.MaxCalendarRanges {
		r.fault("ranges", "the calendar has %d ranges; at most %d are allowed", out.Count, task.MaxCalendarRanges)
	}
	return out
}

func (r *reader) days(days []string, zone string) []task.Range {
	if len(days) > maxCalendarDays {
		r.fault("days", "has %d entries; at most %d are allowed", len(days), maxCalendarDays)
		return nil
	}
	list, err := ranges.Days(days, zone)
	if err != nil {
		r.fault("days", "%v", err)
	}
	return list
}

func (r *reader) iCalendar(text, zone string, from, until task.Instant) []task.Range {
	if len(text) > maxICalendarBytes {
		r.fault("icalendar", "has %d bytes; at most %d are allowed", len(text), maxICalendarBytes)
		return nil
	}
	list, err := ranges.ICalendar(text, zone, from, until)
	if err != nil {
		r.fault("icalendar", "%v", err)
	}
	return list
}

func (r *reader) ranges(list []*perceptorv1.Calendar_Range) []task.Range {
	if len(list) > task.MaxCalendarRanges {
		r.fault("ranges", "has %d entries; at most %d are allowed", len(list), task.MaxCalendarRanges)
		return nil
	}
	out := make([]task.Range, 0, len(list))
	for _, x := range list {
		from, until := r.between("ranges.start_time", x.GetStartTime(), "ranges.end_time", x.GetEndTime())
		if x.GetStartTime() == nil || x.GetEndTime() == nil {
			r.unlessFaulty(faultf("ranges", "a range has no start_time or no end_time"))
		}
		out = append(out, task.Range{From: from, Until: until})
	}
	return out
}

func calendarName(field, name string) *task.Fault {
	msg := task.NameFault(name, task.MaxCalendarNameBytes)
	if msg == "" && strings.Contains(name, "/") {
		msg = "contains a slash"
	}
	if msg == "" {
		return nil
	}
	f := faultf(field, "%s", msg)
	return &f
}

// sameName returns the fault of an update that gives a calendar another name.
func sameName(r *perceptorv1.UpdateCalendarRequest) *task.Fault {
	if name := r.GetCalendar().GetName(); name != "" && name != r.Name {
		f := faultf("calendar.name", "%q: the name %q cannot change", name, r.Name)
		return &f
	}
	return nil
}

func calendarVersion(version int32) *task.Fault {
	if version >= 0 {
		return nil
	}
	f := faultf("version", "%d is negative", version)
	return &f
}

func calendarReply(c *task.DayCalendar) *perceptorv1.Calendar {
	p := &perceptorv1.Calendar{
		Name: c.Name, TimeZone: c.Zone, RangeCount: int32(c.Count), Version: c.Version,
		UpdateTime: timestamp(c.UpdatedAt), ExpandedUntilTime: timestamp(c.ExpandedUntil),
	}
	for _, r := range c.Ranges {
		p.Ranges = append(p.Ranges, &perceptorv1.Calendar_Range{StartTime: timestamppb.New(r.From.Time()), EndTime: timestamppb.New(r.Until.Time())})
	}
	return p
}
