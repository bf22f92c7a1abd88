package workload

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/task"
)

var varieties = append([]variety{
	{name: "calendar", make: makeCalendar},
	{name: "calendar of a chain", make: makeChain},
	{name: "calendar of a one-shot", make: makeOneMatch},
	{name: "policy", make: makePolicy},
	{name: "begun long ago", make: makePast},
	{name: "spread one-shot", make: makeSpread},
	{name: "paused", make: makePolicy, live: livePaused},
	{name: "cancelled", live: liveCancelled},
	{name: "cancelled one-shot", make: makeSoon, live: liveCancelledSoon},
	{name: "script", make: makeScript, live: liveScript},
}, edited...)

var (
	expressions = []string{"* * * * * *", "*/2 * * * * *", "1-59/3 * * * * *", "0,10,15,20,28,35,44,50 * * * * *", "*/5 */1 * * * *"}
	zones       = []string{"UTC", "Asia/Kathmandu", "America/Lima", "Europe/Berlin", "Australia/Eucla"}
	policies    = []check.Terms{
		{}, {Misfire: task.FireOnce}, {Misfire: task.FireAll, Limit: 1000}, {Misfire: task.Skip, Grace: 1500 * time.Millisecond},
	}
	// scripts define how the attempts of a run end: f fails, z snoozes, r fails and asks
	// for a delay, p fails permanently, s succeeds. Attempts after the last letter succeed,
	// so that attempts which were not recorded do no harm.
	scripts = []string{"s", "fs", "ffs", "fffff", "zs", "zzzzs", "rs", "fzrs", "p", "fp", "zp", "ffffff"}
)

func pickOf[T any](random *rand.Rand, list []T) T { return list[random.IntN(len(list))] }

// terms sets the terms that the checker knows in the SDK's task.
func terms(t *client.Task, terms *check.Terms) {
	if terms == nil {
		return
	}
	if terms.Cron != "" {
		t.Interval, t.Cron = 0, &client.Cron{Expression: terms.Cron, Zone: terms.Zone}
	}
	t.Misfire, t.MisfireGrace, t.MisfireLimit, t.Spread = client.Misfire(terms.Misfire), terms.Grace, int(terms.Limit), terms.Spread
}

func makeCalendar(_ *Contract, random *rand.Rand, it *item) {
	t := pickOf(random, policies)
	t.Cron, t.Zone = pickOf(random, expressions), pickOf(random, zones)
	if random.IntN(2) == 0 {
		t.Spread = 900 * time.Millisecond
	}
	it.add.Interval, it.add.Terms = 0, &t
}

func makeChain(_ *Contract, random *rand.Rand, it *item) {
	it.add.Type, it.add.Interval = task.Blocking, 0
	it.add.Terms = &check.Terms{Cron: pickOf(random, expressions), Zone: pickOf(random, zones)}
}

func makeOneMatch(_ *Contract, random *rand.Rand, it *item) {
	it.add.Type, it.add.Interval, it.add.End, it.add.MaxCount = task.OneShot, 0, task.Never, 1
	it.add.Terms = &check.Terms{Cron: pickOf(random, expressions), Zone: pickOf(random, zones)}
}

func makePolicy(_ *Contract, random *rand.Rand, it *item) {
	t := pickOf(random, policies)
	if random.IntN(2) == 0 {
		t.Spread = 500 * time.Millisecond
	}
	it.add.Terms = &t
}

func makePast(_ *Contract, random *rand.Rand, it *item) {
	t := policies[1+random.IntN(3)]
	if t.Misfire == task.FireAll {
		t.Limit = 10
	}
	it.add.Begin, it.add.Terms = it.add.Begin.Add(-30*time.Second), &t
}

func makeSpread(_ *Contract, _ *rand.Rand, it *item) {
	it.add.Type, it.add.Interval, it.add.End, it.add.MaxCount = task.OneShot, 0, task.Never, 1
	it.add.Terms = &check.Terms{Spread: 5 * time.Second}
}

func makeSoon(c *Contract, random *rand.Rand, it *item) {
	it.add.Type, it.add.Interval, it.add.End, it.add.MaxCount = task.OneShot, 0, task.Never, 1
	lasts := max(c.to.Sub(c.from)-4*time.Second, time.Second)
	it.add.Begin = task.At(c.from.Add(time.Second + time.Duration(random.Int64N(int64(lasts)))))
}

func makeScript(c *Contract, random *rand.Rand, it *item) {
	makeSoon(c, random, it)
	it.add.MaxAttempts = contractTries
	it.task.Params[scriptParam] = pickOf(random, scripts)
	it.task.Retry = client.RetryPolicy{
		MaxAttempts: int(contractTries), InitialBackoff: failBackoff, Multiplier: 1, MaxBackoff: failBackoff, Jitter: client.NoJitter,
	}
}

