package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// maxTaskFile bounds what is read of a task in JSON.
const maxTaskFile = 1 << 20

// addFlags are the flags of task add as they were given.
type addFlags struct {
	task                                                                  perceptorv1.Task
	typ, begin, end, file, requestID                                      string
	interval, ackTimeout, giveUpAfter, retention, initialBackoff, maxBack time.Duration
	maxAttempts                                                           int32
	multiplier, jitter                                                    float64
	params, tags                                                          []string
	upsert                                                                bool
	timing                                                                timingFlags
	// update: the task is there, and the flags are those to change.
	update bool
}

func (c *ctl) taskAdd() *cobra.Command {
	a := &addFlags{}
	cmd := &cobra.Command{
		Use: "add", Short: "Add a task", Args: cobra.NoArgs,
		Example: "  perceptorctl task add --kind welcome-mail --type one-shot --begin +10s --param user=42\n" +
			"  perceptorctl task add --kind quality-check --type blocking --interval 1h --max-count 1000\n" +
			"  perceptorctl task add --kind report --type non-blocking --cron '30 6 * * MON-FRI' --tz Europe/London --spread 10m\n" +
			"  perceptorctl task add --file task.json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := a.read(cmd)
			if err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				added, err := perceptorv1.NewTaskServiceClient(conn).AddTask(ctx, &perceptorv1.AddTaskRequest{Task: t, RequestId: a.requestID, Upsert: a.upsert})
				if err != nil {
					return err
				}
				return c.show(cmd, added, func() *table {
					t := &table{head: []string{"ID", "REPLAYED", "UPDATED"}}
					t.add(fmt.Sprint(added.Id), fmt.Sprint(added.Replayed), fmt.Sprint(added.Updated))
					return t
				})
			})
		},
	}
	a.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&a.requestID, "request-id", "", "id that makes the command safe to repeat (default random)")
	f.StringVar(&a.task.IdempotencyKey, "key", "", "idempotency key of the task: adding it again with the same key adds nothing")
	f.BoolVar(&a.upsert, "upsert", false, "replace the terms of the task that already has the key")
	return cmd
}

func (a *addFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&a.task.Kind, "kind", "", "name of the handler")
	f.StringVar(&a.typ, "type", "", "one-shot, non-blocking or blocking")
	f.StringVar(&a.begin, "begin", "", "instant of the first run, such as 2026-01-31T12:00:00Z or +10s (default now)")
	f.StringVar(&a.end, "end", "", "end of the schedule: no run fires at or after this instant (default none)")
	f.DurationVar(&a.interval, "interval", 0, "time between two runs")
	a.timing.flags(f)
	f.Int64Var(&a.task.MaxCount, "max-count", 0, "most runs of the task (default no limit)")
	f.StringArrayVar(&a.params, "param", nil, "KEY=VALUE for the handler; may be repeated")
	f.DurationVar(&a.ackTimeout, "ack-timeout", 0, "how long to wait for a result before a run is delivered again (default 1m)")
	f.DurationVar(&a.giveUpAfter, "give-up-after", 0, "how long after its first claim a run without a result becomes dead (default 24h)")
	f.Int32Var(&a.maxAttempts, "max-attempts", 0, "failures after which a run becomes dead (default 5)")
	f.DurationVar(&a.initialBackoff, "initial-backoff", 0, "wait before the attempt after the first failure (default 1s)")
	f.DurationVar(&a.maxBack, "max-backoff", 0, "longest wait between two attempts (default 1h)")
	f.Float64Var(&a.multiplier, "multiplier", 0, "factor by which each wait exceeds the one before, 1 to 10 (default 2)")
	f.Float64Var(&a.jitter, "jitter", 0, "random share added to each wait, 0 to 1 (default 0.1)")
	f.BoolVar(&a.task.StopOnFailure, "stop-on-failure", false, "end the task as FAILED when a run becomes dead")
	f.DurationVar(&a.retention, "retention", 0, "how long the finished task is kept (default: the tenant's)")
	f.StringVar(&a.file, "file", "", "file with a task in JSON, instead of the other flags; - for standard input")
	f.StringArrayVar(&a.tags, "tag", nil, "tag to find the task by; may be repeated")
}

