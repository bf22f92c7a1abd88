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
)

func (c *ctl) taskCommand() *cobra.Command {
	api := perceptorv1.NewTaskServiceClient
	cmd := group("task", "Add, show, change and cancel tasks",
		c.taskAdd(),
		c.taskPreview(),
		c.taskGet(),
		c.taskList(),
		c.taskCount(),
		c.taskUpdate(),
		c.taskTrigger(),
		c.taskExplain(),
		c.taskHistory(),
		c.eachTask("cancel", "Cancel a task", func(ctx context.Context, conn *grpc.ClientConn, t taskName) (*perceptorv1.Task, error) {
			return api(conn).CancelTask(ctx, &perceptorv1.CancelTaskRequest{Id: t.id, IdempotencyKey: t.key})
		}),
		c.eachTask("pause", "Pause a task: claim no new run of it", func(ctx context.Context, conn *grpc.ClientConn, t taskName) (*perceptorv1.Task, error) {
			return api(conn).PauseTask(ctx, &perceptorv1.PauseTaskRequest{Id: t.id, IdempotencyKey: t.key})
		}),
		c.eachTask("resume", "Resume a paused task", func(ctx context.Context, conn *grpc.ClientConn, t taskName) (*perceptorv1.Task, error) {
			return api(conn).ResumeTask(ctx, &perceptorv1.ResumeTaskRequest{Id: t.id, IdempotencyKey: t.key})
		}),
		c.taskPurge(),
	)
	cmd.Long = "Add, show, change and cancel tasks. TASK is the id of a task, or key:KEY with its idempotency key. Where several can\n" +
		"be given, each is done by itself: one that fails does not keep the others from being done."
	return cmd
}

// taskName is an argument that names a task: its id, or key:KEY with its idempotency_key.
type taskName struct {
	id  int64
	key string
}

func readTaskName(arg string) (taskName, error) {
	if key, ok := strings.CutPrefix(arg, "key:"); ok && key != "" {
		return taskName{key: key}, nil
	}
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil {
		return taskName{}, cli.Usagef("%q is not a task id, and not key:KEY with an idempotency key", arg)
	}
	return taskName{id: id}, nil
}

func (c *ctl) taskList() *cobra.Command {
	p := &pages{}
	r := &perceptorv1.ListTasksRequest{}
	var typ, state, from, until string
	cmd := &cobra.Command{
		Use: "list", Short: "List tasks; without --state, those that have not finished", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if r.Type, err = taskType(typ); err != nil {
				return err
			}
			if r.State, err = taskState(state); err != nil {
				return err
			}
			if r.DueFrom, err = instant("due-from", from); err != nil {
				return err
			}
			if r.DueUntil, err = instant("due-until", until); err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
				api, all := perceptorv1.NewTaskServiceClient(conn), &perceptorv1.ListTasksResponse{}
				all.Tasks, all.NextPageToken, err = gather(p, (*perceptorv1.ListTasksResponse).GetTasks,
					func(size int32, token string) (*perceptorv1.ListTasksResponse, error) {
						r.PageSize, r.PageToken = size, token
						page, err := api.ListTasks(ctx, r)
						all.MissingDatabases = append(all.MissingDatabases, page.GetMissingDatabases()...)
						return page, err
					})
				if err != nil {
					return err
				}
				if err := c.show(cmd, all, func() *table { return taskTable(all.Tasks...) }); err != nil {
					return err
				}
				if missing := all.MissingDatabases; len(missing) > 0 {
					return fmt.Errorf("the list is not complete: databases %v do not answer", missing)
				}
				return nil
			})
		},
	}
	p.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&r.Kind, "kind", "", "only tasks of this kind")
	f.StringVar(&typ, "type", "", "only tasks of this type: one-shot, non-blocking or blocking")
	f.StringVar(&state, "state", "", "only tasks in this state: scheduled, running, completed, cancelled or failed")
	f.StringArrayVar(&r.Tags, "tag", nil, "only tasks with this tag; repeat it to require several tags")
	f.StringVar(&from, "due-from", "", "only tasks due at this instant or later, such as 2026-01-31T12:00:00Z or +90s from now")
	f.StringVar(&until, "due-until", "", "only tasks due before this instant")
	completes(cmd, "type", taskTypes...)
	completes(cmd, "state", taskStates...)
	return watchable(cmd)
}

// The values of --type and of --state.
var (
	taskTypes  = []string{"one-shot", "non-blocking", "blocking"}
	taskStates = []string{"scheduled", "running", "completed", "cancelled", "failed"}
)

// enumWord turns one-shot into ONE_SHOT.
func enumWord(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

func taskType(s string) (perceptorv1.Task_Type, error) {
	n, ok := perceptorv1.Task_Type_value[enumWord(s)]
	if s != "" && (!ok || n == 0) {
		return 0, cli.Usagef("--type: %q is not one of %s", s, strings.Join(taskTypes, ", "))
	}
	return perceptorv1.Task_Type(n), nil
}

func taskState(s string) (perceptorv1.Task_State, error) {
	n, ok := perceptorv1.Task_State_value[enumWord(s)]
	if s != "" && (!ok || n == 0) {
		return 0, cli.Usagef("--state: %q is not one of %s", s, strings.Join(taskStates, ", "))
	}
	return perceptorv1.Task_State(n), nil
}

func stateCell(t *perceptorv1.Task) string {
	if t.Paused {
		return t.State.String() + " (paused)"
	}
	return t.State.String()
}

func taskTable(tasks ...*perceptorv1.Task) *table {
	t := &table{narrow: 7, head: []string{
		"ID", "KIND", "TYPE", "STATE", "RUNS", "NEXT", "SCHEDULE",
		"DUE", "END", "MISSED", "OPEN RUNS", "VERSION", "CREATED", "FINISHED", "KEY", "TAGS",
	}}
	for _, x := range tasks {
		t.add(strconv.FormatInt(x.Id, 10), x.Kind, x.Type.String(), stateCell(x), runsCell(x), timeCell(x.ScheduledTime), scheduleCell(x),
			timeCell(x.DueTime), timeCell(x.EndTime), strconv.FormatInt(x.MissedCount, 10), strconv.Itoa(int(x.OpenRunCount)), strconv.Itoa(int(x.Version)),
			timeCell(x.CreateTime), timeCell(x.FinishTime), textCell(x.IdempotencyKey), textCell(strings.Join(x.Tags, ", ")))
	}
	return t
}
