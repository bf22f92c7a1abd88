package main

import (
	"strconv"

	"github.com/spf13/cobra"

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
		Long: "List the events of a task's runs, newest first. perceptorctl task history shows the same as timelines.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.listEvents(cmd, p, args[0], eventTable)
		},
	}
	p.flags(cmd)
	return watchable(cmd)
}

func eventTable(events []*perceptorv1.RunEvent) *table {
	t := &table{narrow: 6, head: []string{"TIME", "RUN", "ATTEMPT", "EVENT", "SCHEDULED", "DETAIL", "DISPATCHER", "LISTENER", "CLAIMED", "PUBLISHED", "RECEIVED", "BEGUN", "ENDED"}}
	for _, e := range events {
		t.add(timeCell(e.EventTime), strconv.FormatInt(e.Seq, 10), strconv.Itoa(int(e.Attempt)), e.Type.String(),
			timeCell(e.ScheduledTime), detailCell(e.Detail), textCell(e.Dispatcher), textCell(e.GetListener().GetName()),
			timeCell(e.ClaimTime), timeCell(e.PublishTime), timeCell(e.ReceiveTime), timeCell(e.HandlerBeginTime), timeCell(e.HandlerEndTime))
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
