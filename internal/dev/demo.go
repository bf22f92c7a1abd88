package dev

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/client"
)

// The demo's tasks, one kind for each type.
const (
	oneShot     = "ONE_SHOT"
	nonBlocking = "NON_BLOCKING"

	kindOneShot     = "welcome-mail"
	kindNonBlocking = "feedback-watch"
	kindBlocking    = "quality-check"
)

const (
	addEvery    = time.Second
	seriesEvery = 3 * time.Second
	seriesRuns  = 3
	// A series takes about this long, a single run that long: none is begun so
	// late that it would not end in time.
	seriesTime = 4 * time.Second
	singleTime = 1500 * time.Millisecond
	// patience is how long callbacks that are due are waited for at the end, and
	// hurry the same after Ctrl-C.
	patience   = 15 * time.Second
	hurry      = 500 * time.Millisecond
	cancelWait = time.Second
)

// demo adds tasks and listens to their runs.
type demo struct {
	in     *installation
	client *client.Client
	check  *checker
	until  time.Time // no task is begun that would not end by then; zero: no end

	print                    sync.Mutex
	adds, callbacks, results atomic.Int64
}

// demo runs until ctx ends, lets what is due finish, and prints the summary.
func (in *installation) demo(ctx context.Context) error {
	c, err := client.New(client.Config{Address: in.open.grpc.Addr().String(), Token: in.token, CallTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // nothing depends on it
	d := &demo{in: in, client: c, check: newChecker()}
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

// listener prints a line for each callback.
func (d *demo) listener() (*client.Listener, error) {
	l, err := d.client.NewListener(client.ListenerConfig{
		StopGrace: hurry, Logger: d.in.o.Log,
		Events: client.Events{Reported: func(r client.Delivery, code string) {
			if code == "ACCEPTED" {
				d.results.Add(1)
				d.check.resulted(r.TaskID, r.Seq, time.Now())
			}
		}},
	})
	if err != nil {
		return nil, err
	}
	l.Handle(kindOneShot, d.handler(0))
	l.Handle(kindNonBlocking, d.handler(50*time.Millisecond))
	l.Handle(kindBlocking, d.handler(300*time.Millisecond))
	return l, nil
}

// handler works for up to the given time.
func (d *demo) handler(work time.Duration) client.Handler {
	return func(ctx context.Context, r *client.Run) error {
		now := time.Now()
		seen := call{task: r.TaskID, seq: r.Seq, blocking: r.Type == client.Blocking, scheduled: r.ScheduledAt, missed: r.Missed}
		d.check.started(seen, now)
		defer func() { d.check.ended(seen, time.Now()) }()
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

func (d *demo) say(format string, args ...any) {
	d.print.Lock()
	defer d.print.Unlock()
	fmt.Fprintf(d.in.o.Out, format+"\n", args...)
}

// add adds tasks at a modest rate until ctx ends.
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

// fits reports whether something that takes this long ends in time.
func (d *demo) fits(now time.Time, takes time.Duration) bool {
	return d.until.IsZero() || now.Add(takes).Before(d.until)
}

// addOne adds a task that begins in up to half a second and ends in a minute.
func (d *demo) addOne(ctx context.Context, t client.Task) {
	t.Begin = time.Now().Add(100*time.Millisecond + rand.N(400*time.Millisecond)).Truncate(time.Millisecond)
	t.End = t.Begin.Add(time.Minute)
	t.AckTimeout = 5 * time.Second
	t.Params = map[string]string{"order": fmt.Sprint(d.adds.Load() + 1)}
	id, err := d.client.AddTask(ctx, t)
	if err != nil {
		if ctx.Err() == nil {
			d.in.o.Log.Warn("demo cannot add a task", "err", err)
		}
		return
	}
	d.adds.Add(1)
	d.check.added(id, spec{
		typ: t.Type.String(), begin: t.Begin, end: t.End, interval: t.Interval, count: max(t.MaxCount, 1),
	}, time.Now())
}

// finish waits for what was due when the time was up; after Ctrl-C it hurries,
// and judges nothing as lost. What is left is cancelled.
func (d *demo) finish(ctx context.Context) {
	end, wait := time.Now(), patience
	interrupted := !errors.Is(context.Cause(ctx), errTimeIsUp)
	if interrupted {
		wait = hurry
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := end.Add(wait); time.Now().Before(deadline); <-tick.C {
		if uncalled, underWay := d.check.open(end); uncalled == 0 && underWay == 0 {
			break
		}
	}
	if !interrupted {
		d.check.close(end)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer cancel()
	var cancelling sync.WaitGroup
	for _, id := range d.check.unfinished() {
		cancelling.Go(func() {
			if _, err := d.client.CancelTask(ctx, id); err != nil {
				d.in.o.Log.Warn("demo cannot cancel a task", "task_id", id, "err", err)
			}
		})
	}
	cancelling.Wait()
}

// summary prints the last line, and returns an error if the contract was broken.
func (d *demo) summary() error {
	total, examples := d.check.verdict()
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
