package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// fromNow is a flag of an instant that was given as a distance from now.
type fromNow struct {
	flag, text string
	at         *timestamppb.Timestamp
}

// distances are the instants of a task that were given as distances from now.
func (a *addFlags) distances() (list []fromNow) {
	for _, d := range []fromNow{{"begin", a.begin, a.task.BeginTime}, {"end", a.end, a.task.EndTime}} {
		if isDistance(d.text) {
			list = append(list, d)
		}
	}
	return list
}

// sayInstants tells how an add can be repeated whose key or request id was given: its distances from now are other
// instants the next time. Without either, nobody repeats it.
func (a *addFlags) sayInstants(cmd *cobra.Command) {
	f := cmd.Flags()
	repeatable := f.Changed("request-id") || f.Changed("key") && !a.upsert
	for _, d := range a.distances() {
		if repeatable {
			fmt.Fprintf(cmd.ErrOrStderr(), "to repeat this, give --%s %s: %s is another instant each time\n", d.flag, timeCell(d.at), d.text)
		}
	}
}

// addAgain explains the refusal of a repeated add whose instants differ because they are distances from now.
func (c *ctl) addAgain(ctx context.Context, api perceptorv1.TaskServiceClient, a *addFlags, err error) error {
	reason, list := reasonOf(err), a.distances()
	if reason != task.ReasonRequestIDReused && reason != task.ReasonKeyReused || len(list) == 0 {
		return err
	}
	var known *cli.Error
	if !errors.As(c.explain(err), &known) {
		return err
	}
	var told []string
	for _, d := range list {
		told = append(told, fmt.Sprintf("--%s %s is another instant each time, now %s", d.flag, d.text, timeCell(d.at)))
	}
	known.Hint = strings.Join(told, "; ") + "; to repeat an add, give the instant that it had the first time"
	if reason == task.ReasonKeyReused {
		known.Hint += a.firstInstants(ctx, api)
	}
	return known
}

// firstInstants says which instants the task has that has the key, or nothing if that cannot be read: the token may only
// be allowed to add.
func (a *addFlags) firstInstants(ctx context.Context, api perceptorv1.TaskServiceClient) string {
	t, err := api.GetTask(ctx, &perceptorv1.GetTaskRequest{IdempotencyKey: a.task.IdempotencyKey})
	if err != nil {
		return ""
	}
	text := ""
	for _, d := range a.distances() {
		at := t.BeginTime
		if d.flag == "end" {
			at = t.EndTime
		}
		if at != nil {
			text += fmt.Sprintf(" --%s %s", d.flag, timeCell(at))
		}
	}
	if text == "" {
		return ""
	}
	return "; the task has" + text
}
