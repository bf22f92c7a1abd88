package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (c *ctl) bulkCommand() *cobra.Command {
	api := perceptorv1.NewBulkServiceClient
	return group("bulk", "Operations on many tasks: create, get, list, watch, pause, resume, abort",
		c.bulkCreate(),
		c.oneBulk("get", "Show an operation and its parts", func(ctx context.Context, conn *grpc.ClientConn, id int64) (*perceptorv1.BulkOperation, error) {
			return api(conn).GetBulkOperation(ctx, &perceptorv1.GetBulkOperationRequest{Id: id})
		}),
		c.bulkList(),
		c.bulkWatch(),
		c.oneBulk("pause", "Let an operation wait", func(ctx context.Context, conn *grpc.ClientConn, id int64) (*perceptorv1.BulkOperation, error) {
			return api(conn).PauseBulkOperation(ctx, &perceptorv1.PauseBulkOperationRequest{Id: id})
		}),
		c.oneBulk("resume", "Let a paused operation go on", func(ctx context.Context, conn *grpc.ClientConn, id int64) (*perceptorv1.BulkOperation, error) {
			return api(conn).ResumeBulkOperation(ctx, &perceptorv1.ResumeBulkOperationRequest{Id: id})
		}),
		c.oneBulk("abort", "End an operation where it stands", func(ctx context.Context, conn *grpc.ClientConn, id int64) (*perceptorv1.BulkOperation, error) {
			return api(conn).AbortBulkOperation(ctx, &perceptorv1.AbortBulkOperationRequest{Id: id})
		}),
	)
}

// bulkFlags are the flags of a new operation.
type bulkFlags struct {
	kind, typ, state, reason                 string
	dueFrom, dueUntil, addedFrom, addedUntil string
	diedFrom, diedUntil, next                string
	tags                                     []string
	task                                     int64
	shift                                    time.Duration
	rate                                     int32
	dry                                      bool
	requestID                                string
}

const bulkActions = "pause, resume, cancel, reschedule, replay, purge-dead, purge-finished"

func (c *ctl) bulkCreate() *cobra.Command {
	b := &bulkFlags{}
	cmd := &cobra.Command{
		Use: "create ACTION", Short: "Do something to many tasks or dead runs", Args: cobra.ExactArgs(1),
		Long: "Do something to many tasks or dead runs. ACTION is one of " + bulkActions + ".\n" +
			"Without filters it is done to all of the tenant's. Try it with --dry-run first.",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := b.read(cmd, args[0])
			if err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				r := &perceptorv1.CreateBulkOperationRequest{Operation: o, RequestId: b.requestID}
				o, err := perceptorv1.NewBulkServiceClient(conn).CreateBulkOperation(ctx, r)
				if err != nil {
					return err
				}
				return c.show(cmd, o, func() *table { return bulkTable(o) })
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&b.kind, "kind", "", "only those of this kind")
	f.StringVar(&b.typ, "type", "", "only those of this type: one-shot, non-blocking or blocking")
	f.StringVar(&b.state, "state", "", "only tasks in this state")
	f.StringArrayVar(&b.tags, "tag", nil, "only those with this tag; several: with all of them")
	f.StringVar(&b.dueFrom, "due-from", "", "only tasks due at this instant or later: 2026-01-31T12:00:00Z, or +90s from now")
	f.StringVar(&b.dueUntil, "due-until", "", "only tasks due before this instant")
	f.StringVar(&b.addedFrom, "added-from", "", "only tasks added at this instant or later")
	f.StringVar(&b.addedUntil, "added-until", "", "only tasks added before this instant")
	f.StringVar(&b.reason, "reason", "", "only dead runs given up for this reason")
	f.Int64Var(&b.task, "task", 0, "only dead runs of this task")
	f.StringVar(&b.diedFrom, "died-from", "", "only dead runs given up at this instant or later")
	f.StringVar(&b.diedUntil, "died-until", "", "only dead runs given up before this instant")
	f.DurationVar(&b.shift, "shift", 0, "reschedule: by how much the next run moves; may be negative")
	f.StringVar(&b.next, "next", "", "reschedule: the instant to which the next run moves")
	f.Int32Var(&b.rate, "max-rate", 0, "how many a second are changed at most (default: as many as the chores may)")
	f.BoolVar(&b.dry, "dry-run", false, "only count")
	f.StringVar(&b.requestID, "request-id", "", "makes the command safe to repeat")
	return cmd
}

