package server

import (
	"container/heap"
	"context"
	"maps"
	"sync"
	"time"
)

// # Adds yield to claims
//
// Adds and claims use the same processors. While records of the foreground are published late,
// adds give way: this process admits them at a rate that follows from how many records are
// published and how late they are, see addRate. So the backlog of a burst shrinks while tasks
// are still added, but slower, and adds never stop. While nothing is published, as while Kafka
// is away, nothing is late in this sense, and adds are as fast as ever.
//
// Waiting calls are admitted by start-time fair queueing (Goyal, Vin and Cheng, 1996): the tasks
// of each tenant have virtual times of their own, so a tenant that adds much waits behind one
// that adds little. No call is refused, and none waits longer than mostYield. Every answer tells
// its caller how long to wait before the next add; SDKs do so, and their calls need not wait
// here.

const (
	// Adds yield while the mean lateness is at least yieldFrom. The rate reaches its least at
	// yieldMost.
	yieldFrom = time.Second
	yieldMost = 3 * time.Second
	// At yieldFrom, adds may be mostAdds times as many as published records, at yieldMost
	// leastAdds times. So at last a backlog shrinks by a quarter of what is published.
	mostAdds, leastAdds = 1.5, 0.75
	// slowestAdds is the least rate of this process, in tasks per second.
	slowestAdds = 100
	// mostYield bounds the wait of a call. It is less than SDKs wait before they ask another
	// server.
	mostYield = 500 * time.Millisecond
	// mostPause bounds the wait that a caller is told.
	mostPause = time.Second
	// yieldBurst is how much of its rate a process may admit at once.
	yieldBurst = 100 * time.Millisecond
	// yieldStep is the longest time between two readings of the lateness while calls wait.
	yieldStep = 50 * time.Millisecond
	// activeFor is how long after its last add a tenant counts as adding.
	activeFor = time.Second
)

// backpressure makes adds yield to claims. It is safe for concurrent use.
type backpressure struct {
	// lateness returns how late records of the foreground are published, and how many records
	// are published per second. It must not block.
	lateness func() (late time.Duration, perSecond float64)
	// processes returns the number of processes that share the rate.
	processes func() int

	mu       sync.Mutex
	tokens   float64 // tasks that may be admitted now; negative after a call with many
	filledAt time.Time
	virtual  float64                 // virtual time: that of the last admitted call
	tenants  map[int32]*addingTenant // those that add while there is a limit
	forgotAt time.Time
	waiting  addQueue
	timer    *time.Timer // set while calls wait
}

// addingTenant is a tenant that adds tasks.
type addingTenant struct {
	finish float64   // the virtual time at which its last call ends
	at     time.Time // of its last call
}

// waitingAdd is a call that waits.
type waitingAdd struct {
	start float64 // virtual time
	tasks int
	index int
	ready chan struct{}
}

// newBackpressure returns nil if the lateness is not known: then adds do not yield.
func newBackpressure(lateness func() (time.Duration, float64), processes func() int) *backpressure {
	if lateness == nil {
		return nil
	}
	if processes == nil {
		processes = func() int { return 1 }
	}
	return &backpressure{lateness: lateness, processes: processes, tenants: map[int32]*addingTenant{}}
}

// addRate returns the tasks per second that this process admits, or 0 if there is no limit.
func (b *backpressure) addRate() float64 {
	late, perSecond := b.lateness()
	if late < yieldFrom {
		return 0
	}
	part := min(float64(late-yieldFrom)/float64(yieldMost-yieldFrom), 1)
	factor := mostAdds + part*(leastAdds-mostAdds)
	return max(perSecond*factor/float64(max(b.processes(), 1)), slowestAdds)
}

// yield waits until a call may add tasks of a tenant, or until ctx ends. It returns how long it
// has waited, and how long the caller should wait before it adds as many again.
func (b *backpressure) yield(ctx context.Context, tenant int32, tasks int) (waited, pause time.Duration) {
	if b == nil || tasks == 0 {
		return 0, 0
	}
	began := time.Now()
	w, pause := b.enter(began, tenant, tasks)
	if w == nil {
		return 0, pause
	}
	t := time.NewTimer(mostYield)
	defer t.Stop()
	select {
	case <-w.ready:
	case <-t.C:
		b.leave(w)
	case <-ctx.Done():
		b.leave(w)
	}
	return time.Since(began), pause
}

