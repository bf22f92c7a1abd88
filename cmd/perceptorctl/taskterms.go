package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/duration"
	"github.com/perceptor/perceptor/internal/jsonsyntax"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// addFlags are the flags of task add as they were given.
type addFlags struct {
	task                                                                  perceptorv1.Task
	typ, begin, end, file, requestID                                      string
	interval, ackTimeout, giveUpAfter, retention, initialBackoff, maxBack time.Duration
	maxAttempts                                                           int32
	multiplier, jitter                                                    float64
	params, tags                                                          []string
	payload, contentType                                                  string
	upsert                                                                bool
	timing                                                                timingFlags
	// update: the task is there, and the flags are those to change.
	update bool
}

// flags adds the flags of a task, which may also be in a file.
func (a *addFlags) flags(cmd *cobra.Command) {
	a.termFlags(cmd)
	cmd.Flags().StringVar(&a.file, "file", "", "file with a task in JSON, instead of the other flags; - for standard input")
}

// termFlags adds the flags of the terms and params of a task.
func (a *addFlags) termFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&a.task.Kind, "kind", "", "name of the handler")
	f.StringVar(&a.typ, "type", "", "one-shot, non-blocking or blocking")
	f.StringVar(&a.begin, "begin", "", "instant of the first run, such as 2026-01-31T12:00:00Z or +10s (default now)")
	f.StringVar(&a.end, "end", "", "end of the schedule: no run fires at or after this instant (default none)")
	duration.Var(f, &a.interval, "interval", 0, "time between two runs")
	completes(cmd, "type", taskTypes...)
	a.timing.flags(cmd)
	f.Int64Var(&a.task.MaxCount, "max-count", 0, "most runs of the task (default no limit)")
	f.StringArrayVar(&a.params, "param", nil, "KEY=VALUE for the handler; may be repeated")
	f.StringVar(&a.payload, "payload", "", "bytes for the handler: the text itself, @FILE, or @- for standard input")
	f.StringVar(&a.contentType, "content-type", "", "media type of the payload (default application/json if it is JSON, needed if it only looks like JSON, otherwise application/octet-stream)")
	duration.Var(f, &a.ackTimeout, "ack-timeout", 0, "how long to wait for a result before a run is delivered again (default 1m)")
	duration.Var(f, &a.giveUpAfter, "give-up-after", 0, "how long after its first claim a run without a result becomes dead (default 24h)")
	f.Int32Var(&a.maxAttempts, "max-attempts", 0, "failures after which a run becomes dead (default 5)")
	duration.Var(f, &a.initialBackoff, "initial-backoff", 0, "wait before the attempt after the first failure (default 1s)")
	duration.Var(f, &a.maxBack, "max-backoff", 0, "longest wait between two attempts (default 1h)")
	f.Float64Var(&a.multiplier, "multiplier", 0, "factor by which each wait exceeds the one before, 1 to 10 (default 2)")
	f.Float64Var(&a.jitter, "jitter", 0, "random share added to each wait, 0 to 1 (default 0.1)")
	f.BoolVar(&a.task.StopOnFailure, "stop-on-failure", false, "end the task as FAILED when a run becomes dead")
	duration.Var(f, &a.retention, "retention", 0, "how long the finished task is kept (default: the tenant's)")
	f.StringArrayVar(&a.tags, "tag", nil, "tag to find the task by; may be repeated")
}

// addDefault matches what the help of a flag says of a new task.
var addDefault = regexp.MustCompile(` \(default[^)]*\)`)

// replacedWhole are the flags whose default holds in an update too: those of a payload, which is replaced as
// a whole, and of an expression, which is read in its own language.
var replacedWhole = []string{"content-type", "dialect"}

// forUpdate makes the help that of an update, which leaves alone what no flag names: it shows no
// default of a new task, and not the type, which never changes.
func (a *addFlags) forUpdate(f *pflag.FlagSet) {
	for name := range flagFields {
		if flag := f.Lookup(name); !slices.Contains(replacedWhole, name) {
			flag.Usage = addDefault.ReplaceAllString(flag.Usage, "")
		}
	}
	_ = f.MarkHidden("type") // it is there
}

// flagFields says which fields of a task a flag of "task add" sets. Another
// expression keeps the time zone, and is read in its own language.
var flagFields = map[string]string{
	"kind": "kind", "begin": "begin_time", "end": "end_time", "interval": "interval", "max-count": "max_count",
	"param": "params", "payload": "payload", "content-type": "payload", "ack-timeout": "ack_timeout", "give-up-after": "give_up_after", "stop-on-failure": "stop_on_failure",
	"retention": "retention", "max-attempts": "retry_policy.max_attempts",
	"multiplier": "retry_policy.multiplier", "jitter": "retry_policy.jitter",
	"initial-backoff": "retry_policy.initial_backoff", "max-backoff": "retry_policy.max_backoff", "tag": "tags",
	"cron": "cron.expression,cron.dialect", "tz": "cron.time_zone", "dialect": "cron.dialect", "misfire": "misfire_policy", "misfire-grace": "misfire_grace",
	"misfire-limit": "misfire_limit", "overlap": "overlap",
	"exclude-calendar": "exclude_calendars", "only-calendar": "only_calendars", "spread": "spread",
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
	if t.Payload, err = a.readPayload(cmd); err != nil {
		return nil, err
	}
	t.Tags = a.tags
	if err := refuseZero(cmd.Flags()); err != nil {
		return nil, err
	}
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

// refuseZero refuses a 0 that the API would take for a number that was not given, so that the default applies.
func refuseZero(f *pflag.FlagSet) error {
	for _, x := range []struct {
		flag string
		most int
	}{{"max-attempts", task.MaxAttempts}, {"multiplier", 10}, {"misfire-limit", task.MaxCatchUp}} {
		if flag := f.Lookup(x.flag); flag.Changed && flag.Value.String() == "0" {
			return cli.Usagef("--%s: 0 is not between 1 and %d", x.flag, x.most)
		}
	}
	return nil
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
		if _, twice := params[k]; twice {
			return nil, cli.Usagef("--param: %q is given twice", k)
		}
		params[k] = v
	}
	return params, nil
}

