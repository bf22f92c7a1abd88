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

// taskExplain says why a task does not fire.
func (c *ctl) taskExplain() *cobra.Command {
	r := &perceptorv1.ExplainTaskRequest{}
	cmd := &cobra.Command{
		Use: "explain TASK", Short: "Explain why a task does not fire and when it will, and what happened to its last runs", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := readTaskName(args[0])
			if err != nil {
				return err
			}
			r.Id, r.IdempotencyKey = name.id, name.key
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				a, err := perceptorv1.NewTaskServiceClient(conn).ExplainTask(ctx, r)
				if err != nil {
					return err
				}
				return errors.Join(c.show(cmd, a, func() *table { return explanation(a) }), unknownTask(a, args[0]))
			})
		},
	}
	cmd.Flags().Int32Var(&r.EventCount, "events", 5, "number of last events of its runs to show, 0 to 100")
	cmd.Flags().Int32Var(&r.NextCount, "next", 3, "number of next instants to show, 0 to 100")
	return watchable(cmd)
}

// unknownTask is the error of an explanation of a task that is not there.
func unknownTask(a *perceptorv1.ExplainTaskResponse, name string) error {
	for _, r := range a.Reasons {
		if r.Code == perceptorv1.Reason_UNKNOWN_TASK {
			return &cli.Error{Code: cli.NotFound, Err: fmt.Errorf("there is no task %s", name),
				Hint: "finished tasks are kept for their retention; perceptorctl whoami shows of which tenant the tasks are that you see"}
		}
	}
	return nil
}

func explanation(a *perceptorv1.ExplainTaskResponse) *table {
	t := &table{head: []string{"REASON", "SINCE", "UNTIL", "TEXT"}}
	for _, r := range a.Reasons {
		text := r.Text
		if r.LastError != "" {
			text += "; the last error was: " + r.LastError
		}
		until := timeCell(r.Time)
		if r.Code == perceptorv1.Reason_FINISHED {
			until = "-"
		}
		t.add(r.Code.String(), timeCell(r.Since), until, text)
	}
	for _, next := range a.NextTimes {
		t.add("next instant", "-", timeCell(next), "")
	}
	for _, e := range a.Events {
		t.add(fmt.Sprintf("run %d, attempt %d", e.Seq, e.Attempt), "-", timeCell(e.EventTime), timeline(e))
	}
	return t
}