func livePaused(ctx context.Context, c *Contract, random *rand.Rand, it *item) {
	for c.until(ctx, random, 4*time.Second) {
		if !c.simple(ctx, it, check.Pause, c.clients[0].PauseTask) {
			continue
		}
		harness.Sleep(ctx, time.Duration(random.Int64N(int64(4*time.Second)))) //nolint:errcheck // the task must be resumed in any case
		c.simple(ctx, it, check.Resume, c.clients[1].ResumeTask)
	}
}

func liveCancelled(ctx context.Context, c *Contract, random *rand.Rand, it *item) {
	lasts := c.to.Sub(c.from) - 3*time.Second
	if lasts > 0 && harness.Sleep(ctx, time.Until(c.from.Add(time.Duration(random.Int64N(int64(lasts)))))) == nil {
		c.simple(ctx, it, check.Cancel, c.clients[0].CancelTask)
	}
}

// liveCancelledSoon cancels the task at about the time when it is due.
func liveCancelledSoon(ctx context.Context, c *Contract, random *rand.Rand, it *item) {
	about := time.Duration(random.Int64N(int64(3*time.Second))) - 2*time.Second
	if harness.Sleep(ctx, time.Until(it.add.Begin.Time().Add(about))) == nil {
		c.simple(ctx, it, check.Cancel, c.clients[0].CancelTask)
	}
}

// liveScript replays the run, by two concurrent callers, if it dies.
func liveScript(ctx context.Context, c *Contract, _ *rand.Rand, it *item) {
	script := it.task.Params[scriptParam]
	if !strings.ContainsAny(script, "p") && !strings.HasPrefix(script, "fff") {
		return
	}
	run := task.RunID{Task: it.add.ID, Seq: 1}.String()
	dead := it.add.Begin.Time().Add(2 * time.Second)
	for {
		if harness.Sleep(ctx, time.Until(dead)) != nil || time.Now().After(c.to) {
			return
		}
		if _, err := c.clients[0].GetDeadRun(ctx, run); err == nil {
			break
		}
		dead = time.Now().Add(time.Second)
	}
	var both sync.WaitGroup
	for _, caller := range c.clients[:2] {
		both.Go(func() { c.replay(ctx, caller, it, run) })
	}
	both.Wait()
}

// replay adds the task that repeats a dead run. Its params are those of the run, so it has
// the same number.
func (c *Contract) replay(ctx context.Context, caller *client.Client, it *item, run string) {
	add := check.Add{
		Number: it.add.Number, Type: task.OneShot, Key: true, Now: true, End: task.Never, MaxCount: 1, MaxAttempts: contractTries,
		Retained: true,
	}
	add.Sent = check.At(time.Now())
	id, err := caller.ReplayDeadRun(ctx, run)
	for try := 0; err != nil && answerOf(err) == check.NotKnown && try < maxChangeTries && harness.Sleep(ctx, changePause) == nil; try++ {
		id, err = caller.ReplayDeadRun(ctx, run)
	}
	add.Answered, add.Answer = check.At(time.Now()), answerOf(err)
	if add.Answer != check.Acknowledged {
		c.fault(it.add.ID, "replay %s: %w", run, err)
		return
	}
	add.ID = task.ID(id)
	c.history.Add(add)
}

// edited are varieties whose tasks are edited, triggered, or added under a key.
var edited = []variety{
	{name: "marked", live: liveMarked},
	{name: "marked chain", make: func(_ *Contract, _ *rand.Rand, it *item) { it.add.Type = task.Blocking }, live: liveMarked},
	{name: "rescheduled", live: liveRescheduled},
	{name: "triggered", live: liveTriggered},
	{name: "keyed one-shot", make: makeKeyed, live: liveKeyed},
	{name: "upserted", make: makeUpserted, live: liveUpserted},
}

// liveMarked sets marks, sometimes by two callers at once with the same expected version.
func liveMarked(ctx context.Context, c *Contract, random *rand.Rand, it *item) {
	for mark := int64(1); c.until(ctx, random, 2*time.Second); mark += 2 {
		version := c.version(ctx, it)
		if version == 0 {
			return
		}
		var both sync.WaitGroup
		for i := range 1 + random.Int64N(2) {
			both.Go(func() { c.edit(ctx, c.clients[i], it, version, mark+i, 0) })
		}
		both.Wait()
	}
}

func liveRescheduled(ctx context.Context, c *Contract, random *rand.Rand, it *item) {
	last := it.add.Interval
	for mark := int64(1); c.until(ctx, random, 4*time.Second); mark++ {
		interval := pickOf(random, []time.Duration{time.Second, 1500 * time.Millisecond, 2 * time.Second, 2500 * time.Millisecond})
		if version := c.version(ctx, it); version == 0 || interval == last {
			continue
		} else if c.edit(ctx, c.clients[0], it, version, mark*random.Int64N(2), interval) != 0 {
			last = interval
		}
	}
}

