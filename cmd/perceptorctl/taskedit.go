package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// taskUpdate changes the fields whose flags are given.
func (c *ctl) taskUpdate() *cobra.Command {
	a := addFlags{update: true}
	var fields []string
	var version int32
	cmd := &cobra.Command{
		Use: "update TASK", Short: "Change the terms of a task", Args: cobra.ExactArgs(1),
		Example: "  perceptorctl task update 3587 --interval 2h --max-count 0\n" +
			"  perceptorctl task update 3587 --cron '30 6 * * MON-FRI' --version 4\n" +
			"  perceptorctl task update 3587 --tz Europe/London\n" +
			"  perceptorctl task update 3587 --file terms.json --fields interval,retry_policy.max_attempts",
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("type") {
				return cli.Usagef("--type: the type of a task never changes; cancel the task and add another one")
			}
			name, err := readTaskName(args[0])
			if err != nil {
				return err
			}
			t, err := a.read(cmd)
			if err != nil {
				return err
			}
			if t.Id = name.id; name.key != "" {
				t.IdempotencyKey = name.key
			}
			r := &perceptorv1.UpdateTaskRequest{Task: t, Version: version, UpdateMask: &fieldmaskpb.FieldMask{Paths: fields}}
			if a.file == "" {
				for flag, list := range flagFields {
					if f := cmd.Flags().Lookup(flag); f != nil && f.Changed {
						r.UpdateMask.Paths = append(r.UpdateMask.Paths, strings.Split(list, ",")...)
					}
				}
				if len(r.UpdateMask.Paths) == 0 {
					return cli.Usagef("nothing to change; set a flag, or --fields with --file")
				}
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				t, err := perceptorv1.NewTaskServiceClient(conn).UpdateTask(ctx, r)
				if err != nil {
					return err
				}
				return c.show(cmd, t, func() *table { return taskDetails(t) })
			})
		},
	}
	a.flags(cmd)
	a.forUpdate(cmd.Flags())
	cmd.Flags().StringSliceVar(&fields, "fields", nil, "fields to change, such as interval,retry_policy.max_attempts; a field without a value gets its default")
	cmd.Flags().Int32Var(&version, "version", 0, "version that the task must have; 0 for any")
	return cmd
}

// taskTrigger opens a run now.
func (c *ctl) taskTrigger() *cobra.Command {
	r := &perceptorv1.TriggerTaskRequest{}
	cmd := &cobra.Command{
		Use: "trigger TASK", Short: "Run a task now: a recurring one in addition to its schedule, a one-shot in place of it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := readTaskName(args[0])
			if err != nil {
				return err
			}
			r.Id, r.IdempotencyKey = name.id, name.key
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				a, err := perceptorv1.NewTaskServiceClient(conn).TriggerTask(ctx, r)
				if err != nil {
					return err
				}
				return c.show(cmd, a, func() *table {
					t := &table{head: []string{"RUN", "REPLAYED"}}
					t.add(a.RunId, strings.ToLower(strconv.FormatBool(a.Replayed)))
					return t
				})
			})
		},
	}
	cmd.Flags().StringVar(&r.RequestId, "request-id", "", "id that makes the command safe to repeat")
	return cmd
}
