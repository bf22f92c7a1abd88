package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// maxTasksAtOnce bounds the arguments of a command about several tasks. For more there are bulk
// operations.
const maxTasksAtOnce = 1000

// forTasks calls f for each task that the arguments name. It returns an error of several lines if
// f fails for several; the exit code is that of the first.
func (c *ctl) forTasks(cmd *cobra.Command, args []string, f func(context.Context, *grpc.ClientConn, taskName) error) error {
	if len(args) > maxTasksAtOnce {
		return cli.Usagef("%d tasks are given; at most %d are allowed: perceptorctl bulk create changes more", len(args), maxTasksAtOnce)
	}
	names := make([]taskName, len(args))
	for i, arg := range args {
		var err error
		if names[i], err = readTaskName(arg); err != nil {
			return err
		}
	}
	bar := cli.NewProgress(cmd.ErrOrStderr(), "tasks")
	defer bar.End()
	return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
		if len(names) == 1 {
			return f(ctx, conn, names[0])
		}
		var failed []error
		for i, name := range names {
			if err := c.explain(f(ctx, conn, name)); err != nil {
				failed = append(failed, fmt.Errorf("task %s: %w", args[i], err))
			}
			if ctx.Err() != nil {
				break
			}
			bar.Show(int64(i+1), int64(len(names)), fmt.Sprintf("%d failed", len(failed)))
		}
		return joined(failed)
	})
}

// joined makes one error of several, with the code and the hint of the first.
func joined(failed []error) error {
	var first *cli.Error
	if len(failed) == 0 || !errors.As(failed[0], &first) {
		return errors.Join(failed...)
	}
	return &cli.Error{Code: first.Code, Err: errors.Join(failed...), Hint: first.Hint}
}

// eachTask is a command that does something to each task that is named, and shows the tasks.
func (c *ctl) eachTask(use, short string, call func(context.Context, *grpc.ClientConn, taskName) (*perceptorv1.Task, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " TASK...", Short: short, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var tasks []*perceptorv1.Task
			err := c.forTasks(cmd, args, func(ctx context.Context, conn *grpc.ClientConn, name taskName) error {
				t, err := call(ctx, conn, name)
				if err == nil {
					tasks = append(tasks, t)
				}
				return err
			})
			return errors.Join(c.showTasks(cmd, len(args), tasks), err)
		},
	}
}

// showTasks shows what a command with some number of arguments has found: one task with all its
// fields, several as a list.
func (c *ctl) showTasks(cmd *cobra.Command, asked int, tasks []*perceptorv1.Task) error {
	switch {
	case len(tasks) == 0:
		return nil
	case asked == 1:
		return c.show(cmd, tasks[0], func() *table { return taskDetails(tasks[0]) })
	}
	return c.show(cmd, &perceptorv1.ListTasksResponse{Tasks: tasks}, func() *table { return taskTable(tasks...) })
}

// taskGet shows tasks: one with what comes next and what happened last.
func (c *ctl) taskGet() *cobra.Command {
	cmd := c.eachTask("get", "Show tasks; a single one with its next instants and its last runs", func(ctx context.Context, conn *grpc.ClientConn, t taskName) (*perceptorv1.Task, error) {
		return perceptorv1.NewTaskServiceClient(conn).GetTask(ctx, &perceptorv1.GetTaskRequest{Id: t.id, IdempotencyKey: t.key})
	})
	show := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := show(cmd, args); err != nil || c.structured() || len(args) > 1 {
			return err
		}
		return c.showOutlook(cmd, args[0])
	}
	return watchable(cmd)
}

const (
	outlookInstants = 3
	outlookEvents   = 5
)

// showOutlook shows the next instants of a task and what happened to its last runs. It is below
// what was asked for, so its failure is only a hint.
func (c *ctl) showOutlook(cmd *cobra.Command, arg string) error {
	var a *perceptorv1.ExplainTaskResponse
	err := c.forTasks(cmd, []string{arg}, func(ctx context.Context, conn *grpc.ClientConn, name taskName) (err error) {
		a, err = perceptorv1.NewTaskServiceClient(conn).ExplainTask(ctx, &perceptorv1.ExplainTaskRequest{
			Id: name.id, IdempotencyKey: name.key, NextCount: outlookInstants, EventCount: outlookEvents,
		})
		return err
	})
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "the next instants and the last runs cannot be shown: %v\n", err)
		return nil
	}
	if len(a.NextTimes)+len(a.Events) == 0 {
		return nil
	}
	t := &table{head: []string{"TIME", "WHAT"}}
	for _, e := range a.Events {
		t.add(timeCell(e.EventTime), fmt.Sprintf("run %d, attempt %d: %s", e.Seq, e.Attempt, timeline(e)))
	}
	for i, next := range a.NextTimes {
		what := "the instant after it"
		if i == 0 {
			what = "the next instant"
		}
		t.add(timeCell(next), what)
	}
	fmt.Fprintln(cmd.OutOrStdout())
	return t.write(cmd.OutOrStdout())
}

func (c *ctl) taskPurge() *cobra.Command {
	return &cobra.Command{
		Use: "purge TASK...", Short: "Remove finished tasks before their retention ends", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.forTasks(cmd, args, func(ctx context.Context, conn *grpc.ClientConn, name taskName) error {
				_, err := perceptorv1.NewTaskServiceClient(conn).PurgeTask(ctx, &perceptorv1.PurgeTaskRequest{Id: name.id, IdempotencyKey: name.key})
				return err
			})
		},
	}
}
