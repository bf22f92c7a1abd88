package server

import (
	"container/heap"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// # Adds yield to claims
//
// Adds and claims use the same processors. While records are published late, adds give way: this
// process admits them at a rate that follows from how many records are published and how late
// they are, see addRate. So the backlog of a burst shrinks while tasks are still added, but
// slower, and adds never stop. The lateness of the foreground concerns all tenants. That of
// backlogs concerns the backlogged tenants alone, since fair sharing keeps their backlogs from
// the others. While nothing is published, as while Kafka is away, nothing is late in this sense,
// and adds are as fast as ever.
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
	mostPause = 10 * time.Second
	// yieldBurst is how much of its rate a process may admit at once.
	yieldBurst = 100 * time.Millisecond
	// yieldStep is the longest time between two readings of the lateness while calls wait.
	yieldStep = 50 * time.Millisecond
	// activeFor is how long a tenant counts as adding after the pause that it was told last.
	activeFor = time.Second
)

// backpressure makes adds yield to claims. It is safe for concurrent use.
type backpressure struct {
	lateness func() task.Lateness
	// everybody is for the adds of all tenants, backlogged for those of backlogged tenants.
	everybody, backlogged *yielding
}

// newBackpressure returns nil if the lateness is not known: then adds do not yield.
func newBackpressure(lateness func() task.Lateness, processes func() int) *backpressure {
	if lateness == nil {
		return nil
	}
	if processes == nil {
		processes = func() int { return 1 }
	}
	return &backpressure{
		lateness:   lateness,
		everybody:  newYielding(func() task.Pace { return lateness().Foreground }, processes),
		backlogged: newYielding(func() task.Pace { return lateness().Backlogs }, processes),
	}
}

// yield waits until a call may add tasks of a tenant, or until ctx ends. It returns how long it
// has waited, and how long the caller should wait before it adds as many again.
func (b *backpressure) yield(ctx context.Context, tenant int32, tasks int) (waited, pause time.Duration) {
	if b == nil || tasks == 0 {
		return 0, 0
	}
	if _, is := slices.BinarySearch(b.lateness().Backlogged, tenant); is {
		waited, pause = b.backlogged.yield(ctx, tenant, tasks, mostYield)
	}
	w, p := b.everybody.yield(ctx, tenant, tasks, mostYield-waited)
	return waited + w, max(pause, p)
}

// yielding makes some adds yield to claims of one pace. It is safe for concurrent use.
type yielding struct {
	// pace returns how late records are published, and how many are published per second. It
	// must not block.
	pace func() task.Pace
	// processes returns the number of processes that share the rate.
	processes func() int

	mu        sync.Mutex
	tokens    float64 // tasks that may be admitted now; negative after a call with many
	filledAt  time.Time
	virtual   float64                 // virtual time: that of the last admitted call
	tenants   map[int32]*addingTenant // those that add while there is a limit, or have added more than their share
	adding    int                     // how many of them add
	countedAt time.Time
	waiting   addQueue
	timer     *time.Timer // set while calls wait
}

// addingTenant is a tenant that adds tasks.
type addingTenant struct {
	finish float64 // the virtual time at which its last call ends
	// adds is set while it adds: until that instant, if it does not call again.
	adds  bool
	until time.Time
}

// waitingAdd is a call that waits.
type waitingAdd struct {
	start float64 // virtual time
	tasks int
	index int
	ready chan struct{}
}

func newYielding(pace func() task.Pace, processes func() int) *yielding {
	return &yielding{pace: pace, processes: processes, tenants: map[int32]*addingTenant{}}
}

// addRate returns the tasks per second that this process admits, or 0 if there is no limit.
func (y *yielding) addRate() float64 {
	p := y.pace()
	if p.Late < yieldFrom {
		return 0
	}
	factor := task.Ramp(p.Late, yieldFrom, yieldMost, mostAdds, leastAdds)
	return max(p.PerSecond*factor/float64(max(y.processes(), 1)), slowestAdds)
}

