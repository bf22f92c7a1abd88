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

	"github.com/perceptor/perceptor/client"
)

// letters reads the tenant's dead-letter topic until n runs are there, and returns
// the headers of their records.
func (g *guest) letters(n int) map[string]map[string]string {
	g.t.Helper()
	var topic string
	await(g.t, "the dead-letter topic is made", func() bool {
		i := slices.IndexFunc(g.topics(), func(name string) bool { return strings.HasSuffix(name, ".dead") })
		if i >= 0 {
			topic = g.topics()[i]
		}
		return i >= 0
	})
	c, err := kgo.NewClient(kgo.SeedBrokers(g.stack.Kafka()), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
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
			g.t.Fatalf("%s has the runs %v, want %d", topic, slices.Sorted(maps.Keys(found)), n)
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

// bulk does an operation on dead runs and returns how many it changed.
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
		g.t.Errorf("%s: %+v", b.Action, op)
	}
	return op.Done
}

const (
	noAccount = "there is no such account"
	away      = "the mail server is away"
)

// undertaken are tasks whose runs die: one bill for good at its first attempt, five
// mails by their two attempts, three of them with a tag.
func (g *guest) undertaken() (ids map[int64]string) {
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
	await(g.t, "six runs die", func() bool { return len(g.dead(client.DeadFilter{})) == len(ids) })
	return ids
}

func TestADeadRunIsPublishedListedReplayedAndForgotten(t *testing.T) {
	g := newGuest(t, realStack(t), "undertaker")
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
	ids := g.undertaken()
	g.listed(ids)
	healthy.Store(true)
	g.replayed(ids)

	// Two mails are left. One is forgotten by its id, the other by a filter.
	left := g.dead(client.DeadFilter{})
	if len(left) != 2 || left[0].Kind != "mail" || left[1].Kind != "mail" || len(left[0].Tags)+len(left[1].Tags) != 0 {
		t.Fatalf("left are %+v", left)
	}
	if err := g.PurgeDeadRun(t.Context(), left[0].RunID); err != nil {
		t.Error(err)
	}
	if n := g.bulk(client.Bulk{Action: client.BulkPurgeDead, Dead: client.DeadFilter{Reason: client.OutOfAttempts}}); n != 1 {
		t.Errorf("%d were purged, want 1", n)
	}
	if left := g.dead(client.DeadFilter{}); len(left) != 0 {
		t.Errorf("after the purge %d are left: %+v", len(left), left[0])
	}
	if bills, mails := len(g.called("bill")), len(g.called("mail")); bills != 2 || mails != 5*2+3 {
		t.Errorf("%d calls for the bill and %d for mails, want 2 and 13", bills, mails)
	}
}

// listed holds the list and the topic against what the handlers did.
func (g *guest) listed(ids map[int64]string) {
	g.t.Helper()
	letters := g.letters(len(ids))
	for _, d := range g.dead(client.DeadFilter{}) {
		reason, text, attempts, name := client.OutOfAttempts, away, 2, "OUT_OF_ATTEMPTS"
		if d.Kind == "bill" {
			reason, text, attempts, name = client.PermanentFailure, noAccount, 1, "PERMANENT"
		}
		if d.Reason != reason || d.Error != text || d.Attempt != attempts || d.Params["n"] != ids[d.TaskID] {
			g.t.Errorf("listed as %+v, want %s, %q, %d attempts, n=%s", d, reason, text, attempts, ids[d.TaskID])
		}
		h := letters[d.RunID]
		if h["perceptor_reason"] != name || h["perceptor_error"] != text || h["ce_type"] != "perceptor.dead.v1" {
			g.t.Errorf("run %s: the dead-letter topic says %v", d.RunID, h)
		}
		if died, err := strconv.ParseInt(h["perceptor_died_at"], 10, 64); err != nil || died != d.DiedAt.UnixMilli() {
			g.t.Errorf("run %s died at %s, the topic says %q", d.RunID, d.DiedAt, h["perceptor_died_at"])
		}
		info, err := g.GetTask(g.t.Context(), d.TaskID)
		if err != nil || info.State != client.Failed {
			g.t.Errorf("the task of dead run %s: %+v, %v", d.RunID, info, err)
		}
	}
}

// replayed does the bill again, and the mails with the tag.
func (g *guest) replayed(ids map[int64]string) {
	g.t.Helper()
	bill := g.dead(client.DeadFilter{Kind: "bill"})[0]
	id, err := g.ReplayDeadRun(g.t.Context(), bill.RunID)
	again, errAgain := g.ReplayDeadRun(g.t.Context(), bill.RunID)
	if err != nil || errAgain != nil || id != again || id == bill.TaskID {
		g.t.Fatalf("replayed as %d, %v; again as %d, %v", id, err, again, errAgain)
	}
	if n := g.bulk(client.Bulk{Action: client.BulkReplay, Dead: client.DeadFilter{Tags: []string{"today"}}}); n != 3 {
		g.t.Errorf("%d were replayed by their tag, want 3", n)
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
			g.t.Errorf("run %s with n=%s was called again: %t, with n=%s", run, n, ok, got)
		}
	}
	await(g.t, "the bill's new task ends", func() bool {
		info, err := g.GetTask(g.t.Context(), id)
		return err == nil && info.State == client.Completed
	})
	if _, err := g.GetDeadRun(g.t.Context(), bill.RunID); !errors.Is(err, client.ErrNotFound) {
		g.t.Errorf("the replayed run is still there: %v", err)
	}
}
