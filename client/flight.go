package client

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

// flight is one execution of a handler, from the moment it may run until it has
// returned.
//
// The lease of a BLOCKING run is counted on the monotonic clock of this process,
// from before it was asked for: whatever the answer took, and however wrong the
// clock of this machine is, it never ends later here than in Postgres. The
// handler's context ends a little before it, so that a handler which obeys has
// returned, and the FAIL of one that does not is reported while the lease is
// still ours.
type flight struct {
	g      *engine
	e      *entry
	rec    *arrival
	kind   *kind
	slot   *limit // taken until the handler has returned; nil: the kind has no limit
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	handed   *Run        // once the handler has begun
	over     bool        // the handler has returned
	expiry   *time.Timer // the end of the lease
	limit    *time.Timer // the end of what the kind allows
	beating  *time.Timer // the next heartbeat
	lastCall *time.Timer // FAIL is reported for a handler that does not return
	every    time.Duration
}

const (
	maxLeaseMargin = time.Second // how long before the end of the lease a context ends
	lostGrace      = time.Second // how long a handler has after its run was lost
	minBeat        = 20 * time.Millisecond
)

func newFlight(g *engine, e *entry, rec *arrival) *flight {
	f := &flight{g: g, e: e, rec: rec, kind: g.l.kinds[rec.pub.Kind], slot: e.slot}
	e.slot = nil
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	e.flight = f
	if rec.pub.Type != task.Blocking {
		// Silence ends at ack_timeout, of which some has passed already.
		f.beatEvery(rec.pub.AckTimeout / 2)
	}
	return f
}

// holdUntil notes that the run is ours until end, for a lease of the given length.
func (f *flight) holdUntil(end time.Time, lease time.Duration) {
	f.beatEvery(lease / 3)
	if f.rec.pub.Type != task.Blocking {
		return // others may run it again, but nothing forbids to go on
	}
	margin := min(lease/10, maxLeaseMargin)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	if f.expiry != nil {
		f.expiry.Stop()
	}
	f.expiry = time.AfterFunc(time.Until(end.Add(-margin)), func() { f.end(ErrLeaseOver, margin/2) })
}

// end ends the handler's context. When it has not returned after grace, FAIL is
// reported in its place.
func (f *flight) end(cause error, grace time.Duration) {
	f.cancel(cause)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || f.lastCall != nil {
		return
	}
	f.lastCall = time.AfterFunc(grace, func() { f.stuck(cause) })
}

func (f *flight) stuck(cause error) {
	f.mu.Lock()
	r := f.handed
	over := f.over
	f.mu.Unlock()
	if over || r == nil {
		return
	}
	f.g.l.log.Error("a handler ignores the end of its context; FAIL is reported in its place",
		"task_id", f.rec.pub.Task.String(), "run_id", f.rec.pub.RunID().String(), "attempt", f.rec.pub.Attempt, "err", cause)
	fire(f.g.l.cfg.Events.HandlerStuck, &f.rec.pub)
	o := r.outcome(fmt.Errorf("the handler ignored the end of its context: %w", cause))
	res := o.result()
	f.g.step(func(t *table, out []action) []action { return t.ended(out, f.e, f.rec.pub.Attempt, res) })
}

// run calls the handler and takes its result. A panic or runtime.Goexit in the
// handler is a failure.
func (f *flight) run() {
	began := time.Now()
	defer func() { f.g.landed(f, time.Since(began)) }()
	defer f.finish()
	pub := &f.rec.pub
	if pub.Type == task.Blocking && f.ctx.Err() != nil {
		f.g.step(func(t *table, out []action) []action { return t.dropped(out, f.e, pub.Attempt) })
		return
	}
	params, err := record.Params(pub.Params)
	r := newRun(pub, params, f.heartbeat)
	f.mu.Lock()
	f.handed = r
	f.mu.Unlock()
	fire(f.g.l.cfg.Events.HandlerStarted, pub)
	returned := err != nil
	defer func() {
		if !returned {
			err = failure(recover())
		}
		f.ended(r, time.Since(began), err)
	}()
	if err == nil {
		f.limitTime(f.kind.timeout)
		err = because(f.ctx, f.kind.call(f.ctx, r))
		returned = true
	}
}