// enter admits a call, or queues it. The pause is the time in which the tenant may add as many
// tasks again, by its share of the rate.
func (b *backpressure) enter(now time.Time, tenant int32, tasks int) (w *waitingAdd, pause time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rate := b.fill(now)
	if rate == 0 {
		return nil, 0
	}
	of := b.tenant(now, tenant)
	pause = min(time.Duration(float64(tasks*len(b.tenants))/rate*float64(time.Second)), mostPause)
	start := max(b.virtual, of.finish)
	of.finish = start + float64(tasks)
	if b.tokens > 0 && len(b.waiting) == 0 {
		b.admit(start, tasks)
		return nil, pause
	}
	w = &waitingAdd{start: start, tasks: tasks, ready: make(chan struct{})}
	heap.Push(&b.waiting, w)
	if b.timer == nil {
		b.timer = time.AfterFunc(yieldStep, b.serve)
	}
	return w, pause
}

// tenant returns the record of a tenant that adds now. Once in activeFor it forgets those that
// do not any more.
func (b *backpressure) tenant(now time.Time, id int32) *addingTenant {
	if now.Sub(b.forgotAt) > activeFor {
		b.forgotAt = now
		maps.DeleteFunc(b.tenants, func(_ int32, t *addingTenant) bool {
			return now.Sub(t.at) > activeFor && t.finish <= b.virtual
		})
	}
	of := b.tenants[id]
	if of == nil {
		of = &addingTenant{}
		b.tenants[id] = of
	}
	of.at = now
	return of
}

func (b *backpressure) admit(start float64, tasks int) {
	b.virtual = start
	b.tokens -= float64(tasks)
}

// fill adds the tokens of the time that has passed and returns the rate. Without a limit it
// forgets all debts and admits everybody.
func (b *backpressure) fill(now time.Time) (rate float64) {
	rate = b.addRate()
	if rate == 0 {
		for len(b.waiting) > 0 {
			close(heap.Pop(&b.waiting).(*waitingAdd).ready)
		}
		b.tokens, b.filledAt, b.virtual = 0, now, 0
		clear(b.tenants)
		return 0
	}
	b.tokens = min(b.tokens+rate*now.Sub(b.filledAt).Seconds(), rate*yieldBurst.Seconds())
	b.filledAt = now
	return rate
}

// serve admits waiting calls, the one with the least virtual time first.
func (b *backpressure) serve() {
	b.mu.Lock()
	defer b.mu.Unlock()
	rate := b.fill(time.Now())
	for b.tokens > 0 && len(b.waiting) > 0 {
		w := heap.Pop(&b.waiting).(*waitingAdd)
		b.admit(w.start, w.tasks)
		close(w.ready)
	}
	if len(b.waiting) == 0 {
		b.timer = nil
		return
	}
	untilToken := time.Duration(-b.tokens/rate*float64(time.Second)) + time.Millisecond
	b.timer.Reset(min(untilToken, yieldStep))
}

// leave lets a call go that has waited for long enough, or is given up. Its tasks count all the
// same.
func (b *backpressure) leave(w *waitingAdd) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.index >= 0 {
		heap.Remove(&b.waiting, w.index)
		b.tokens -= float64(w.tasks)
	}
}

// addQueue is a heap of waiting calls by virtual time.
type addQueue []*waitingAdd

func (q addQueue) Len() int           { return len(q) }
func (q addQueue) Less(i, j int) bool { return q[i].start < q[j].start }
func (q addQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *addQueue) Push(x any) {
	w := x.(*waitingAdd)
	w.index = len(*q)
	*q = append(*q, w)
}

func (q *addQueue) Pop() any {
	old := *q
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	w.index = -1
	return w
}
