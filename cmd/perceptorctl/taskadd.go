package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/jsonfault"
	"github.com/perceptor/perceptor/internal/jsonsyntax"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// maxTaskFile bounds what is read of a task in JSON, or of a payload.
const maxTaskFile = 1 << 20

func (c *ctl) taskAdd() *cobra.Command {
	a := &addFlags{}
	cmd := &cobra.Command{
		Use: "add", Short: "Add a task", Args: cobra.NoArgs,
		Long: "Add a task.\n\n" +
			"With --key or --request-id the command can be repeated and adds the task once, if all its terms are the same each time. So give\n" +
			"--begin and --end as instants then, not as distances from now such as +1h, which are other instants each time.",
		Example: "  perceptorctl task add --kind welcome-mail --type one-shot --begin +10s --param user=42\n" +
			"  perceptorctl task add --kind quality-check --type blocking --interval 1h --max-count 1000\n" +
			"  perceptorctl task add --kind report --type non-blocking --cron '30 6 * * MON-FRI' --tz Europe/London --spread 10m\n" +
			"  perceptorctl task add --kind invoice --type one-shot --payload @order.json\n" +
			"  perceptorctl task add --file task.json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := a.read(cmd)
			if err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				api := perceptorv1.NewTaskServiceClient(conn)
				added, err := api.AddTask(ctx, &perceptorv1.AddTaskRequest{Task: t, RequestId: a.requestID, Upsert: a.upsert})
				if err != nil {
					return c.addAgain(ctx, api, a, err)
				}
				a.sayInstants(cmd)
				return c.show(cmd, added, func() *table {
					t := &table{head: []string{"ID", "REPLAYED", "UPDATED", "NEXT"}}
					t.add(fmt.Sprint(added.Id), fmt.Sprint(added.Replayed), fmt.Sprint(added.Updated), nextOf(ctx, api, added.Id))
					return t
				})
			})
		},
	}
	a.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&a.requestID, "request-id", "", "id that makes the command safe to repeat with the same terms (default random)")
	f.StringVar(&a.task.IdempotencyKey, "key", "", "idempotency key of the task: adding it again with the same key and terms adds nothing")
	f.BoolVar(&a.upsert, "upsert", false, "replace the terms of the task that already has the key")
	return cmd
}

// nextOf says when a task that was added fires next. The token may only be allowed to add, so what
// cannot be read is not said.
func nextOf(ctx context.Context, api perceptorv1.TaskServiceClient, id int64) string {
	t, err := api.GetTask(ctx, &perceptorv1.GetTaskRequest{Id: id})
	switch {
	case err != nil:
		return "-"
	case t.State != perceptorv1.Task_SCHEDULED || t.Paused:
		return stateCell(t)
	}
	return timeCell(t.ScheduledTime)
}

func readTask(stdin io.Reader, file string) (*perceptorv1.Task, error) {
	text, err := readFile(stdin, "file", file)
	if err != nil {
		return nil, err
	}
	t := &perceptorv1.Task{}
	if fault := jsonsyntax.Fault(text); fault != "" {
		return nil, cli.Usagef("--file: not JSON: %s", fault)
	}
	if protojson.Unmarshal(text, t) == nil {
		return t, nil
	}
	var lines []string
	for _, fault := range jsonfault.Faults(text, t, "") {
		lines = append(lines, "--file: "+fault.Field+": "+fault.Message)
	}
	return nil, cli.Usagef("%s", strings.Join(lines, "\n"))
}

// readFile reads the file that a flag names; - is standard input.
func readFile(stdin io.Reader, flag, file string) ([]byte, error) {
	in := stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, cli.Usagef("--%s: %v", flag, err)
		}
		defer opened.Close() //nolint:errcheck // it was only read
		in = opened
	}
	data, err := io.ReadAll(io.LimitReader(in, maxTaskFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if len(data) > maxTaskFile {
		return nil, cli.Usagef("--%s: %s has more than %d bytes", flag, file, maxTaskFile)
	}
	return data, nil
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