// readPayload returns the payload of the flags; nil for none. An empty one removes that of a
// task that is there.
func (a *addFlags) readPayload(cmd *cobra.Command) (*perceptorv1.Payload, error) {
	if !cmd.Flags().Changed("payload") {
		if a.contentType != "" {
			return nil, cli.Usagef("--content-type: there is no --payload that it could be of")
		}
		return nil, nil
	}
	data := []byte(a.payload)
	if file, ok := strings.CutPrefix(a.payload, "@"); ok {
		var err error
		if data, err = readFile(cmd.InOrStdin(), "payload", file); err != nil {
			return nil, err
		}
	}
	switch {
	case len(data) == 0 && a.update:
		return nil, nil
	case len(data) == 0:
		return nil, cli.Usagef("--payload: is empty")
	case a.contentType == "" && meansJSON(a.payload, data) && !json.Valid(data):
		return nil, cli.Usagef("--payload: is not JSON: %s; set --content-type if it is something else", jsonsyntax.Fault(data))
	case a.contentType == "" && json.Valid(data):
		return &perceptorv1.Payload{Data: data, ContentType: task.JSONContentType}, nil
	}
	return &perceptorv1.Payload{Data: data, ContentType: a.contentType}, nil
}

// taskDetails lists the fields of one task below each other.
func taskDetails(x *perceptorv1.Task) *table {
	t := &table{head: []string{"FIELD", "VALUE"}}
	t.add("id", strconv.FormatInt(x.Id, 10))
	t.add("kind", x.Kind)
	t.add("type", x.Type.String())
	t.add("state", stateCell(x))
	t.add("begin", timeCell(x.BeginTime))
	t.add("end", timeCell(x.EndTime))
	t.add("schedule", scheduleCell(x))
	t.add("misfire", misfireCell(x))
	t.add("overlap", overlapCell(x))
	t.add("exclude calendars", textCell(strings.Join(x.ExcludeCalendars, ", ")))
	t.add("only calendars", textCell(strings.Join(x.OnlyCalendars, ", ")))
	t.add("spread", durationCell(x.Spread))
	t.add("runs", runsCell(x))
	t.add("version", strconv.Itoa(int(x.Version)))
	t.add("missed", strconv.FormatInt(x.MissedCount, 10))
	t.add("scheduled", timeCell(x.ScheduledTime))
	t.add("due", timeCell(x.DueTime))
	t.add("attempt", strconv.Itoa(int(x.Attempt)))
	t.add("open runs", strconv.Itoa(int(x.OpenRunCount)))
	t.add("retry", retryCell(x.RetryPolicy))
	t.add("stop on failure", strconv.FormatBool(x.StopOnFailure))
	t.add("ack timeout", durationCell(x.AckTimeout))
	t.add("give up after", durationCell(x.GiveUpAfter))
	t.add("retention", durationCell(x.Retention))
	t.add("created", timeCell(x.CreateTime))
	t.add("finished", timeCell(x.FinishTime))
	t.add("key", textCell(x.IdempotencyKey))
	t.add("tags", textCell(strings.Join(x.Tags, ", ")))
	if x.ReplayOf != "" {
		t.add("replay of", x.ReplayOf)
	}
	if x.BackfillOf != 0 {
		t.add("backfill of", fmt.Sprintf("task %d, by operation %d", x.BackfillOf, x.BackfillId))
	}
	for _, k := range sortedKeys(x.Params) {
		t.add("params."+k, x.Params[k])
	}
	t.addPayload(x.Payload)
	return t
}

func misfireCell(x *perceptorv1.Task) string {
	switch x.MisfirePolicy {
	case perceptorv1.Task_SKIP:
		return "SKIP, grace " + durationCell(x.MisfireGrace)
	case perceptorv1.Task_FIRE_ALL:
		return fmt.Sprintf("FIRE_ALL, at most %d", x.MisfireLimit)
	}
	return x.MisfirePolicy.String()
}

func overlapCell(x *perceptorv1.Task) string {
	if x.Type != perceptorv1.Task_NON_BLOCKING {
		return "-"
	}
	return x.Overlap.String()
}

func retryCell(p *perceptorv1.RetryPolicy) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("%d attempts, %s x %v up to %s, jitter %v", p.MaxAttempts, durationCell(p.InitialBackoff), p.Multiplier, durationCell(p.MaxBackoff), p.GetJitter())
}

func runsCell(x *perceptorv1.Task) string {
	runs := strconv.FormatInt(x.RunCount, 10)
	if x.MaxCount > 0 {
		runs += " of " + strconv.FormatInt(x.MaxCount, 10)
	}
	return runs
}

// meansJSON reports whether a payload is most likely meant as JSON, so that a slip of the pen is not stored as bytes.
func meansJSON(flag string, data []byte) bool {
	data = bytes.TrimSpace(data)
	return strings.HasPrefix(flag, "@") && strings.HasSuffix(flag, ".json") || bytes.HasPrefix(data, []byte("{")) || bytes.HasPrefix(data, []byte("[{"))
}
