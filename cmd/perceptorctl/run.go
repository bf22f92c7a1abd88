package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (c *ctl) runCommand() *cobra.Command {
	cmd := group("run", "Show the history of runs", c.runHistory())
	cmd.Aliases = []string{"runs"}
	return cmd
}

func (c *ctl) runHistory() *cobra.Command {
	p := &pages{}
	cmd := &cobra.Command{
		Use: "history TASK", Short: "List the events of a task's runs, newest first", Args: cobra.ExactArgs(1),
		Long: "List the events of a task's runs, newest first. The tenant's history level decides which events are recorded:\n" +
			"perceptorctl tenant update NAME --history all|failures|none.",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return cli.Usagef("%q is not a task id", args[0])
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
				api, all := perceptorv1.NewTaskServiceClient(conn), &perceptorv1.ListRunEventsResponse{}
				all.Events, all.NextPageToken, err = gather(p, (*perceptorv1.ListRunEventsResponse).GetEvents,
					func(size int32, token string) (*perceptorv1.ListRunEventsResponse, error) {
						return api.ListRunEvents(ctx, &perceptorv1.ListRunEventsRequest{TaskId: id, PageSize: size, PageToken: token})
					})
				if err != nil {
					return err
				}
				return c.show(cmd, all, func() *table { return eventTable(all.Events) })
			})
		},
	}
	p.flags(cmd)
	return cmd
}

func eventTable(events []*perceptorv1.RunEvent) *table {
	t := &table{head: []string{"TIME", "RUN", "ATTEMPT", "EVENT", "SCHEDULED", "DETAIL"}}
	for _, e := range events {
		t.add(timeCell(e.EventTime), strconv.FormatInt(e.Seq, 10), strconv.Itoa(int(e.Attempt)), e.Type.String(),
			timeCell(e.ScheduledTime), detailCell(e.Detail))
	}
	return t
}

// detailCell keeps what a handler said on one line.
func detailCell(detail string) string {
	if quoted := strconv.Quote(detail); quoted != `"`+detail+`"` {
		return quoted
	}
	return textCell(detail)
}
