package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/duration"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (c *ctl) clockCommand() *cobra.Command {
	cmd := group("clock", "Show and move the virtual clock of taskd dev --virtual-clock", c.clockShow(), c.clockAdvance(), c.clockSet())
	cmd.Long = "Show and move the virtual clock of taskd dev --virtual-clock, so that tests do not have to wait.\n" +
		"The commands need an admin token; taskd dev prints one. docs/virtual-clock.md has the rules and an example."
	return cmd
}

func (c *ctl) clockShow() *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Show the time of the clock and the next instant at which something is due", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				clock, err := perceptorv1.NewClockServiceClient(conn).GetClock(ctx, &perceptorv1.GetClockRequest{})
				if err != nil {
					return err
				}
				return c.show(cmd, clock, func() *table {
					t := &table{head: []string{"TIME", "FROZEN", "NEXT"}}
					t.add(timeCell(clock.Time), strconv.FormatBool(clock.Frozen), timeCell(clock.NextTime))
					return t
				})
			})
		},
	}
}

// clockWait are the flags that say how runs are waited for.
type clockWait struct {
	settle            time.Duration
	leaveOpen, noWait bool
}

func (w *clockWait) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	duration.Var(f, &w.settle, "settle", 10*time.Second, "how long to wait at each instant for the results of its runs")
	f.BoolVar(&w.leaveOpen, "leave-open", false, "continue without the results of runs that are open after --settle; otherwise that is an error")
	f.BoolVar(&w.noWait, "no-wait", false, "wait only until due runs are published, not for their results")
	f.SortFlags = false
}

func (w *clockWait) proto(cmd *cobra.Command) *perceptorv1.ClockWait {
	p := &perceptorv1.ClockWait{LeaveOpen: w.leaveOpen, NoWait: w.noWait}
	if !w.noWait || cmd.Flags().Changed("settle") {
		p.Settle = durationpb.New(w.settle)
	}
	return p
}

// callMargin is what a call to move the clock may take beyond its longest wait.
const callMargin = 30 * time.Second

// limit is how long one call may take: an instant at which there is progress may
// take several times settle.
func (w *clockWait) limit() time.Duration { return 6*w.settle + callMargin }

func (c *ctl) clockAdvance() *cobra.Command {
	w := &clockWait{}
	cmd := &cobra.Command{
		Use: "advance DURATION", Short: "Advance the clock; each run that becomes due fires at its instant", Args: cobra.ExactArgs(1),
		Long: "Advance the clock from each instant at which something is due to the next. At each instant all due runs fire,\n" +
			"and the clock waits for their results. Retries and ack timeouts are instants like any other.\n\n" +
			"DURATION is a duration such as 90s, 36h, 3d or 1d12h; a day has 24 hours.",
		Example: "  perceptorctl clock advance 3d\n" +
			"  perceptorctl clock advance 10m --settle 1s --leave-open",
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := distance(args[0])
			if err != nil {
				return err
			}
			return c.moveClock(cmd, w, func(ctx context.Context, api perceptorv1.ClockServiceClient, to *timestamppb.Timestamp) (*perceptorv1.AdvanceClockResponse, error) {
				r := &perceptorv1.AdvanceClockRequest{Wait: w.proto(cmd), To: &perceptorv1.AdvanceClockRequest_Time{Time: to}}
				if to == nil {
					r.To = &perceptorv1.AdvanceClockRequest_Duration{Duration: durationpb.New(d)}
				}
				return api.AdvanceClock(ctx, r)
			})
		},
	}
	w.flags(cmd)
	return cmd
}

func (c *ctl) clockSet() *cobra.Command {
	w := &clockWait{}
	cmd := &cobra.Command{
		Use: "set INSTANT", Short: "Set the clock to a later instant, as after an outage", Args: cobra.ExactArgs(1),
		Long: "Set the clock to a later instant. Runs that became due in between are late, as if the installation had been\n" +
			"down: the misfire policies decide which of them fire. The clock never goes back.",
		Example: "  perceptorctl clock set 2026-03-01T00:00:00Z",
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := time.Parse(time.RFC3339, args[0])
			if err != nil {
				return cli.Usagef("%q is not an instant such as 2026-03-01T00:00:00Z", args[0])
			}
			return c.moveClock(cmd, w, func(ctx context.Context, api perceptorv1.ClockServiceClient, _ *timestamppb.Timestamp) (*perceptorv1.AdvanceClockResponse, error) {
				return api.SetClock(ctx, &perceptorv1.SetClockRequest{Time: timestamppb.New(at), Wait: w.proto(cmd)})
			})
		},
	}
	w.flags(cmd)
	return cmd
}

// moveClock calls until the clock is where it was to go, and prints the sum. to is
// nil in the first call.
func (c *ctl) moveClock(cmd *cobra.Command, w *clockWait, call func(ctx context.Context, api perceptorv1.ClockServiceClient, to *timestamppb.Timestamp) (*perceptorv1.AdvanceClockResponse, error)) error {
	if !cmd.Flags().Changed("timeout") {
		c.timeout = w.limit()
	}
	sum := &perceptorv1.AdvanceClockResponse{}
	for !sum.Reached {
		err := c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
			part, err := call(ctx, perceptorv1.NewClockServiceClient(conn), sum.TargetTime)
			if err == nil {
				addMove(sum, part)
			}
			return err
		})
		if err != nil {
			return err
		}
		if !sum.Reached {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s of %s: %d instants, %d deliveries\n", timeCell(sum.Time), timeCell(sum.TargetTime), sum.InstantCount, sum.DeliveryCount)
		}
	}
	return c.show(cmd, sum, func() *table {
		t := &table{head: []string{"TIME", "INSTANTS", "DELIVERIES", "LEFT OPEN"}}
		t.add(timeCell(sum.Time), strconv.FormatInt(sum.InstantCount, 10), strconv.FormatInt(sum.DeliveryCount, 10), openCell(sum.OpenRuns))
		return t
	})
}

const (
	listedInstants = 1000
	listedOpen     = 20
)

// addMove adds what one call has done.
func addMove(sum, part *perceptorv1.AdvanceClockResponse) {
	sum.Time, sum.TargetTime, sum.Reached = part.Time, part.TargetTime, part.Reached
	sum.InstantCount += part.InstantCount
	sum.DeliveryCount += part.DeliveryCount
	sum.Instants = append(sum.Instants, part.Instants[:min(len(part.Instants), listedInstants-len(sum.Instants))]...)
	known := map[string]bool{}
	for _, r := range sum.OpenRuns {
		known[r.RunId] = true
	}
	for _, r := range part.OpenRuns { // a run is left open at each of its deadlines
		if !known[r.RunId] {
			known[r.RunId] = true
			sum.OpenRuns = append(sum.OpenRuns, r)
		}
	}
}

func openCell(runs []*perceptorv1.UnansweredRun) string {
	names := make([]string, 0, listedOpen)
	for _, r := range runs[:min(len(runs), listedOpen)] {
		names = append(names, r.RunId)
	}
	if n := len(runs) - listedOpen; n > 0 {
		names = append(names, fmt.Sprintf("and %d more", n))
	}
	return textCell(strings.Join(names, " "))
}

// distance reads a duration that is not negative.
func distance(text string) (time.Duration, error) {
	d, err := duration.Parse(text)
	if err != nil || d < 0 || strings.HasPrefix(text, "-") {
		return 0, cli.Usagef("DURATION: %q is not a duration such as 90s, 36h, 3d or 1d12h", text)
	}
	return d, nil
}
