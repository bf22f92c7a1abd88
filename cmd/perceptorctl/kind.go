package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (c *ctl) kindCommand() *cobra.Command {
	return group("kind", "Kinds of tasks: pause, resume", c.kindPause(true), c.kindPause(false))
}

// kindPause makes "pause" and "resume".
func (c *ctl) kindPause(pause bool) *cobra.Command {
	use, short := "pause KIND", "Claim no new run of a kind until it is resumed, also of tasks that are added later"
	if !pause {
		use, short = "resume KIND", "Let a paused kind go on; instants missed meanwhile follow the misfire policy"
	}
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		Long: short + ".\nIt takes a token of the tenant, and lists the kinds of the tenant that are paused then.",
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