// read returns the task that was asked for.
func (a *addFlags) read(cmd *cobra.Command) (t *perceptorv1.Task, err error) {
	if a.requestID == "" {
		a.requestID = rand.Text()
	}
	if a.file != "" {
		if given := givenTerms(cmd.Flags()); len(given) > 0 {
			return nil, cli.Usagef("--file replaces --%s", strings.Join(given, ", --"))
		}
		return readTask(cmd.InOrStdin(), a.file)
	}
	t = &a.task
	if t.Type, err = taskType(a.typ); err != nil {
		return nil, err
	}
	if t.BeginTime, err = instant("begin", a.begin); err != nil {
		return nil, err
	}
	if t.EndTime, err = instant("end", a.end); err != nil {
		return nil, err
	}
	if t.Params, err = readParams(a.params); err != nil {
		return nil, err
	}
	t.Tags = a.tags
	if cmd.Flags().Changed("interval") {
		t.Schedule = &perceptorv1.Task_Interval{Interval: durationpb.New(a.interval)}
	}
	if err := a.timing.read(cmd.Flags(), t, a.update); err != nil {
		return nil, err
	}
	if cmd.Flags().Changed("retention") {
		t.Retention = durationpb.New(a.retention)
	}
	t.AckTimeout, t.GiveUpAfter = given(cmd, "ack-timeout", a.ackTimeout), given(cmd, "give-up-after", a.giveUpAfter)
	t.RetryPolicy = a.retryPolicy(cmd)
	return t, nil
}

// given is the value of a flag, also if that is 0; nil: it was not given.
func given(cmd *cobra.Command, flag string, d time.Duration) *durationpb.Duration {
	if !cmd.Flags().Changed(flag) {
		return nil
	}
	return durationpb.New(d)
}

func (a *addFlags) retryPolicy(cmd *cobra.Command) *perceptorv1.RetryPolicy {
	p := &perceptorv1.RetryPolicy{
		MaxAttempts: a.maxAttempts, Multiplier: a.multiplier,
		InitialBackoff: given(cmd, "initial-backoff", a.initialBackoff), MaxBackoff: given(cmd, "max-backoff", a.maxBack),
	}
	if cmd.Flags().Changed("jitter") {
		p.Jitter = &a.jitter
	}
	if proto.Equal(p, &perceptorv1.RetryPolicy{}) {
		return nil
	}
	return p
}

// givenTerms are the flags of the terms of a task that were given.
func givenTerms(f *pflag.FlagSet) (list []string) {
	f.Visit(func(flag *pflag.Flag) {
		if flagFields[flag.Name] != "" || flag.Name == "key" {
			list = append(list, flag.Name)
		}
	})
	return list
}

func readParams(list []string) (map[string]string, error) {
	params := make(map[string]string, len(list))
	for _, p := range list {
		k, v, ok := strings.Cut(p, "=")
		if !ok {
			return nil, cli.Usagef("--param: %q is not KEY=VALUE", p)
		}
		params[k] = v
	}
	return params, nil
}

func readTask(stdin io.Reader, file string) (*perceptorv1.Task, error) {
	in := stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, cli.Usagef("--file: %v", err)
		}
		defer opened.Close() //nolint:errcheck // it was only read
		in = opened
	}
	text, err := io.ReadAll(io.LimitReader(in, maxTaskFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if len(text) > maxTaskFile {
		return nil, cli.Usagef("--file: %s has more than %d bytes", file, maxTaskFile)
	}
	t := &perceptorv1.Task{}
	if err := protojson.Unmarshal(text, t); err != nil {
		return nil, cli.Usagef("--file: not a task in JSON: %v", err)
	}
	return t, nil
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
