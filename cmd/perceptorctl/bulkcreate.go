package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/duration"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// bulkFlags are the flags of a new operation.
type bulkFlags struct {
	kind, typ, state, reason                 string
	dueFrom, dueUntil, addedFrom, addedUntil string
	diedFrom, diedUntil, next                string
	from, to                                 string
	tags                                     []string
	task, backfill, counted                  int64
	shift                                    time.Duration
	rate                                     int32
	dry, all, watch, oneAtATime              bool
	requestID                                string
}

// What selects tasks alone, dead runs alone, and both.
var (
	taskFilters   = []string{"state", "due-from", "due-until", "added-from", "added-until", "backfill"}
	deadFilters   = []string{"reason", "died-from", "died-until"}
	commonFilters = []string{"kind", "type", "tag", "task"}
)

var bulkActions = []string{"pause", "resume", "cancel", "reschedule", "replay", "purge-dead", "purge-finished", "backfill"}

func (c *ctl) bulkCreate() *cobra.Command {
	b := &bulkFlags{}
	cmd := &cobra.Command{
		Use: "create ACTION", Short: "Create an operation on many tasks or dead runs", Args: cobra.ExactArgs(1), ValidArgs: bulkActions,
		Long: "Create an operation on many tasks or dead runs. ACTION is one of\n" + strings.Join(bulkActions, ", ") + ".\n\n" +
			"Run it with --dry-run --watch first, which only counts. Without a filter the operation changes all tasks or\n" +
			"dead runs of the tenant and needs --all.\n\n" +
			"backfill makes the instants in [--from, --to) fire again, for recurring tasks: for each it adds a task that has the\n" +
			"instants of the range. It counts runs.",
		Example: "  perceptorctl bulk create cancel --kind mail --tag campaign-7 --dry-run --watch\n" +
			"  perceptorctl bulk create cancel --kind mail --tag campaign-7 --max-rate 2000 --watch\n" +
			"  perceptorctl bulk create reschedule --kind report --due-until +1h --shift 30m\n" +
			"  perceptorctl bulk create replay --reason silent --died-from 2026-01-31T00:00:00Z\n" +
			"  perceptorctl bulk create backfill --kind report --from 2026-01-30T00:00:00Z --to 2026-01-31T00:00:00Z --dry-run --watch\n" +
			"  perceptorctl bulk create cancel --backfill 7",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := b.read(cmd, args[0])
			if err != nil {
				return err
			}
			err = c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
				r := &perceptorv1.CreateBulkOperationRequest{Operation: o, RequestId: b.requestID}
				o, err = perceptorv1.NewBulkServiceClient(conn).CreateBulkOperation(ctx, r)
				return err
			})
			switch {
			case err != nil:
				return err
			case b.watch:
				fmt.Fprintf(cmd.ErrOrStderr(), "operation %d\n", o.Id)
				return c.watchBulk(cmd, o.Id)
			}
			return c.show(cmd, o, func() *table { return bulkTable(o) })
		},
	}
	b.flags(cmd)
	return cmd
}

// flags declares the flags.
func (b *bulkFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&b.kind, "kind", "", "only tasks or dead runs of this kind")
	f.StringVar(&b.typ, "type", "", "only tasks or dead runs of this type: one-shot, non-blocking or blocking")
	f.StringVar(&b.state, "state", "", "only tasks in this state")
	f.StringArrayVar(&b.tags, "tag", nil, "only tasks or dead runs with this tag; repeat it to require several tags")
	f.StringVar(&b.dueFrom, "due-from", "", "only tasks due at this instant or later, such as 2026-01-31T12:00:00Z or +90s from now")
	f.StringVar(&b.dueUntil, "due-until", "", "only tasks due before this instant")
	f.StringVar(&b.addedFrom, "added-from", "", "only tasks added at this instant or later")
	f.StringVar(&b.addedUntil, "added-until", "", "only tasks added before this instant")
	f.StringVar(&b.reason, "reason", "", "only dead runs with this reason")
	f.Int64Var(&b.task, "task", 0, "only this task, or dead runs of this task")
	f.Int64Var(&b.backfill, "backfill", 0, "only tasks that this backfill, an operation, has added")
	f.StringVar(&b.diedFrom, "died-from", "", "only runs that died at this instant or later")
	f.StringVar(&b.diedUntil, "died-until", "", "only runs that died before this instant")
	duration.Var(f, &b.shift, "shift", 0, "reschedule: how far to move the next run; may be negative")
	f.StringVar(&b.next, "next", "", "reschedule: the instant of the next run")
	f.StringVar(&b.from, "from", "", "backfill: the first instant of the range")
	f.StringVar(&b.to, "to", "", "backfill: the exclusive end of the range")
	f.BoolVar(&b.oneAtATime, "one-at-a-time", false, "backfill: the runs of each task fire one after another")
	f.Int32Var(&b.rate, "max-rate", 0, "most changes, or runs of a backfill, per second (default: as many as the chores can do)")
	f.BoolVar(&b.dry, "dry-run", false, "only count, change nothing")
	f.Int64Var(&b.counted, "counted-by", 0, "dry run, an operation, that has counted these: abort before more are changed")
	f.BoolVar(&b.all, "all", false, "select all of the tenant's, without a filter")
	f.BoolVar(&b.watch, "watch", false, "show the progress until the operation ends, as bulk watch does")
	f.StringVar(&b.requestID, "request-id", "", "id that makes the command safe to repeat")
	completes(cmd, "type", taskTypes...)
	completes(cmd, "state", taskStates...)
	completes(cmd, "reason", deadReasons...)
}