// yield is as for [backpressure]. It waits for at most that long.
func (y *yielding) yield(ctx context.Context, tenant int32, tasks int, most time.Duration) (waited, pause time.Duration) {
	began := time.Now()
	w, pause := y.enter(began, tenant, tasks)
	if w == nil {
		return 0, pause
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-w.ready:
	case <-t.C:
		y.leave(w)
	case <-ctx.Done():
		y.leave(w)
	}
	return time.Since(began), pause
}

// enter admits a call, or queues it. The pause is the time in which the tenant may add as many
// tasks again, by its share of the rate of all processes, since its next call may go to another.
func (y *yielding) enter(now time.Time, tenant int32, tasks int) (w *waitingAdd, pause time.Duration) {
	y.mu.Lock()
	defer y.mu.Unlock()
	rate := y.fill(now)
	if rate == 0 {
		return nil, 0
	}
	of := y.tenant(now, tenant)
	share := rate * float64(max(y.processes(), 1)) / float64(y.adding)
	pause = min(time.Duration(float64(tasks)/share*float64(time.Second)), mostPause)
	of.until = now.Add(pause + activeFor)
	start := max(y.virtual, of.finish)
	of.finish = start + float64(tasks)
	if y.tokens > 0 && len(y.waiting) == 0 {
		y.admit(start, tasks)
		return nil, pause
	}
	w = &waitingAdd{start: start, tasks: tasks, ready: make(chan struct{})}
	heap.Push(&y.waiting, w)
	if y.timer == nil {
		y.timer = time.AfterFunc(yieldStep, y.serve)
	}
	return w, pause
}

// tenant returns the record of a tenant that adds now. Once in activeFor it counts those that do, and forgets those that do
// not any more. One that has added more than its share is remembered for longer, but takes no share of the others.
func (y *yielding) tenant(now time.Time, id int32) *addingTenant {
	if now.Sub(y.countedAt) > activeFor {
		y.countedAt, y.adding = now, 0
		maps.DeleteFunc(y.tenants, func(_ int32, t *addingTenant) bool {
			if t.adds = now.Before(t.until); t.adds {
				y.adding++
			}
			return !t.adds && t.finish <= y.virtual
		})
	}
	of := y.tenants[id]
	if of == nil {
		of = &addingTenant{}
		y.tenants[id] = of
	}
	if !of.adds {
		of.adds = true
		y.adding++
	}
	return of
}

// admit takes the tokens of a call. A chunk of an import has many times the tasks of an add: those beyond are the tenant's own
// matter, as its virtual time and its pause are. If they took tokens, all others would wait for seconds.
func (y *yielding) admit(start float64, tasks int) {
	y.virtual = start
	y.tokens -= float64(min(tasks, task.MaxTasksPerAdd))
}

// fill adds the tokens of the time that has passed and returns the rate. Without a limit it
// forgets all debts and admits everybody.
func (y *yielding) fill(now time.Time) (rate float64) {
	rate = y.addRate()
	if rate == 0 {
		for len(y.waiting) > 0 {
			close(heap.Pop(&y.waiting).(*waitingAdd).ready)
		}
		y.tokens, y.filledAt, y.virtual, y.adding = 0, now, 0, 0
		clear(y.tenants)
		return 0
	}
	y.tokens = min(y.tokens+rate*now.Sub(y.filledAt).Seconds(), rate*yieldBurst.Seconds())
	y.filledAt = now
	return rate
}

// serve admits waiting calls, the one with the least virtual time first.
func (y *yielding) serve() {
	y.mu.Lock()
	defer y.mu.Unlock()
	rate := y.fill(time.Now())
	for y.tokens > 0 && len(y.waiting) > 0 {
		w := heap.Pop(&y.waiting).(*waitingAdd)
		y.admit(w.start, w.tasks)
		close(w.ready)
	}
	if len(y.waiting) == 0 {
		y.timer = nil
		return
	}
	untilToken := time.Duration(-y.tokens/rate*float64(time.Second)) + time.Millisecond
	y.timer.Reset(min(untilToken, yieldStep))
}

// leave lets a call go that has waited for long enough, or is given up. Its tasks count for its own tenant only: if
// they took tokens, a tenant with many callers that do not pause would leave none to the others, and debts for later.
func (y *yielding) leave(w *waitingAdd) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if w.index >= 0 {
		heap.Remove(&y.waiting, w.index)
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
