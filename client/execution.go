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

// execution is one execution of a handler, from the moment it may run until it has
// returned.
//
// The lease of a BLOCKING run is counted on the monotonic clock of this process,
// starting before the request for it was sent. So the lease never ends later here
// than in Postgres, however long the answer took and however wrong this machine's
// clock is. (The monotonic clock stands still while the machine is suspended. A handler
// that was running then may go on until its next heartbeat is refused.) The handler's context ends shortly before the lease does. A handler
// that obeys its context has returned by then. For one that does not, FAIL is
// reported while this listener still has the lease.
type execution struct {
	g      *engine
	e      *entry
	rec    *arrival
	kind   *kind
	slot   *limit // released when the handler has returned; nil: the kind has no limit
	ctx    context.Context
	cancel context.CancelCauseFunc

	// begun is when the handler was called, since the start of the engine.
	begun time.Duration
	// deaf: the handler ignores the end of its context. The engine's lock guards it.
	deaf bool

	mu       sync.Mutex
	called   *Run        // nil until the handler is called
	over     bool        // the handler has returned
	expiry   *time.Timer // fires shortly before the lease ends
	limit    *time.Timer // fires when the kind's time limit is over
	beating  *time.Timer // sends the next heartbeat
	lastCall *time.Timer // reports FAIL for a handler that does not return
	every    time.Duration
	hushed   bool // no more heartbeats are sent
}

const (
	maxLeaseMargin = time.Second // most time between the end of the context and the end of the lease
	lostGrace      = time.Second // time that a handler has to return after its run was lost
	minBeat        = 20 * time.Millisecond
)

func newExecution(g *engine, e *entry, rec *arrival) *execution {
	f := &execution{g: g, e: e, rec: rec, kind: g.l.kinds[rec.pub.Kind], slot: e.slot}
	e.slot = nil
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	e.execution = f
	if rec.pub.Type != task.Blocking {
		// Part of the ack_timeout has already passed, so the first heartbeat is
		// sent after half of it.
		f.beatEvery(rec.pub.AckTimeout / 2)
	}
	return f
}

// extendLease records that the lease lasts until end and has the given length.
func (f *execution) extendLease(end time.Time, lease time.Duration) {
	f.beatEvery(lease / 3)
	if f.rec.pub.Type != task.Blocking {
		return // the run may be delivered again, but this execution may go on
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

// end ends the handler's context. If the handler has not returned after grace,
// the listener reports FAIL for it.
func (f *execution) end(cause error, grace time.Duration) {
	f.cancel(cause)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || f.lastCall != nil {
		return
	}
	f.lastCall = time.AfterFunc(grace, func() { f.stuck(cause) })
}

func (f *execution) stuck(cause error) {
	f.mu.Lock()
	r := f.called
	over := f.over
	f.mu.Unlock()
	if over || r == nil {
		return
	}
	f.g.l.log.Error("handler ignores the end of its context; reporting FAIL for it", append(aboutRun(&f.rec.pub), "err", cause)...)
	f.g.handlerStuck(f)
	fire(f.g.l.cfg.Events.HandlerStuck, &f.rec.pub)
	o := r.outcome(fmt.Errorf("the handler ignored the end of its context: %w", cause))
	f.encode(&o)
	f.beginReport(r, &o)
	f.handlerEnded(o.result())
}

// run calls the handler and passes its result to the delivery table. A panic or
// runtime.Goexit in the handler is a failure.
func (f *execution) run() {
	began := time.Now()
	defer func() { f.g.handlerReturned(f, time.Since(began)) }()
	defer f.finish()
	pub := &f.rec.pub
	if pub.Type == task.Blocking && f.ctx.Err() != nil {
		f.g.step(func(t *table, out []action) []action { return t.leaseExpired(out, f.e, pub.Attempt) })
		return
	}
	var params map[string]string
	var payload *Payload
	err := guard(func() (err error) { params, payload, err = f.content(pub); return err })
	r := newRun(pub, params, payload, f.heartbeat)
	f.mu.Lock()
	f.called, f.begun = r, f.g.since()
	f.mu.Unlock()
	fire(f.g.l.cfg.Events.HandlerStarted, pub)
	returned := err != nil
	defer func() {
		if !returned {
			err = failure(recover())
		}
		f.reportResult(r, time.Since(began), !returned, err)
	}()
	if err == nil {
		f.limitTime(f.kind.timeout)
		err = because(f.ctx, f.kind.call(f.ctx, r))
		examine(err)
		returned = true
	}
}

// examine calls the methods of an error that the listener calls later. If one of them panics, as those of a
// nil pointer in the error do, it panics here, where that is a failure of the handler.
func examine(err error) {
	if o := outcomeOf(err); o.Err != nil {
		_ = o.Err.Error()
	}
}

// guard returns the error of f. A panic in f is an error, too.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = failure(p)
		}
	}()
	return f()
}

// content returns the params and the payload of a run, decoded.
func (f *execution) content(pub *task.Publication) (map[string]string, *Payload, error) {
	params, stored, err := record.Params(pub.Params)
	if err != nil {
		return nil, nil, err
	}
	codec, payload := f.g.l.c.cfg.Codec, (*Payload)(stored)
	if params, err = decodeParams(codec, params); err == nil {
		payload, err = decodePayload(codec, payload)
	}
	return params, payload, err
}

