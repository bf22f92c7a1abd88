package dev

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

// The demo's tasks, one kind for each type.
const (
	kindOneShot     = "welcome-mail"
	kindNonBlocking = "feedback-watch"
	kindBlocking    = "quality-check"
)

// numberParam is the name of the parameter that holds a task's number.
const numberParam = "order"

const (
	addEvery    = time.Second
	seriesEvery = 3 * time.Second
	seriesRuns  = 3
	// seriesTime and the next constant are the approximate durations of a series
	// and of a single run. The demo begins none that would not end in time.
	seriesTime = 4 * time.Second
	singleTime = 1500 * time.Millisecond
	// patience is how long the demo waits at its end for callbacks that are due.
	// After Ctrl-C it waits for hurry.
	patience   = 15 * time.Second
	hurry      = 500 * time.Millisecond
	cancelWait = time.Second
)

// demo adds tasks and handles their runs.
type demo struct {
	in     *installation
	client *client.Client
	seen   *observer
	until  time.Time // no task is added that would not end by then; zero: no end
	end    time.Time // every run due before must be done; zero: no run

	print                    sync.Mutex
	adds, callbacks, results atomic.Int64
}

// demo runs until ctx ends, waits for due runs, and prints the summary.
func (in *installation) demo(ctx context.Context) error {
	c, err := client.New(client.Config{Address: in.open.grpc.Addr().String(), Token: in.token, CallTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // all calls have ended
	d := &demo{in: in, client: c, seen: newObserver()}
	if in.o.For > 0 {
		d.until = time.Now().Add(in.o.For)
	}
	listener, err := d.listener()
	if err != nil {
		return err
	}
	listening, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	listened := make(chan error, 1)
	go func() { listened <- listener.Run(listening) }()
	addErr := d.add(ctx)
	d.finish(ctx)
	stop()
	err = errors.Join(addErr, <-listened)
	return errors.Join(err, d.summary())
}

// listener returns a listener that prints a line for each callback.
func (d *demo) listener() (*client.Listener, error) {
	l, err := d.client.NewListener(client.ListenerConfig{
		StopGrace: hurry, Logger: d.in.o.Log,
		Events: client.Events{
			Started: func(r client.Delivery, code string) { d.replied(check.Start, r, code) },
			Reported: func(r client.Delivery, code string) {
				if code == task.Accepted.String() {
					d.results.Add(1)
				}
				d.replied(check.Report, r, code)
			},
		},
	})
	if err != nil {
		return nil, err
	}
	l.Handle(kindOneShot, d.handler(0))
	l.Handle(kindNonBlocking, d.handler(50*time.Millisecond))
	l.Handle(kindBlocking, d.handler(300*time.Millisecond))
	return l, nil
}

// handler returns a handler that works for up to the given time.
func (d *demo) handler(work time.Duration) client.Handler {
	return func(ctx context.Context, r *client.Run) error {
		now := time.Now()
		number, _ := strconv.ParseInt(r.Params[numberParam], 10, 64) // 0 for a task of another caller
		seen := check.Execution{
			Number: number, ID: task.ID(r.TaskID), Seq: r.Seq, Attempt: int32(r.Attempt), ScheduledAt: task.At(r.ScheduledAt),
			Missed: r.Missed, Start: check.At(now), Version: int32(r.Version),
		}
		d.seen.started(seen.ID, now)
		defer func() { d.seen.ended(seen, time.Now()) }()
		d.callbacks.Add(1)
		d.say("%-12s  %-14s  run_id=%-12s  attempt=%d  late=%s", r.Type, r.Kind, r.RunID(), r.Attempt, now.Sub(r.ScheduledAt).Round(time.Millisecond))
		if work == 0 {
			return nil
		}
		select {
		case <-time.After(rand.N(work)):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// replied records the answer to a call of the listener.
func (d *demo) replied(call check.Call, r client.Delivery, code string) {
	i := slices.IndexFunc(task.Codes, func(c task.Code) bool { return c.String() == code })
	if i < 0 || task.Codes[i] == task.Retry { // no answer yet
		return
	}
	reply := check.Reply{ID: task.ID(r.TaskID), Seq: r.Seq, Attempt: int32(r.Attempt), Call: call, Code: task.Codes[i]}
	d.seen.replied(reply, time.Now())
}

func (d *demo) say(format string, args ...any) {
	d.print.Lock()
	defer d.print.Unlock()
	fmt.Fprintf(d.in.o.Out, format+"\n", args...)
}

// add adds tasks at a low rate until ctx ends.
func (d *demo) add(ctx context.Context) error {
	tick := time.NewTicker(addEvery)
	defer tick.Stop()
	for series := time.Now(); ; {
		now := time.Now()
		if !now.Before(series) && (d.adds.Load() == 0 || d.fits(now, seriesTime)) {
			series = now.Add(seriesEvery)
			d.addOne(ctx, client.Task{Kind: kindNonBlocking, Type: client.NonBlocking, Interval: time.Second, MaxCount: seriesRuns})
			d.addOne(ctx, client.Task{Kind: kindBlocking, Type: client.Blocking, Interval: time.Second, MaxCount: seriesRuns})
		}
		if d.fits(now, singleTime) {
			d.addOne(ctx, client.Task{Kind: kindOneShot, Type: client.OneShot})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// fits reports whether a task that begins now and takes this long ends in time.
func (d *demo) fits(now time.Time, takes time.Duration) bool {
	return d.until.IsZero() || now.Add(takes).Before(d.until)
}

// addOne adds a task that begins within half a second and ends within a minute.
func (d *demo) addOne(ctx context.Context, t client.Task) {
	t.Begin = time.Now().Add(100*time.Millisecond + rand.N(400*time.Millisecond)).Truncate(time.Millisecond)
	t.End = t.Begin.Add(time.Minute)
	t.AckTimeout = 5 * time.Second
	number, sent := d.adds.Load()+1, time.Now()
	t.Params = map[string]string{numberParam: fmt.Sprint(number)}
	id, err := d.client.AddTask(ctx, t)
	if err != nil {
		if ctx.Err() == nil {
			d.in.o.Log.Warn("demo cannot add a task", "err", err)
		}
		return
	}
	d.adds.Add(1)
	d.seen.added(check.Add{
		Number: number, ID: task.ID(id), Type: task.Type(t.Type), Begin: task.At(t.Begin), End: task.At(t.End),
		Interval: t.Interval, MaxCount: int64(max(t.MaxCount, 1)), Sent: check.At(sent),
	}, time.Now())
}

// finish waits for runs that were due when the time was up, and then cancels the
// remaining tasks. After Ctrl-C it waits for a shorter time and counts no run as
// lost.
func (d *demo) finish(ctx context.Context) {
	end, wait := time.Now(), patience
	interrupted := !errors.Is(context.Cause(ctx), errTimeIsUp)
	if interrupted {
		wait = hurry
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := end.Add(wait); time.Now().Before(deadline) && d.seen.pending(end); <-tick.C {
	}
	if !interrupted {
		d.end = end
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer cancel()
	var cancelling sync.WaitGroup
	for _, id := range d.seen.unfinished() {
		cancelling.Go(func() {
			if _, err := d.client.CancelTask(ctx, id); err != nil {
				d.in.o.Log.Warn("demo cannot cancel a task", "task_id", id, "err", err)
			}
		})
	}
	cancelling.Wait()
}

// summary prints the last line. It returns an error if the contract was broken.
func (d *demo) summary() error {
	total, examples := d.seen.verdict(d.end)
	for _, e := range examples {
		d.say("violation: %s", e)
	}
	d.say("adds=%d fires=%d callbacks=%d results=%d violations=%d",
		d.adds.Load(), d.in.dispatcher.Fired(), d.callbacks.Load(), d.results.Load(), total)
	if total > 0 {
		return ErrViolated
	}
	return nil
}
