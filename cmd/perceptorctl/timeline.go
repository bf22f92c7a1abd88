package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// taskHistory shows what happened to the runs of a task, a line for each event.
func (c *ctl) taskHistory() *cobra.Command {
	p := &pages{}
	cmd := &cobra.Command{
		Use: "history TASK", Aliases: []string{"events"}, Short: "Show the timelines of a task's runs, newest first", Args: cobra.ExactArgs(1),
		Long: "Show the timelines of a task's runs, newest first: when each attempt was due, claimed, published, received and handled,\n" +
			"by whom, and how it ended. The tenant's history level decides which events are recorded:\n" +
			"perceptorctl tenant update NAME --history none|failures|slow|sampled|all.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.listEvents(cmd, p, args[0], timelineTable)
		},
	}
	p.flags(cmd)
	return watchable(cmd)
}

// listEvents shows the events of the task that an argument names.
func (c *ctl) listEvents(cmd *cobra.Command, p *pages, arg string, form func([]*perceptorv1.RunEvent) *table) error {
	name, err := readTaskName(arg)
	if err != nil {
		return err
	}
	return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		api, all := perceptorv1.NewTaskServiceClient(conn), &perceptorv1.ListRunEventsResponse{}
		all.Events, all.NextPageToken, err = gather(p, (*perceptorv1.ListRunEventsResponse).GetEvents,
			func(size int32, token string) (*perceptorv1.ListRunEventsResponse, error) {
				return api.ListRunEvents(ctx, &perceptorv1.ListRunEventsRequest{TaskId: name.id, IdempotencyKey: name.key, PageSize: size, PageToken: token})
			})
		if err == nil && len(all.Events) == 0 && p.token == "" {
			err = known(ctx, api, name)
		}
		if err != nil {
			return err
		}
		return c.show(cmd, all, func() *table { return form(all.Events) })
	})
}

// known returns an error if there is no such task. Events may outlive their task, so only a task
// without events is looked up.
func known(ctx context.Context, api perceptorv1.TaskServiceClient, name taskName) error {
	_, err := api.GetTask(ctx, &perceptorv1.GetTaskRequest{Id: name.id, IdempotencyKey: name.key})
	return err
}

func timelineTable(events []*perceptorv1.RunEvent) *table {
	t := &table{head: []string{"TIME", "RUN", "ATTEMPT", "TIMELINE"}}
	for _, e := range events {
		t.add(timeCell(e.EventTime), strconv.FormatInt(e.Seq, 10), strconv.Itoa(int(e.Attempt)), timeline(e))
	}
	return t
}

// timeline tells the story of an event. Each distance counts from the stage before it, or, of a stage that came before the run was
// due, to the instant.
func timeline(e *perceptorv1.RunEvent) string {
	var words []string
	var last time.Time
	stage := func(at *timestamppb.Timestamp, what, by string) {
		switch {
		case at == nil:
			return
		case last.IsZero():
		case e.ScheduledTime != nil && at.AsTime().Before(e.ScheduledTime.AsTime()): // published ahead, and held
			words = append(words, what+" "+stageTime(e.ScheduledTime.AsTime().Sub(at.AsTime()))+" before"+by)
			return
		default:
			what += " +" + stageTime(at.AsTime().Sub(last))
		}
		words, last = append(words, what+by), at.AsTime()
	}
	if at := e.ScheduledTime; at != nil {
		words, last = append(words, "due "+at.AsTime().Format("15:04:05.000")), at.AsTime()
	}
	stage(e.ClaimTime, "claimed", byName(e.Dispatcher))
	stage(e.PublishTime, "published", "")
	stage(e.ReceiveTime, "received", byListener(e.Listener))
	stage(e.HandlerBeginTime, "handler begun", "")
	if e.HandlerEndTime != nil && e.HandlerBeginTime != nil {
		words, last = append(words, "ran "+stageTime(e.HandlerEndTime.AsTime().Sub(last))), e.HandlerEndTime.AsTime()
	}
	by := ""
	if e.ClaimTime == nil {
		by = byName(e.Dispatcher)
	}
	switch e.Type {
	case perceptorv1.RunEvent_SUCCEEDED, perceptorv1.RunEvent_FAILED, perceptorv1.RunEvent_SNOOZED, perceptorv1.RunEvent_HANDED_BACK:
		stage(e.EventTime, "reported", " "+e.Type.String())
	default:
		stage(e.EventTime, e.Type.String(), by)
	}
	text := strings.Join(words, ", ")
	if e.Detail != "" {
		text += ": " + detailCell(e.Detail)
	}
	return text
}

func byName(name string) string {
	if name == "" {
		return ""
	}
	return " by " + name
}

func byListener(l *perceptorv1.Listener) string {
	if l == nil {
		return ""
	}
	var more []string
	for _, text := range []string{l.Host, l.Version} {
		if text != "" {
			more = append(more, text)
		}
	}
	by := " by listener"
	if l.Name != "" {
		by += " " + l.Name
	}
	if len(more) > 0 {
		by += " (" + strings.Join(more, ", ") + ")"
	}
	return by
}

// stageTime writes a duration as people say it: 310 µs, 12 ms, 1.2 s, 5m10s. Clocks of
// databases and readings of them differ by some milliseconds, so it is never below 0.
func stageTime(d time.Duration) string {
	switch {
	case d <= 0:
		return "0 ms"
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	}
	return d.Round(time.Second).String()
}
