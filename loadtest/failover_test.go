package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// withoutPrimary is how long there is no primary in the test below.
const withoutPrimary = 3 * time.Second

// TestAFailOverToTheSynchronousStandbyLosesNothing: the primary dies under load, and some time later its
// synchronous standby is promoted. Programs and their connection strings stay as they are. Meanwhile they are
// not ready, and no process ends.
func TestAFailOverToTheSynchronousStandbyLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every real part; make test runs it")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	o := harness.DefaultStack()
	o.Taskds, o.Dispatchers, o.Session, o.Assignment, o.Standby = 2, 2, e2eSession, stack.InPostgres, true
	o.Progress = func(what string) { t.Log(what) }
	o.Postgres["fsync"], o.Postgres["shared_buffers"] = "off", "256MB" // the processes die, the machine does not
	s := ownStack(t, o)
	load := e2eOptions(t, s, []scenario.Disturbance{{Action: scenario.FailOver, Part: "postgres", After: 3 * time.Second, For: withoutPrimary}})
	load.Contract, load.Rate, load.For = true, 100, 12*time.Second
	patient(load)
	var beside sync.WaitGroup
	unready := make(map[string]bool)
	beside.Go(func() {
		for harness.Sleep(ctx, 100*time.Millisecond) == nil && len(unready) < len(s.Programs()) {
			for _, p := range s.Programs() {
				if answers, ok := p.Server.(interface{ Answers(context.Context) error }); ok && answers.Answers(ctx) != nil && ctx.Err() == nil {
					unready[p.Name] = true
				}
			}
		}
	})
	report, err := harness.Run(ctx, load)
	ready := everyReady(ctx, s)
	cancel()
	beside.Wait()
	if err := errors.Join(err, ready); err != nil {
		t.Error(err)
	}
	if report != nil {
		judge(t, report, 0)
		logRows(t, s, report)
	}
	if len(unready) != len(s.Programs()) {
		t.Errorf("programs that were not ready without a primary: %v", unready)
	}
}

// everyReady returns an error unless all programs are ready.
func everyReady(ctx context.Context, s *stack.Stack) error {
	var errs []error
	for _, p := range s.Programs() {
		if answers, ok := p.Server.(interface{ Answers(context.Context) error }); ok {
			errs = append(errs, answers.Answers(ctx))
		}
	}
	return errors.Join(errs...)
}

// logRows logs what the databases have of the tasks of the examples in a report.
func logRows(t *testing.T, s *stack.Stack, report *scenario.Report) {
	t.Helper()
	if report.Broken() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	db, err := pgx.Connect(ctx, s.Postgres())
	if err != nil {
		t.Logf("connect: %v", err)
		return
	}
	defer db.Close(ctx)
	for _, v := range report.Examples {
		shard := task.Shard(v.Task % task.Shards)
		schema := pgx.Identifier{store.SchemaName(shard.Database())}.Sanitize()
		for _, of := range []string{
			"task t WHERE t.id = $1", "quarantined_row t WHERE $1::int8 <> 0", "owner t WHERE t.item = $1::int8 % 512",
			"(SELECT id, shards, created_at, quarantine_reason FROM %[1]s.outbox) t WHERE $1::int8 <> 0",
			"topic_failure t WHERE $1::int8 <> 0", "(SELECT extract(epoch FROM now()) * 1000 AS now) t WHERE $1::int8 <> 0",
		} {
			if of[0] != '(' {
				of = "%[1]s." + of
			}
			rows, _ := db.Query(ctx, "SELECT row_to_json(t)::text FROM "+strings.ReplaceAll(of, "%[1]s", schema), int64(v.Task))
			found, err := pgx.CollectRows(rows, pgx.RowTo[string])
			t.Logf("%v: %s: %v %v", v.Task, of, found, err)
		}
	}
}