func (b *bulkFlags) read(cmd *cobra.Command, action string) (*perceptorv1.BulkOperation, error) {
	n, ok := perceptorv1.BulkOperation_Action_value[enumWord(action)]
	if !ok || n == 0 {
		return nil, cli.Usagef("%q is not one of %s", action, strings.Join(bulkActions, ", "))
	}
	o := &perceptorv1.BulkOperation{Action: perceptorv1.BulkOperation_Action(n), DryRun: b.dry, MaxRate: b.rate, OneAtATime: b.oneAtATime, DryRunId: b.counted}
	dead := o.Action == perceptorv1.BulkOperation_REPLAY || o.Action == perceptorv1.BulkOperation_PURGE_DEAD
	err := b.check(cmd, action, dead)
	if err != nil {
		return nil, err
	}
	if err := b.checkMove(cmd, o.Action); err != nil {
		return nil, err
	}
	if cmd.Flags().Changed("shift") {
		o.Shift = durationpb.New(b.shift)
	}
	if o.NextTime, err = instant("next", b.next); err != nil {
		return nil, err
	}
	if o.BackfillFrom, err = instant("from", b.from); err != nil {
		return nil, err
	}
	if o.BackfillUntil, err = instant("to", b.to); err != nil {
		return nil, err
	}
	if dead {
		d := deadFlags{typ: b.typ, reason: b.reason, from: b.diedFrom, until: b.diedUntil}
		d.f.Kind, d.f.TaskId, d.f.Tags = b.kind, b.task, b.tags
		o.DeadFilter, err = d.read()
		return o, err
	}
	o.Filter, err = b.filter()
	return o, err
}

// check refuses filters that the action does not have: without them it would be
// done to more than was meant.
func (b *bulkFlags) check(cmd *cobra.Command, action string, dead bool) error {
	filters, others, about := taskFilters, deadFilters, "tasks"
	if dead {
		filters, others, about = deadFilters, taskFilters, "dead runs"
	}
	for _, f := range others {
		if cmd.Flags().Changed(f) {
			return cli.Usagef("--%s: %s applies to %s, which are selected by --%s", f, action, about, strings.Join(slices.Concat(commonFilters, filters), ", --"))
		}
	}
	narrow := slices.ContainsFunc(slices.Concat(commonFilters, filters), cmd.Flags().Changed)
	switch {
	case narrow && b.all:
		return cli.Usagef("--all and a filter exclude each other")
	case !narrow && !b.all && !b.dry:
		return cli.Usagef("without a filter this changes all %s of the tenant; set a filter, --all, or --dry-run to count them", about)
	}
	return nil
}

// checkMove refuses a reschedule that does not say where to, or says it twice.
func (b *bulkFlags) checkMove(cmd *cobra.Command, action perceptorv1.BulkOperation_Action) error {
	shift, next := cmd.Flags().Changed("shift"), b.next != ""
	switch {
	case action != perceptorv1.BulkOperation_RESCHEDULE:
		return nil
	case shift && next:
		return cli.Usagef("--shift and --next exclude each other")
	case !shift && !next:
		return cli.Usagef("reschedule needs --shift or --next")
	}
	return nil
}

func (b *bulkFlags) filter() (f *perceptorv1.TaskFilter, err error) {
	f = &perceptorv1.TaskFilter{Kind: b.kind, Tags: b.tags, TaskId: b.task, BackfillId: b.backfill}
	if f.Type, err = taskType(b.typ); err != nil {
		return nil, err
	}
	if f.State, err = taskState(b.state); err != nil {
		return nil, err
	}
	if f.DueFrom, err = instant("due-from", b.dueFrom); err != nil {
		return nil, err
	}
	if f.DueUntil, err = instant("due-until", b.dueUntil); err != nil {
		return nil, err
	}
	if f.AddedFrom, err = instant("added-from", b.addedFrom); err != nil {
		return nil, err
	}
	f.AddedUntil, err = instant("added-until", b.addedUntil)
	return f, err
}
