package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) deadCommand() *cobra.Command {
	return group("dead", "List, show, replay and purge dead runs", c.deadList(), c.deadShow(), c.deadReplay(), c.deadPurge())
}

// deadFlags are the flags that select dead runs.
type deadFlags struct {
	f                        perceptorv1.DeadRunFilter
	typ, reason, from, until string
}

// deadReasons are the values of --reason.
var deadReasons = []string{"out-of-attempts", "silent", "unpublishable", "permanent"}

func (d *deadFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&d.f.Kind, "kind", "", "only runs of this kind")
	f.StringVar(&d.typ, "type", "", "only runs of tasks of this type: one-shot, non-blocking or blocking")
	f.StringVar(&d.reason, "reason", "", "only runs with this reason: out-of-attempts, silent, unpublishable or permanent")
	f.Int64Var(&d.f.TaskId, "task", 0, "only runs of this task")
	f.StringArrayVar(&d.f.Tags, "tag", nil, "only runs of tasks with this tag; repeat it to require several tags")
	f.StringVar(&d.from, "died-from", "", "only runs that died at this instant or later, such as 2026-01-31T12:00:00Z")
	f.StringVar(&d.until, "died-until", "", "only runs that died before this instant")
	completes(cmd, "type", taskTypes...)
	completes(cmd, "reason", deadReasons...)
}

func (d *deadFlags) read() (*perceptorv1.DeadRunFilter, error) {
	var err error
	if d.f.Type, err = taskType(d.typ); err != nil {
		return nil, err
	}
	n, ok := perceptorv1.DeadRun_Reason_value[enumWord(d.reason)]
	if d.reason != "" && (!ok || n == 0) {
		return nil, cli.Usagef("--reason: %q is not one of %s", d.reason, strings.Join(deadReasons, ", "))
	}
	d.f.Reason = perceptorv1.DeadRun_Reason(n)
	if d.f.DiedFrom, err = instant("died-from", d.from); err != nil {
		return nil, err
	}
	d.f.DiedUntil, err = instant("died-until", d.until)
	return &d.f, err
}

func (c *ctl) deadList() *cobra.Command {
	p, d := &pages{}, &deadFlags{}
	cmd := &cobra.Command{
		Use: "list", Short: "List dead runs, newest first", Args: cobra.NoArgs,
		Example: "  perceptorctl dead list --kind mail --reason out-of-attempts",
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := d.read()
			if err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
				api, all := perceptorv1.NewDeadLetterServiceClient(conn), &perceptorv1.ListDeadRunsResponse{}
				r := &perceptorv1.ListDeadRunsRequest{
					Kind: filter.Kind, Type: filter.Type, Reason: filter.Reason, TaskId: filter.TaskId, Tags: filter.Tags,
					DiedFrom: filter.DiedFrom, DiedUntil: filter.DiedUntil,
				}
				all.DeadRuns, all.NextPageToken, err = gather(p, (*perceptorv1.ListDeadRunsResponse).GetDeadRuns,
					func(size int32, token string) (*perceptorv1.ListDeadRunsResponse, error) {
						r.PageSize, r.PageToken = size, token
						return api.ListDeadRuns(ctx, r)
					})
				if err != nil {
					return err
				}
				return c.show(cmd, all, func() *table { return deadTable(all.DeadRuns) })
			})
		},
	}
	p.flags(cmd)
	d.flags(cmd)
	return watchable(cmd)
}

func deadTable(runs []*perceptorv1.DeadRun) *table {
	t := &table{narrow: 6, head: []string{"RUN", "KIND", "REASON", "ATTEMPTS", "DIED", "ERROR", "TYPE", "SCHEDULED", "REPLAY OF", "TAGS"}}
	for _, x := range runs {
		line, _, _ := strings.Cut(x.Error, "\n")
		t.add(x.RunId, x.Kind, x.Reason.String(), strconv.Itoa(int(x.Attempt)), timeCell(x.DiedTime), textCell(line),
			x.Type.String(), timeCell(x.ScheduledTime), textCell(x.ReplayOf), textCell(strings.Join(x.Tags, ", ")))
	}
	return t
}

// readRunID reads an argument that names a run, and says which part of it is wrong.
func readRunID(arg string) (string, error) {
	first, second, ok := strings.Cut(arg, "-")
	id, noID := strconv.ParseInt(first, 10, 64)
	seq, noSeq := strconv.ParseInt(second, 10, 64)
	switch {
	case !ok || noID != nil || noSeq != nil:
		return "", cli.Usagef("%q is not the id of a run: that of its task, a hyphen and its number, such as 1027-1", arg)
	case !task.ID(id).Valid():
		return "", cli.Usagef("%q: %d is not the id of a task, which is %d or more", arg, id, task.Shards)
	case seq < 1:
		return "", cli.Usagef("%q: %d is not the number of a run, which is 1 or more", arg, seq)
	}
	return arg, nil
}

func (c *ctl) deadShow() *cobra.Command {
	return &cobra.Command{
		Use: "show RUN", Short: "Show a dead run", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := readRunID(args[0])
			if err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				x, err := perceptorv1.NewDeadLetterServiceClient(conn).GetDeadRun(ctx, &perceptorv1.GetDeadRunRequest{RunId: run})
				if err != nil {
					return err
				}
				return c.show(cmd, x, func() *table { return deadDetails(x) })
			})
		},
	}
}

func deadDetails(x *perceptorv1.DeadRun) *table {
	t := &table{head: []string{"FIELD", "VALUE"}}
	t.add("run", x.RunId)
	t.add("kind", x.Kind)
	t.add("type", x.Type.String())
	t.add("tags", textCell(strings.Join(x.Tags, ", ")))
	t.add("scheduled", timeCell(x.ScheduledTime))
	t.add("died", timeCell(x.DiedTime))
	t.add("reason", x.Reason.String())
	t.add("attempts", strconv.Itoa(int(x.Attempt)))
	t.add("error", textCell(x.Error))
	t.add("replay of", textCell(x.ReplayOf))
	for _, k := range sortedKeys(x.Params) {
		t.add("params."+k, x.Params[k])
	}
	t.addPayload(x.Payload)
	return t
}

func (c *ctl) deadReplay() *cobra.Command {
	return &cobra.Command{
		Use: "replay RUN", Short: "Replay a dead run as a new task that is due now", Args: cobra.ExactArgs(1),
		Long: "Replay a dead run as a new task that is due now. Repeating the command returns the same task.\n" +
			"To replay many runs, use perceptorctl bulk create replay.",
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := readRunID(args[0])
			if err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				a, err := perceptorv1.NewDeadLetterServiceClient(conn).ReplayDeadRun(ctx, &perceptorv1.ReplayDeadRunRequest{RunId: run})
				if err != nil {
					return err
				}
				return c.show(cmd, a, func() *table {
					t := &table{head: []string{"TASK", "REPLAYED BEFORE"}}
					t.add(strconv.FormatInt(a.TaskId, 10), strconv.FormatBool(a.Replayed))
					return t
				})
			})
		},
	}
}

func (c *ctl) deadPurge() *cobra.Command {
	return &cobra.Command{
		Use: "purge RUN", Short: "Remove a dead run", Args: cobra.ExactArgs(1),
		Long: "Remove a dead run. To remove many, use perceptorctl bulk create purge-dead.",
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := readRunID(args[0])
			if err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				if _, err := perceptorv1.NewDeadLetterServiceClient(conn).PurgeDeadRun(ctx, &perceptorv1.PurgeDeadRunRequest{RunId: run}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "dead run %s removed\n", run)
				return err
			})
		},
	}
}
