// Package audit records audit events: it bounds them, and hands them to sinks, such as the
// table in Postgres and a file.
//
// # Promise
//
// An event is recorded after its call, in a transaction of its own, and never makes the call
// fail. A call may change 16 databases, Kafka and ZooKeeper, and a refused one has no
// transaction at all, so the event cannot be part of the change. A process that dies between
// the two loses the event. To make that unlikely where it matters most, [Recorder.Record]
// waits for the event of an operator's call, at most [Wait]. docs/adr has the reasons.
//
// # Bounds
//
// Each tenant may cause a bounded number of events per second: a token bucket. Events of
// operators and refused logins have buckets of their own, so that no tenant can hide what
// others do by causing many events itself. [Recorder.Admit] takes the token before the call,
// so that nothing is read for an event that will not be kept. Each sink has a bounded queue.
// While a sink fails, its events wait there and are tried again. The last quarter of a queue
// is for the events of operators. Events that do not fit are dropped.
//
// A sink that hangs holds up neither the others, nor a stop, nor more than the first call of
// an operator: no call waits for a sink that has kept one waiting in vain, until it stores
// events again.
//
// Dropped events are counted in the metrics, and told in the log itself: an event with the
// action [task.AuditDropped] says how many events of a tenant are missing.
package audit

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/task"
)

const (
	// Wait is how long Record waits at most for the event of an operator to be stored.
	Wait = 250 * time.Millisecond
	// burstSeconds is how many seconds' worth of events may come at once.
	burstSeconds = 50
	// tellEvery is how often dropped events are told in the log.
	tellEvery = time.Minute
)

// Sink takes events. Its methods are called by one goroutine.
type Sink interface {
	// Name names the sink in metrics and messages.
	Name() string
	// Write stores events. After an error it is called again with the same events.
	Write(ctx context.Context, events []task.AuditEvent) error
}

// Config configures a [Recorder]. Zero fields take their defaults.
type Config struct {
	Sinks []Sink
	// Rate is how many events per second each tenant may cause in this process. Default: 20.
	Rate int
	// Recorded and Dropped, if set, count events that a sink has stored, and events that were
	// dropped for want of room in the sink's queue; sink "" stands for the limit of a tenant.
	// They must not block.
	Recorded, Dropped func(sink string, n int)
	// Log gets messages about sinks that fail. Default: none.
	Log *slog.Logger
}

// Recorder records events. Create it with [New], then call Run once. Its methods may be called
// concurrently.
type Recorder struct {
	limit    *limit
	queues   []*queue
	recorded func(sink string, n int)
	dropped  func(sink string, n int)
}