// limitTime ends the handler's context after d, unless that is 0.
func (f *flight) limitTime(d time.Duration) {
	if d <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limit = time.AfterFunc(d, func() { f.end(ErrTimeout, lostGrace) })
}

// ended takes the result of a handler that has returned.
func (f *flight) ended(r *Run, took time.Duration, err error) {
	o := r.outcome(err)
	if ended := f.g.l.cfg.Events.HandlerEnded; ended != nil {
		ended(deliveryOf(&f.rec.pub), took, o.failure(err))
	}
	res := o.result()
	f.g.step(func(t *table, out []action) []action { return t.ended(out, f.e, f.rec.pub.Attempt, res) })
}

// finish stops all timers.
func (f *flight) finish() {
	f.cancel(nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	for _, t := range [...]*time.Timer{f.expiry, f.limit, f.beating, f.lastCall} {
		if t != nil {
			t.Stop()
		}
	}
}

// failure is the error of a handler that did not return.
func failure(panicked any) error {
	if panicked == nil {
		return errors.New("the handler called runtime.Goexit")
	}
	return fmt.Errorf("panic: %v\n%s", panicked, trimStack(debug.Stack()))
}

// trimStack drops what lies between the panic and the code that caused it.
func trimStack(stack []byte) string {
	s := string(stack)
	if i := strings.Index(s, "panic("); i >= 0 {
		if j := strings.IndexByte(s[i:], '\n'); j >= 0 {
			rest := s[i+j+1:]
			if k := strings.IndexByte(rest, '\n'); k >= 0 { // the place of panic itself
				return rest[k+1:]
			}
		}
	}
	return s
}

// trim cuts an error text to what a result may carry.
func trim(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= task.MaxErrorBytes {
		return s
	}
	n := task.MaxErrorBytes
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// beatEvery makes the listener send heartbeats of its own, the next one after d.
func (f *flight) beatEvery(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d > 0 {
		f.every = max(d, minBeat)
	}
	f.schedule(f.every)
}

// beatAgain follows a heartbeat without an answer: some more fit into the lease.
func (f *flight) beatAgain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.schedule(max(minBeat, min(f.every/4, time.Second)))
}

// schedule sets the timer of the next heartbeat. f.mu is held.
func (f *flight) schedule(d time.Duration) {
	if !f.beats() || f.over || f.ctx.Err() != nil {
		return
	}
	if f.beating != nil {
		f.beating.Stop()
	}
	f.beating = time.AfterFunc(d, func() { f.g.senders.beats.push(beat{f: f, tell: func(error) {}}) })
}

// beats reports whether the listener sends heartbeats by itself.
func (f *flight) beats() bool {
	if b := f.kind.beats; b != nil {
		return *b
	}
	return !f.g.l.cfg.NoHeartbeats
}

// heartbeat is [Run.Heartbeat].
func (f *flight) heartbeat(ctx context.Context) error {
	if cause := context.Cause(f.ctx); cause != nil {
		return cause
	}
	answer := make(chan error, 1)
	if !f.g.senders.beats.push(beat{f: f, tell: func(err error) { answer <- err }}) {
		return ErrStopping
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-f.ctx.Done():
		return context.Cause(f.ctx)
	}
}

// beatAnswered takes the answer to a heartbeat that was sent at the instant
// asked. It returns what the handler is to know.
func (f *flight) beatAnswered(r task.Reply, asked time.Time) error {
	pub := &f.rec.pub
	switch r.Code {
	case task.Accepted:
		f.g.step(func(t *table, out []action) []action { return t.heartbeatAccepted(out, f.e, pub.Attempt) })
		f.holdUntil(asked.Add(r.Lease), r.Lease)
		return nil
	case task.Retry, task.Invalid:
		f.beatAgain()
		return fmt.Errorf("perceptor: heartbeat: %s %s", r.Code, r.Message)
	}
	f.end(ErrLeaseLost, lostGrace)
	return fmt.Errorf("%w (%s)", ErrLeaseLost, r.Code)
}
