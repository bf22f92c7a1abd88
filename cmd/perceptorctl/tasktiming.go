package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/duration"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// timingFlags are the flags of a task's cron schedule, of its misfire and overlap
// policies and its spread.
type timingFlags struct {
	cron, zone, dialect, misfire, overlap string
	grace, spread                         time.Duration
	limit                                 int32
	exclude, only                         []string
}

// The values of --dialect, of --misfire and of --overlap.
var (
	dialects = []string{"standard", "quartz", "named", "rrule"}
	misfires = []string{"fire-once", "fire-all", "skip"}
	overlaps = []string{"allow", "skip", "buffer-one"}
)

func (t *timingFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&t.cron, "cron", "", "cron expression instead of --interval: '30 6 * * MON-FRI', @daily, '@every 90m', 'DTSTART:20260105T090000 RRULE:FREQ=WEEKLY'")
	f.StringVar(&t.zone, "tz", "", "IANA time zone of --cron (default UTC)")
	f.StringVar(&t.dialect, "dialect", "", "dialect of --cron: standard, quartz, named or rrule (default standard, named for @, or rrule for DTSTART)")
	f.StringVar(&t.misfire, "misfire", "", "misfire policy: fire-once, fire-all or skip (default fire-once)")
	duration.Var(f, &t.grace, "misfire-grace", 0, "how late an instant may fire with --misfire skip (default 1m)")
	f.Int32Var(&t.limit, "misfire-limit", 0, "most missed instants that fire with --misfire fire-all (default 1000)")
	f.StringVar(&t.overlap, "overlap", "", "what an instant of a non-blocking task does while an earlier run is open: allow, skip or buffer-one (default allow)")
	f.StringArrayVar(&t.exclude, "exclude-calendar", nil, "calendar in which the task does not fire; may be repeated")
	f.StringArrayVar(&t.only, "only-calendar", nil, "calendar to which the task is limited; may be repeated")
	duration.Var(f, &t.spread, "spread", 0, "window over which the instants of like tasks are distributed (default none)")
	completes(cmd, "dialect", dialects...)
	completes(cmd, "misfire", misfires...)
	completes(cmd, "overlap", overlaps...)
}

// read puts the flags that were given into a task. An update may be of the time zone
// or the dialect alone.
func (t *timingFlags) read(f *pflag.FlagSet, out *perceptorv1.Task, update bool) error {
	if t.cron == "" && (t.zone != "" || t.dialect != "") && !update {
		return cli.Usagef("--tz and --dialect need --cron, which is missing")
	}
	if t.cron != "" || t.zone != "" || t.dialect != "" {
		if out.Schedule != nil {
			return cli.Usagef("--interval and --cron (with --tz and --dialect) exclude each other")
		}
		dialect, ok := perceptorv1.Cron_Dialect_value[enumWord(t.dialect)]
		if t.dialect != "" && (!ok || dialect == 0) {
			return cli.Usagef("--dialect: %q is not one of %s", t.dialect, strings.Join(dialects, ", "))
		}
		out.Schedule = &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: t.cron, TimeZone: t.zone, Dialect: perceptorv1.Cron_Dialect(dialect)}}
	}
	policy, ok := perceptorv1.Task_MisfirePolicy_value[enumWord(t.misfire)]
	if t.misfire != "" && (!ok || policy == 0) {
		return cli.Usagef("--misfire: %q is not one of %s", t.misfire, strings.Join(misfires, ", "))
	}
	out.MisfirePolicy, out.MisfireLimit = perceptorv1.Task_MisfirePolicy(policy), t.limit
	if f.Changed("misfire-grace") {
		out.MisfireGrace = durationpb.New(t.grace)
	}
	overlap, ok := perceptorv1.Task_Overlap_Policy_value[enumWord(t.overlap)]
	if t.overlap != "" && (!ok || overlap == 0) {
		return cli.Usagef("--overlap: %q is not one of %s", t.overlap, strings.Join(overlaps, ", "))
	}
	out.Overlap = perceptorv1.Task_Overlap_Policy(overlap)
	out.ExcludeCalendars, out.OnlyCalendars = t.exclude, t.only
	out.Spread = orDefault(t.spread)
	return nil
}

// scheduleCell is the interval or the expression of a task.
func scheduleCell(t *perceptorv1.Task) string {
	if c := t.GetCron(); c != nil {
		return c.Expression + " (" + c.Dialect.String() + ", " + c.TimeZone + ")"
	}
	return durationCell(t.GetInterval())
}

func (c *ctl) taskPreview() *cobra.Command {
	a := &addFlags{}
	r := &perceptorv1.PreviewScheduleRequest{}
	var after string
	cmd := &cobra.Command{
		Use: "preview", Short: "Show when a task would fire, without adding it", Args: cobra.NoArgs,
		Long:    "Shows when a task would fire, without adding it.\n\nThe values of H in an expression, and the instants of a spread, follow from the id of a task. Without --task-id they are those of an example: a task that is added has others.",
		Example: "  perceptorctl task preview --type non-blocking --cron '0 0 12 LW * ?' --dialect quartz --tz Asia/Shanghai",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if r.Task, err = a.read(cmd); err != nil {
				return err
			}
			if r.AfterTime, err = instant("after", after); err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				answer, err := perceptorv1.NewTaskServiceClient(conn).PreviewSchedule(ctx, r)
				if err != nil {
					return err
				}
				return c.show(cmd, answer, func() *table {
					t := &table{head: []string{"INSTANT"}}
					for _, at := range answer.Instants {
						t.add(timeCell(at))
					}
					return t
				})
			})
		},
	}
	a.flags(cmd)
	cmd.Flags().StringVar(&after, "after", "", "show instants after this one (default: from --begin)")
	cmd.Flags().Int32Var(&r.Count, "count", 10, "most instants to show")
	cmd.Flags().Int64Var(&r.TaskId, "task-id", 0, "task id from which H and --spread are computed (default none: those of an example)")
	return cmd
}
