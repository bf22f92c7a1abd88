package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/testenv"
)

// deadLetters reads the tenant's dead-letter topic until it has n runs, and returns the
// headers of their records by run id.
func (g *guest) deadLetters(n int) map[string]map[string]string {
	g.t.Helper()
	var topic string
	await(g.t, "the dead-letter topic exists", func() bool {
		i := slices.IndexFunc(g.topics(), func(name string) bool { return strings.HasSuffix(name, ".dead") })
		if i >= 0 {
			topic = g.topics()[i]
		}
		return i >= 0
	})
	options := []kgo.Opt{kgo.SeedBrokers(g.stack.Kafka()), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}
	if secure := g.stack.SecureKafka(); secure != nil {
		admin := scram.Auth{User: testenv.KafkaAdmin, Pass: testenv.KafkaPassword}
		options = append(options, kgo.DialTLSConfig(secure.CA.Trust()), kgo.SASL(admin.AsSha512Mechanism()))
	}
	c, err := kgo.NewClient(options...)
	if err != nil {
		g.t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(g.t.Context(), awaitLimit)
	defer cancel()
	found := map[string]map[string]string{}
	for len(found) < n {
		fetched := c.PollFetches(ctx)
		if ctx.Err() != nil {
			g.t.Fatalf("topic %s has the runs %v, want %d runs", topic, slices.Sorted(maps.Keys(found)), n)
		}
		for _, r := range fetched.Records() {
			headers := map[string]string{"topic": r.Topic}
			for _, h := range r.Headers {
				headers[h.Key] = string(h.Value)
			}
			found[headers["perceptor_run_id"]] = headers
		}
	}
	return found
}

// bulk executes an operation on dead runs and returns the number of changed runs.
func (g *guest) bulk(b client.Bulk) int64 {
	g.t.Helper()
	op, err := g.CreateBulk(g.t.Context(), b)
	if err != nil {
		g.t.Fatal(err)
	}
	await(g.t, b.Action.String()+" ends", func() bool {
		if op, err = g.GetBulk(g.t.Context(), op.ID); err != nil {
			g.t.Fatal(err)
		}
		return op.State == client.BulkDone
	})
	if op.Failed != 0 {
		g.t.Errorf("bulk operation %s = %+v", b.Action, op)
	}
	return op.Done
}

const (
	noAccount = "there is no such account"
	away      = "the mail server is away"
)

// addFailingTasks adds tasks whose runs become dead runs: one bill that fails permanently
// at its first attempt, and five mails that fail at both of their attempts. Three mails
// have a tag.
func (g *guest) addFailingTasks() (ids map[int64]string) {
	g.t.Helper()
	retry := client.RetryPolicy{MaxAttempts: 2, InitialBackoff: 100 * time.Millisecond, MaxBackoff: 100 * time.Millisecond, Jitter: client.NoJitter}
	ids = map[int64]string{}
	for n := range 6 {
		t := client.Task{Kind: "mail", Type: client.OneShot, Params: map[string]string{"n": strconv.Itoa(n)}, Retry: retry}
		switch {
		case n == 0:
			t.Kind, t.Retry.MaxAttempts = "bill", 5
		case n <= 3:
			t.Tags = []string{"today"}
		}
		ids[g.add(t)] = strconv.Itoa(n)
	}
	await(g.t, "there are six dead runs", func() bool { return len(g.dead(client.DeadFilter{})) == len(ids) })
	return ids
}

func TestADeadRunIsPublishedListedReplayedAndForgotten(t *testing.T) {
	g := newGuest(t, realStack(t), "deadruns")
	var healthy atomic.Bool
	failing := func(err error) client.Handler {
		return func(context.Context, *client.Run) error {
			if healthy.Load() {
				return nil
			}
			return err
		}
	}
	g.listen(map[string]client.Handler{"bill": failing(client.Permanent(errors.New(noAccount))), "mail": failing(errors.New(away))})
	ids := g.addFailingTasks()
	g.checkListed(ids)
	healthy.Store(true)
	g.replay(ids)

	// Two mails are left. One is purged by its id, the other by a filter.
	left := g.dead(client.DeadFilter{})
	if len(left) != 2 || left[0].Kind != "mail" || left[1].Kind != "mail" || len(left[0].Tags)+len(left[1].Tags) != 0 {
		t.Fatalf("dead runs left = %+v, want two mails without tags", left)
	}
	if err := g.PurgeDeadRun(t.Context(), left[0].RunID); err != nil {
		t.Error(err)
	}
	if n := g.bulk(client.Bulk{Action: client.BulkPurgeDead, Dead: client.DeadFilter{Reason: client.OutOfAttempts}}); n != 1 {
		t.Errorf("%d dead runs were purged, want 1", n)
	}
	if left := g.dead(client.DeadFilter{}); len(left) != 0 {
		t.Errorf("%d dead runs are left after the purge: %+v", len(left), left[0])
	}
	if bills, mails := len(g.called("bill")), len(g.called("mail")); bills != 2 || mails != 5*2+3 {
		t.Errorf("%d calls for the bill and %d calls for mails, want 2 and 13", bills, mails)
	}
}

// checkListed compares the list of dead runs and the dead-letter topic with the outcomes of
// the handlers.
func (g *guest) checkListed(ids map[int64]string) {
	g.t.Helper()
	letters := g.deadLetters(len(ids))
	for _, d := range g.dead(client.DeadFilter{}) {
		reason, text, attempts, name := client.OutOfAttempts, away, 2, "OUT_OF_ATTEMPTS"
		if d.Kind == "bill" {
			reason, text, attempts, name = client.PermanentFailure, noAccount, 1, "PERMANENT"
		}
		if d.Reason != reason || d.Error != text || d.Attempt != attempts || d.Params["n"] != ids[d.TaskID] {
			g.t.Errorf("dead run = %+v, want %s, %q, %d attempts, n=%s", d, reason, text, attempts, ids[d.TaskID])
		}
		h := letters[d.RunID]
		if h["perceptor_reason"] != name || h["perceptor_error"] != text || h["ce_type"] != "perceptor.dead.v1" {
			g.t.Errorf("run %s: wrong headers in the dead-letter topic: %v", d.RunID, h)
		}
		if died, err := strconv.ParseInt(h["perceptor_died_at"], 10, 64); err != nil || died != d.DiedAt.UnixMilli() {
			g.t.Errorf("run %s has DiedAt %s, but the topic has %q", d.RunID, d.DiedAt, h["perceptor_died_at"])
		}
		info, err := g.GetTask(g.t.Context(), d.TaskID)
		if err != nil || info.State != client.Failed {
			g.t.Errorf("task of dead run %s = %+v, %v, want state FAILED", d.RunID, info, err)
		}
	}
}

// replay replays the bill, and the mails with the tag, and checks their calls.
func (g *guest) replay(ids map[int64]string) {
	g.t.Helper()
	bill := g.dead(client.DeadFilter{Kind: "bill"})[0]
	id, err := g.ReplayDeadRun(g.t.Context(), bill.RunID)
	again, errAgain := g.ReplayDeadRun(g.t.Context(), bill.RunID)
	if err != nil || errAgain != nil || id != again || id == bill.TaskID {
		g.t.Fatalf("ReplayDeadRun = %d, %v, then %d, %v, want one new task", id, err, again, errAgain)
	}
	if n := g.bulk(client.Bulk{Action: client.BulkReplay, Dead: client.DeadFilter{Tags: []string{"today"}}}); n != 3 {
		g.t.Errorf("%d dead runs were replayed by their tag, want 3", n)
	}
	done := map[string]string{}
	await(g.t, "four dead runs are called again", func() bool {
		clear(done)
		for _, r := range slices.Concat(g.called("bill"), g.called("mail")) {
			if r.ReplayOf != "" {
				done[r.ReplayOf] = r.Params["n"]
			}
		}
		return len(done) >= 4
	})
	for task, n := range ids {
		run := client.RunID(task, 1)
		if got, ok := done[run]; ok != (n <= "3") || ok && got != n {
			g.t.Errorf("run %s with n=%s: called again = %t, with n=%s", run, n, ok, got)
		}
	}
	await(g.t, "the bill's new task ends", func() bool {
		info, err := g.GetTask(g.t.Context(), id)
		return err == nil && info.State == client.Completed
	})
	if _, err := g.GetDeadRun(g.t.Context(), bill.RunID); !errors.Is(err, client.ErrNotFound) {
		g.t.Errorf("GetDeadRun of the replayed run = %v, want ErrNotFound", err)
	}
}
