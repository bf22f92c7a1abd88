package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (c *ctl) calendarCommand() *cobra.Command {
	return group("calendar", "Days on which tasks fire, or do not", c.calendarCreate(), c.calendarGet(), c.calendarList(), c.calendarUpdate(), c.calendarDelete())
}

// calendarFlags are the flags of the content of a calendar.
type calendarFlags struct {
	file, zone   string
	days, ranges []string
	version      int32
}

func (f *calendarFlags) flags(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	s.StringVar(&f.file, "file", "", "iCalendar file whose events are the ranges; - for standard input")
	s.StringArrayVar(&f.days, "day", nil, "day, or first and last day: 2026-12-25, 2026-12-24/2026-12-31; may be repeated")
	s.StringArrayVar(&f.ranges, "range", nil, "start and end, as instants: 2026-12-24T12:00:00Z/2026-12-24T20:00:00Z; may be repeated")
	s.StringVar(&f.zone, "time-zone", "", "IANA time zone of --day, and of times in --file that name none (default UTC, or that of the calendar)")
}

// read returns the calendar that the flags describe. One without content is more likely a
// forgotten flag than meant.
func (f *calendarFlags) read(cmd *cobra.Command, name string) (*perceptorv1.Calendar, error) {
	if len(f.days) == 0 && len(f.ranges) == 0 && f.file == "" {
		return nil, cli.Usagef("the calendar would be empty: name what it contains with --day, --range or --file")
	}
	c := &perceptorv1.Calendar{Name: name, TimeZone: f.zone, Days: f.days}
	for _, text := range f.ranges {
		r, err := rangeOf(text)
		if err != nil {
			return nil, err
		}
		c.Ranges = append(c.Ranges, r)
	}
	if f.file == "" {
		return c, nil
	}
	text, err := readFile(cmd.InOrStdin(), "file", f.file)
	c.Icalendar = string(text)
	return c, err
}

func rangeOf(text string) (*perceptorv1.Calendar_Range, error) {
	from, until, ok := strings.Cut(text, "/")
	if !ok {
		return nil, cli.Usagef("--range: %q is not START/END", text)
	}
	r := &perceptorv1.Calendar_Range{}
	for _, end := range []struct {
		text string
		to   **timestamppb.Timestamp
	}{{from, &r.StartTime}, {until, &r.EndTime}} {
		at, err := instant("range", end.text)
		if err != nil {
			return nil, err
		}
		*end.to = at
	}
	return r, nil
}

func (c *ctl) calendarCreate() *cobra.Command {
	f := &calendarFlags{}
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Store a calendar", Args: cobra.ExactArgs(1),
		Example: "  perceptorctl calendar create holidays --file holidays.ics --time-zone Europe/Berlin\n" +
			"  perceptorctl calendar create closed --day 2026-12-24/2026-12-31 --day 2027-01-06",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.writeCalendar(cmd, f, args[0], func(ctx context.Context, api perceptorv1.CalendarServiceClient, x *perceptorv1.Calendar) (*perceptorv1.Calendar, error) {
				return api.CreateCalendar(ctx, &perceptorv1.CreateCalendarRequest{Calendar: x})
			})
		},
	}
	f.flags(cmd)
	return cmd
}

func (c *ctl) calendarUpdate() *cobra.Command {
	f := &calendarFlags{}
	cmd := &cobra.Command{
		Use: "update NAME", Short: "Replace the content of a calendar", Args: cobra.ExactArgs(1),
		Long: "Replace the whole content of a calendar. Its time zone stays unless --time-zone is given.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.writeCalendar(cmd, f, args[0], func(ctx context.Context, api perceptorv1.CalendarServiceClient, x *perceptorv1.Calendar) (*perceptorv1.Calendar, error) {
				return api.UpdateCalendar(ctx, &perceptorv1.UpdateCalendarRequest{Name: args[0], Calendar: x, Version: f.version})
			})
		},
	}
	f.flags(cmd)
	cmd.Flags().Int32Var(&f.version, "if-version", 0, "fail unless the calendar has this version (default any)")
	return cmd
}

// writeCalendar reads the flags, calls write and shows the calendar without its ranges.
func (c *ctl) writeCalendar(cmd *cobra.Command, f *calendarFlags, name string, write func(context.Context, perceptorv1.CalendarServiceClient, *perceptorv1.Calendar) (*perceptorv1.Calendar, error)) error {
	x, err := f.read(cmd, name)
	if err != nil {
		return err
	}
	return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
		done, err := write(ctx, perceptorv1.NewCalendarServiceClient(conn), x)
		if err != nil {
			return err
		}
		return c.show(cmd, done, func() *table { return calendarTable([]*perceptorv1.Calendar{done}) })
	})
}

func (c *ctl) calendarGet() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show the ranges of a calendar", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				x, err := perceptorv1.NewCalendarServiceClient(conn).GetCalendar(ctx, &perceptorv1.GetCalendarRequest{Name: args[0]})
				if err != nil {
					return err
				}
				return c.show(cmd, x, func() *table {
					t := &table{head: []string{"START", "END"}}
					for _, r := range x.Ranges {
						t.add(timeCell(r.StartTime), timeCell(r.EndTime))
					}
					return t
				})
			})
		},
	}
}

func (c *ctl) calendarList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the calendars of the tenant", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				all, err := perceptorv1.NewCalendarServiceClient(conn).ListCalendars(ctx, &perceptorv1.ListCalendarsRequest{})
				if err != nil {
					return err
				}
				return c.show(cmd, all, func() *table { return calendarTable(all.Calendars) })
			})
		},
	}
}

func calendarTable(list []*perceptorv1.Calendar) *table {
	t := &table{head: []string{"NAME", "VERSION", "RANGES", "TIME ZONE", "UPDATED", "EXPANDED UNTIL"}}
	for _, x := range list {
		t.add(x.Name, strconv.Itoa(int(x.Version)), strconv.Itoa(int(x.RangeCount)), x.TimeZone, timeCell(x.UpdateTime), timeCell(x.ExpandedUntilTime))
	}
	return t
}

func (c *ctl) calendarDelete() *cobra.Command {
	r := &perceptorv1.DeleteCalendarRequest{}
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete a calendar", Args: cobra.ExactArgs(1),
		Long: "Delete a calendar. No run of the tasks that name it is claimed until there is a calendar with its name\nagain, or the tasks are edited.",
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Name = args[0]
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				if _, err := perceptorv1.NewCalendarServiceClient(conn).DeleteCalendar(ctx, r); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "calendar %s deleted\n", r.Name)
				return err
			})
		},
	}
	cmd.Flags().Int32Var(&r.Version, "if-version", 0, "fail unless the calendar has this version (default any)")
	return cmd
}
