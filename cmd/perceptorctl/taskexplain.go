package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// taskExplain says why a task does not fire.
func (c *ctl) taskExplain() *cobra.Command {
	r := &perceptorv1.ExplainTaskRequest{}
	cmd := &cobra.Command{
		Use: "explain ID", Short: "Explain why a task does not fire and when it will", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if r.Id, err = taskID(args[0]); err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				a, err := perceptorv1.NewTaskServiceClient(conn).ExplainTask(ctx, r)
				if err != nil {
					return err
				}
				return c.show(cmd, a, func() *table { return explanation(a) })
			})
		},
	}
	cmd.Flags().Int32Var(&r.NextCount, "next", 3, "number of next instants to show, 0 to 100")
	return cmd
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
	return t
}
