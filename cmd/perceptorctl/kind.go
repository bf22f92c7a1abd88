package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (c *ctl) kindCommand() *cobra.Command {
	return group("kind", "Pause and resume all tasks of a kind", c.kindPause(true), c.kindPause(false))
}

// kindPause makes "pause" and "resume".
func (c *ctl) kindPause(pause bool) *cobra.Command {
	use, short := "pause KIND", "Pause a kind: claim no new run of its tasks, including tasks that are added later"
	if !pause {
		use, short = "resume KIND", "Resume a paused kind; missed instants follow the misfire policy of their task"
	}
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		Long: short + ".\nThe command needs a token of the tenant and prints the kinds that are paused afterwards.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				api := perceptorv1.NewTaskServiceClient(conn)
				if !pause {
					a, err := api.ResumeKind(ctx, &perceptorv1.ResumeKindRequest{Kind: args[0]})
					if err != nil {
						return err
					}
					return c.show(cmd, a, func() *table { return kindTable(a.PausedKinds) })
				}
				a, err := api.PauseKind(ctx, &perceptorv1.PauseKindRequest{Kind: args[0]})
				if err != nil {
					return err
				}
				return c.show(cmd, a, func() *table { return kindTable(a.PausedKinds) })
			})
		},
	}
}

func kindTable(paused []string) *table {
	t := &table{head: []string{"PAUSED KIND"}}
	for _, k := range paused {
		t.add(k)
	}
	return t
}