// limitTime ends the handler's context after d. 0 means no limit.
func (f *execution) limitTime(d time.Duration) {
	if d <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limit = time.AfterFunc(d, func() { f.end(ErrTimeout, lostGrace) })
}

// encode encodes the params and the payload that the handler has set. If that fails, the
// attempt fails.
func (f *execution) encode(o *Outcome) {
	codec, set, payload := f.g.l.c.cfg.Codec, o.SetParams, o.SetPayload
	err := guard(func() (err error) {
		if set, err = encodeParams(codec, set); err == nil {
			payload, err = encodePayload(codec, payload)
		}
		return err
	})
	if err != nil {
		*o = outcomeOf(err)
		return
	}
	o.SetParams, o.SetPayload = set, payload
}

// reportResult passes the result of the handler to the delivery table.
func (f *execution) reportResult(r *Run, took time.Duration, panicked bool, err error) {
	o := r.outcome(err)
	f.encode(&o)
	switch {
	case panicked:
		f.g.l.troubles.panicked(&f.rec.pub, err)
	case o.Status == Failure && !errors.Is(context.Cause(f.ctx), ErrLeaseLost): // such a failure counts nowhere
		f.g.l.troubles.failed(&f.rec.pub, err)
	}
	if ended := f.g.l.cfg.Events.HandlerEnded; ended != nil {
		ended(deliveryOf(&f.rec.pub), took, o.failure(err))
	}
	f.beginReport(r, &o)
	f.handlerEnded(o.result())
}

// handlerEnded passes a result to the delivery table. The first one is sent, so its stages
// are kept.
func (f *execution) handlerEnded(res task.Result) {
	ended := f.g.since()
	f.g.step(func(t *table, out []action) []action {
		if f.rec.times.ended == 0 {
			f.rec.times.begun, f.rec.times.ended = f.begun, ended
		}
		return t.handlerEnded(out, f.e, f.rec.pub.Attempt, res)
	})
}

// finish stops all timers.
func (f *execution) finish() {
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

// failure returns the error of a handler that panicked or called
// runtime.Goexit.
func failure(panicked any) error {
	if panicked == nil {
		return errors.New("the handler called runtime.Goexit")
	}
	return fmt.Errorf("panic: %v\n%s", panicked, trimStack(debug.Stack()))
}

// trimStack removes the frames between the panic and the code that caused it.
func trimStack(stack []byte) string {
	s := string(stack)
	if i := strings.Index(s, "panic("); i >= 0 {
		if j := strings.IndexByte(s[i:], '\n'); j >= 0 {
			rest := s[i+j+1:]
			if k := strings.IndexByte(rest, '\n'); k >= 0 { // skip the frame of panic itself
				return rest[k+1:]
			}
		}
	}
	return s
}

// trim cuts an error text to the length that a result may have.
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

// beatEvery makes the listener send heartbeats every d, the first one after d.
func (f *execution) beatEvery(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d > 0 {
		f.every = max(d, minBeat)
	}
	f.schedule(f.every)
}

// beatAgain schedules an early heartbeat after one without an answer: a lease
// has room for several tries. after is the delay that the service asked for; the
// lease allows no more than the usual one.
func (f *execution) beatAgain(after time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.schedule(max(minBeat, f.every/2, min(after, f.every)))
}

// schedule sets the timer of the next heartbeat. The caller holds f.mu.
func (f *execution) schedule(d time.Duration) {
	if !f.beats() || f.over || f.hushed || f.ctx.Err() != nil {
		return
	}
	if f.beating != nil {
		f.beating.Stop()
	}
	f.beating = time.AfterFunc(d, func() { f.g.senders.beats.push(beat{f: f, done: func(error) {}}) })
}

// hush ends the heartbeats.
func (f *execution) hush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hushed = true
	if f.beating != nil {
		f.beating.Stop()
	}
}

// beats reports whether the listener sends heartbeats for this kind.
func (f *execution) beats() bool {
	if b := f.kind.beats; b != nil {
		return *b
	}
	return !f.g.l.cfg.NoHeartbeats
}

// heartbeat implements [Run.Heartbeat].
func (f *execution) heartbeat(ctx context.Context) error {
	if cause := context.Cause(f.ctx); cause != nil {
		return cause
	}
	answer := make(chan error, 1)
	if !f.g.senders.beats.push(beat{f: f, done: func(err error) { answer <- err }}) {
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

// beatAnswered handles the answer to a heartbeat that was sent at the instant
// asked. It returns the error for the caller of [Run.Heartbeat].
func (f *execution) beatAnswered(r task.Reply, asked time.Time) error {
	pub := &f.rec.pub
	switch r.Code {
	case task.Accepted:
		f.g.step(func(t *table, out []action) []action { return t.heartbeatAccepted(out, f.e, pub.Attempt) })
		f.extendLease(asked.Add(r.Lease), r.Lease)
		return nil
	case task.Retry, task.Invalid:
		f.beatAgain(0)
		return fmt.Errorf("perceptor: heartbeat: %s %s", r.Code, r.Message)
	}
	f.end(ErrLeaseLost, lostGrace)
	return fmt.Errorf("%w (%s)", ErrLeaseLost, r.Code)
}
