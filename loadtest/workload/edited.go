package workload

import (
	"context"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

// edited are varieties whose tasks are edited, triggered, or added under a key.
var edited = []variety{
	{name: "marked", live: liveMarked},
	{name: "marked chain", make: func(_ *Contract, _ *rand.Rand, it *item) { it.add.Type = task.Blocking }, live: liveMarked},
	{name: "rescheduled", live: liveRescheduled},
	{name: "triggered", live: liveTriggered},
	{name: "keyed one-shot", make: makeKeyed, live: liveKeyed},
	{name: "upserted", make: makeUpserted, live: liveUpserted},
}

// liveMarked sets marks, now and then by two callers who both mean to be first.
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

// liveTriggered triggers, each request by two callers at once or one after the other.
func liveTriggered(ctx context.Context, c *Contract, random *rand.Rand, it *item) {
	if !c.started(ctx, it) {
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

// liveKeyed adds the same task again later, also when it has ended.
func liveKeyed(ctx context.Context, c *Contract, random *rand.Rand, it *item) {
	for c.until(ctx, random, 8*time.Second) {
		c.add(ctx, it)
	}
}

// liveUpserted replaces the params, by two callers at once.
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

func (c *Contract) upsert(ctx context.Context, caller *client.Client, it *item, t client.Task, mark int64) {
	c.change(ctx, check.Op{ID: it.add.ID, Change: check.Edit, Mark: mark}, func(ctx context.Context, op *check.Op) error {
		id, err := caller.AddTask(ctx, t, client.WithUpsert())
		if err != nil {
			return err
		}
		if task.ID(id) != op.ID {
			c.fault("an upsert of task %d was answered with %d", op.ID, id)
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

// version asks for the task's version; 0: it is not there.
func (c *Contract) version(ctx context.Context, it *item) int32 {
	info, err := c.clients[0].GetTask(ctx, int64(it.add.ID))
	if err != nil || info.State.Final() {
		return 0
	}
	return int32(info.Version)
}