// New returns a recorder. Until Run is called, events wait in the queues.
func New(c Config) *Recorder {
	if c.Rate == 0 {
		c.Rate = 20
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	none := func(string, int) {}
	if c.Recorded == nil {
		c.Recorded = none
	}
	if c.Dropped == nil {
		c.Dropped = none
	}
	r := &Recorder{limit: newLimit(c.Rate), recorded: c.Recorded, dropped: c.Dropped}
	for _, s := range c.Sinks {
		r.queues = append(r.queues, newQueue(s, c.Log, c.Recorded))
	}
	return r
}

// Admit reports whether an event may be recorded, and takes its token. It needs Tenant, TenantName
// and Operator, as far as they are known, of a call that was denied also Result and Actor, and of a
// refused login Source. If it returns false, it counts the event as dropped.
func (r *Recorder) Admit(e task.AuditEvent) bool {
	admitted := r.limit.allow(&e, time.Now())
	if !admitted {
		r.dropped("", 1)
	}
	return admitted
}

// Record records an event that was admitted. It sets ID, and At unless it is set. It does not
// block, except for the event of an operator: then it waits until the sinks have stored it, for
// at most [Wait] and until ctx ends.
func (r *Recorder) Record(ctx context.Context, e task.AuditEvent) {
	complete(&e)
	ctx, cancel := context.WithTimeout(ctx, Wait)
	defer cancel()
	for q, stored := range r.put(e) {
		if e.Operator && !q.late.Load() && !await(ctx, stored) {
			q.late.Store(true)
		}
	}
}

// await waits until an event is stored. It returns false if ctx ends first.
func await(ctx context.Context, stored <-chan struct{}) bool {
	select {
	case <-stored:
		return true
	case <-ctx.Done():
	}
	select {
	case <-stored:
		return true
	default:
		return false
	}
}

// ErrNotStored is returned by [Recorder.Store].
var ErrNotStored = errors.New("the audit event is not stored")

// Store records an event for which there must be one: it returns [ErrNotStored] unless all
// sinks have stored it before ctx ends. The event has no limit but the room in the queues.
func (r *Recorder) Store(ctx context.Context, e task.AuditEvent) error {
	complete(&e)
	waiting := r.put(e)
	if len(waiting) < len(r.queues) {
		return ErrNotStored
	}
	for _, stored := range waiting {
		if !await(ctx, stored) {
			return ErrNotStored
		}
	}
	return nil
}

// put adds an event to all queues that have room. The channels are closed when the sinks have
// stored it.
func (r *Recorder) put(e task.AuditEvent) map[*queue]<-chan struct{} {
	stored := make(map[*queue]<-chan struct{}, len(r.queues))
	for _, q := range r.queues {
		if done, ok := q.put(e); ok {
			stored[q] = done
		} else {
			r.dropped(q.sink.Name(), 1)
		}
	}
	return stored
}

// Run hands events to the sinks until ctx ends, and then, for some seconds, those that still
// wait.
func (r *Recorder) Run(ctx context.Context) error {
	var running errgroup.Group
	for _, q := range r.queues {
		running.Go(func() error { return q.run(ctx) })
	}
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			r.tellDropped()
		}
	}
	return running.Wait()
}

// tellDropped records how many events of each tenant exceeded its limit.
func (r *Recorder) tellDropped() {
	for _, d := range r.limit.takeDropped() {
		r.put(droppedEvent(d))
	}
}

func droppedEvent(d drop) task.AuditEvent {
	return task.AuditEvent{
		At: task.At(time.Now()), ID: newID(), Tenant: d.tenant, TenantName: d.name, Operator: d.operator, Action: task.AuditDropped, Result: "OK",
		Changes: []task.AuditChange{{Field: "events", After: strconv.Itoa(d.n)}},
	}
}

// complete sets At, unless it is set, and ID, and makes the texts ones that sinks can store.
func complete(e *task.AuditEvent) {
	if e.At == 0 {
		e.At = task.At(time.Now())
	}
	e.ID = newID()
	clean(e)
}

// newID draws a positive number.
func newID() int64 {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck // never fails
	return int64(binary.LittleEndian.Uint64(b[:])>>1) | 1
}

// clean makes the texts of an event ones that every sink can store.
func clean(e *task.AuditEvent) {
	for _, text := range []*string{&e.TenantName, &e.Actor, &e.Source, &e.Action, &e.Object, &e.Result, &e.RequestID} {
		*text = Text(*text)
	}
	size := 0
	for i, c := range e.Changes {
		c = task.AuditChange{Field: Text(c.Field), Before: Text(c.Before), After: Text(c.After)}
		if size += len(c.Field) + len(c.Before) + len(c.After); size > task.MaxAuditChanges {
			e.Changes = append(e.Changes[:i:i], task.AuditChange{Field: "...", After: strconv.Itoa(len(e.Changes)-i) + " more fields"})
			return
		}
		e.Changes[i] = c
	}
}

// Text returns a text without what a database refuses, cut to [task.MaxAuditText] bytes.
func Text(text string) string {
	if len(text) > task.MaxAuditText {
		text = text[:task.MaxAuditText-3] + "..."
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
}

// RecordNow hands one event to all sinks and returns their errors. It is for commands, which
// have no queues.
func RecordNow(ctx context.Context, e task.AuditEvent, sinks ...Sink) error {
	complete(&e)
	errs := make([]error, len(sinks))
	var writing sync.WaitGroup
	for i, s := range sinks {
		writing.Go(func() { errs[i] = s.Write(ctx, []task.AuditEvent{e}) })
	}
	writing.Wait()
	return errors.Join(errs...)
}