func (b *bulkFlags) read(cmd *cobra.Command, action string) (*perceptorv1.BulkOperation, error) {
	n, ok := perceptorv1.BulkOperation_Action_value[enumWord(action)]
	if !ok || n == 0 {
		return nil, cli.Usagef("%q is not one of %s", action, bulkActions)
	}
	o := &perceptorv1.BulkOperation{Action: perceptorv1.BulkOperation_Action(n), DryRun: b.dry, MaxRate: b.rate}
	var err error
	if cmd.Flags().Changed("shift") {
		o.Shift = durationpb.New(b.shift)
	}
	if o.NextTime, err = instant("next", b.next); err != nil {
		return nil, err
	}
	if o.Action == perceptorv1.BulkOperation_REPLAY || o.Action == perceptorv1.BulkOperation_PURGE_DEAD {
		d := deadFlags{typ: b.typ, reason: b.reason, from: b.diedFrom, until: b.diedUntil}
		d.f.Kind, d.f.TaskId, d.f.Tags = b.kind, b.task, b.tags
		o.DeadFilter, err = d.read()
		return o, err
	}
	o.Filter, err = b.filter()
	return o, err
}

func (b *bulkFlags) filter() (f *perceptorv1.TaskFilter, err error) {
	f = &perceptorv1.TaskFilter{Kind: b.kind, Tags: b.tags}
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

// oneBulk is a command about the operation with an id.
func (c *ctl) oneBulk(use, short string, call func(context.Context, *grpc.ClientConn, int64) (*perceptorv1.BulkOperation, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " ID", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return cli.Usagef("%q is not the id of an operation", args[0])
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				o, err := call(ctx, conn, id)
				if err != nil {
					return err
				}
				return c.show(cmd, o, func() *table { return bulkDetails(o) })
			})
		},
	}
}

func (c *ctl) bulkList() *cobra.Command {
	p := &pages{}
	cmd := &cobra.Command{
		Use: "list", Short: "List the operations of the last 30 days, newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
				api, all := perceptorv1.NewBulkServiceClient(conn), &perceptorv1.ListBulkOperationsResponse{}
				all.Operations, all.NextPageToken, err = gather(p, (*perceptorv1.ListBulkOperationsResponse).GetOperations,
					func(size int32, token string) (*perceptorv1.ListBulkOperationsResponse, error) {
						return api.ListBulkOperations(ctx, &perceptorv1.ListBulkOperationsRequest{PageSize: size, PageToken: token})
					})
				if err != nil {
					return err
				}
				return c.show(cmd, all, func() *table { return bulkTable(all.Operations...) })
			})
		},
	}
	p.flags(cmd)
	return cmd
}

// watchEvery is the distance between two looks.
const watchEvery = time.Second

func (c *ctl) bulkWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch ID", Short: "Show the progress of an operation until it ends", Args: cobra.ExactArgs(1),
		Long: "Show the progress of an operation until it ends, a line whenever it has changed. Interrupting it\n" +
			"does nothing to the operation.",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return cli.Usagef("%q is not the id of an operation", args[0])
			}
			last := ""
			for {
				var o *perceptorv1.BulkOperation
				err := c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
					o, err = perceptorv1.NewBulkServiceClient(conn).GetBulkOperation(ctx, &perceptorv1.GetBulkOperationRequest{Id: id})
					return err
				})
				if err != nil {
					return err
				}
				last = progress(cmd.OutOrStdout(), o, last)
				if o.State == perceptorv1.BulkOperation_DONE || o.State == perceptorv1.BulkOperation_ABORTED {
					return nil
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(watchEvery):
				}
			}
		},
	}
}

// progress prints a line about an operation unless it is the last one again.
func progress(w io.Writer, o *perceptorv1.BulkOperation, last string) string {
	line := fmt.Sprintf("[%-16s] %s: %d matched, %d done, %d failed", strings.Repeat("#", int(o.FinishedParts)), o.State, o.Matched, o.Done, o.Failed)
	if line != last {
		fmt.Fprintln(w, line)
	}
	return line
}

func bulkTable(list ...*perceptorv1.BulkOperation) *table {
	t := &table{head: []string{"ID", "ACTION", "STATE", "MATCHED", "DONE", "FAILED", "DATABASES", "CREATED"}}
	for _, o := range list {
		action := o.Action.String()
		if o.DryRun {
			action += " (dry run)"
		}
		t.add(strconv.FormatInt(o.Id, 10), action, o.State.String(), strconv.FormatInt(o.Matched, 10), strconv.FormatInt(o.Done, 10),
			strconv.FormatInt(o.Failed, 10), fmt.Sprintf("%d of 16", o.FinishedParts), timeCell(o.CreateTime))
	}
	return t
}

// bulkDetails lists the parts of an operation below its sums.
func bulkDetails(o *perceptorv1.BulkOperation) *table {
	t := &table{head: []string{"DATABASE", "STATE", "MATCHED", "DONE", "FAILED", "FINISHED", "ERROR"}}
	t.add("all", o.State.String(), strconv.FormatInt(o.Matched, 10), strconv.FormatInt(o.Done, 10), strconv.FormatInt(o.Failed, 10), timeCell(o.FinishTime), "-")
	for _, p := range o.Parts {
		t.add(strconv.Itoa(int(p.Database)), p.State.String(), strconv.FormatInt(p.Matched, 10), strconv.FormatInt(p.Done, 10),
			strconv.FormatInt(p.Failed, 10), timeCell(p.FinishTime), textCell(p.Error))
	}
	return t
}