// liveTriggered triggers the task. Two callers send each request, at once or in turn.
func liveTriggered(ctx context.Context, c *Contract, random *rand.Rand, it *item) {
	if harness.Sleep(ctx, time.Until(it.add.Begin.Time())) != nil {
		return
	}
	for request := int64(1); c.until(ctx, random, 3*time.Second); request++ {
		name := c.plan.Kind + "-" + strconv.FormatInt(it.add.Number, 36) + "-" + strconv.FormatInt(request, 36)
		again := func(caller *client.Client) {
			c.change(ctx, check.Op{ID: it.add.ID, Change: check.Trigger, Request: request}, func(ctx context.Context, op *check.Op) (err error) {
				op.Seq, err = caller.TriggerTask(ctx, int64(op.ID), client.WithRequestID(name))
				return err
			})
		}
		var both sync.WaitGroup
		both.Go(func() { again(c.clients[0]) })
		if random.IntN(2) == 0 {
			both.Wait()
		}
		both.Go(func() { again(c.clients[1]) })
		both.Wait()
	}
}

func makeKeyed(c *Contract, random *rand.Rand, it *item) {
	makeSoon(c, random, it)
	it.add.Key = true
	it.task.IdempotencyKey = c.plan.Kind + "-key-" + strconv.FormatInt(it.add.Number, 36)
}

func makeUpserted(c *Contract, _ *rand.Rand, it *item) {
	it.add.Key = true
	it.task.IdempotencyKey = c.plan.Kind + "-key-" + strconv.FormatInt(it.add.Number, 36)
}

// liveKeyed adds the same task again later, also after it has ended.
func liveKeyed(ctx context.Context, c *Contract, random *rand.Rand, it *item) {
	for c.until(ctx, random, 8*time.Second) {
		c.add(ctx, it)
	}
}

// liveUpserted replaces the params, by two concurrent callers.
func liveUpserted(ctx context.Context, c *Contract, random *rand.Rand, it *item) {
	for mark := int64(1); c.until(ctx, random, 4*time.Second); mark++ {
		again := *it
		again.task.Params = map[string]string{markParam: strconv.FormatInt(mark, 10)}
		for k, v := range it.task.Params {
			again.task.Params[k] = v
		}
		t := again.complete()
		var both sync.WaitGroup
		for _, caller := range c.clients[:2] {
			both.Go(func() { c.upsert(ctx, caller, it, t, mark) })
		}
		both.Wait()
	}
}

// endMargin is the time from the last answer of an upsert to the end of its task. The key of a
// task that has ended passes to a new task (T16.4), and it ends with its last run.
const endMargin = 2 * time.Second

func (c *Contract) upsert(ctx context.Context, caller *client.Client, it *item, t client.Task, mark int64) {
	last := t.End.Add(-endMargin)
	ctx, cancel := context.WithDeadline(ctx, last)
	defer cancel()
	c.change(ctx, check.Op{ID: it.add.ID, Change: check.Edit, Mark: mark}, func(ctx context.Context, op *check.Op) error {
		if !time.Now().Before(last) {
			return errEnded
		}
		id, err := caller.AddTask(ctx, t, client.WithUpsert())
		if err != nil {
			return err
		}
		if task.ID(id) != op.ID {
			c.fault(op.ID, "an upsert of task %d was answered with id %d", op.ID, id)
		}
		info, err := caller.GetTask(ctx, id)
		if err == nil {
			op.Version = int32(info.Version)
		}
		return err
	})
}

// edit sets a mark, an interval or both.
func (c *Contract) edit(ctx context.Context, caller *client.Client, it *item, version int32, mark int64, interval time.Duration) (after int32) {
	op := check.Op{ID: it.add.ID, Change: check.Edit, Mark: mark, Interval: interval}
	t, fields := client.Task{}, []string{}
	if mark != 0 {
		t.Params, fields = maps.Clone(it.task.Params), append(fields, "params")
		t.Params[markParam] = strconv.FormatInt(mark, 10)
	}
	if interval != 0 {
		t.Interval, fields = interval, append(fields, "interval")
	}
	c.change(ctx, op, func(ctx context.Context, op *check.Op) error {
		info, err := caller.UpdateTask(ctx, int64(op.ID), t, client.UpdateOptions{Fields: fields, Version: int(version)})
		if err == nil {
			op.Version, after = int32(info.Version), int32(info.Version)
		}
		return err
	})
	return after
}

// endsBefore reports whether an edit was refused because its task would have no instant any
// more before its end, which may have passed. An edit that waited for the end of a fault may come that late.
func endsBefore(err error) bool {
	var refused *client.Error
	return errors.As(err, &refused) && errors.Is(err, client.ErrInvalidArgument) &&
		slices.ContainsFunc(refused.Fields, func(f client.FieldError) bool { return f.Field == "end_time" })
}

// version returns the task's version, or 0 if the task does not exist.
func (c *Contract) version(ctx context.Context, it *item) int32 {
	info, err := c.clients[0].GetTask(ctx, int64(it.add.ID))
	if err != nil || info.State.Final() {
		return 0
	}
	return int32(info.Version)
}
