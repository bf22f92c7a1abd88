package dispatch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// TestNothingCommittedIsEverLost drives two dispatchers through random histories: hand-overs
// and take-overs, deaths at every point, pauses, commits of unknown outcome, claims ahead,
// and a Kafka that fails, loses confirmations and blocks. At the end every claimed run must
// be on Kafka or closed, none before its instant, and the outbox must be empty.
func TestNothingCommittedIsEverLost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		plan := drawHistory(rt)
		var fault string
		synctest.Test(t, func(*testing.T) { fault = plan.play() })
		if fault != "" {
			rt.Fatal(fault)
		}
	})
}

// history is the steps and faults of one test. Each step is followed by a wait.
type history struct {
	steps []historyStep
	// claims are the faults of the first claims, and answers those of the first records, in
	// order.
	claims  []commitFault
	answers []int
	// ahead is how far each member claims ahead.
	ahead [2]time.Duration
}

type historyStep struct {
	do     string
	member int
	shards []task.Shard
	point  Point
	wait   time.Duration
}

var machineShards = []task.Shard{0, 1, 2, 32}

func drawHistory(rt *rapid.T) history {
	ahead := rapid.SampledFrom([]time.Duration{0, 0, 50 * time.Millisecond, 400 * time.Millisecond, maxAhead})
	return history{
		ahead: [2]time.Duration{ahead.Draw(rt, "ahead"), ahead.Draw(rt, "ahead of the other")},
		steps: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) historyStep {
			return historyStep{
				do:     rapid.SampledFrom([]string{"add", "add", "take", "take", "give", "kill", "pause", "release", "close", "steal"}).Draw(t, "do"),
				member: rapid.IntRange(0, 1).Draw(t, "member"),
				shards: rapid.SliceOfNDistinct(rapid.SampledFrom(machineShards), 1, 3, rapid.ID).Draw(t, "shards"),
				point:  rapid.SampledFrom([]Point{AfterCommit, BeforePublish, AfterPublish, BeforeAcknowledge}).Draw(t, "point"),
				wait:   time.Duration(rapid.IntRange(0, 700).Draw(t, "wait")) * time.Millisecond,
			}
		}), 1, 14).Draw(rt, "steps"),
		claims:  rapid.SliceOfN(rapid.SampledFrom([]commitFault{commits, commits, commits, rollsBack, answerLost, rollsBackMute, landsLater}), 0, 40).Draw(rt, "claims"),
		answers: rapid.SliceOfN(rapid.IntRange(0, 5), 0, 60).Draw(rt, "answers"),
	}
}

// machine is a history that is being played.
type machine struct {
	*world
	history
	members [2]*member
	arms    [2]*arm
	names   int
	nextID  int64
	mu      sync.Mutex
}

// arm is a failpoint that can be set while the dispatcher runs.
type arm struct {
	mu    sync.Mutex
	point Point
	kill  bool
	hold  chan struct{}
}

func (a *arm) pass(_ context.Context, p Point, _ int) error {
	a.mu.Lock()
	hit := a.point == p
	kill, hold := a.kill, a.hold
	if hit {
		a.point = ""
	}
	a.mu.Unlock()
	switch {
	case !hit:
		return nil
	case kill:
		return errKilled
	}
	<-hold
	return nil
}

func (a *arm) set(p Point, kill bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.point, a.kill = p, kill
}

// open releases a paused dispatcher and clears the failpoint.
func (a *arm) open() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.hold)
	a.hold = make(chan struct{})
	a.point = ""
}

// play runs the history and returns a description of what went wrong, or "".
func (h history) play() string {
	m := &machine{world: newWorld(failNow{}), history: h}
	m.store.fault = m.nextClaimFault
	m.kafka.answer = m.nextAnswer
	m.begin(0)
	m.begin(1)
	for _, s := range h.steps {
		m.step(s)
		time.Sleep(s.wait)
	}
	return m.end()
}

// failNow turns failures of the harness into panics, which rapid reports.
type failNow struct{ testing.TB }

func (failNow) Helper()                      {}
func (failNow) Fatal(args ...any)            { panic(fmt.Sprint(args...)) }
func (failNow) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
func (failNow) Errorf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

func (m *machine) begin(i int) {
	m.names++
	m.arms[i] = &arm{hold: make(chan struct{})}
	m.members[i] = m.start(fmt.Sprint(m.names), func(c *Config, _ *Events) {
		c.Failpoint = m.arms[i].pass
		c.ReleaseTimeout = 300 * time.Millisecond
		c.ClaimAhead = m.ahead[i]
	})
}

func (m *machine) nextClaimFault(task.ClaimRequest) commitFault {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.claims) == 0 {
		return commits
	}
	f := m.claims[0]
	m.claims = m.claims[1:]
	return f
}

func (m *machine) nextAnswer(ctx context.Context, _ *task.Publication) (bool, error) {
	m.mu.Lock()
	answer := 0
	if len(m.answers) > 0 {
		answer = m.answers[0]
		m.answers = m.answers[1:]
	}
	m.mu.Unlock()
	switch answer {
	case 1:
		return false, errDown
	case 2:
		return true, errDown // stored, but the confirmation is lost
	case 3:
		ctxtime.Sleep(ctx, time.Second)
		return ctx.Err() == nil, ctx.Err()
	}
	return true, nil
}

func (m *machine) step(s historyStep) {
	a := m.members[s.member]
	switch s.do {
	case "add":
		for _, sh := range s.shards {
			m.nextID++
			m.store.mu.Lock()
			m.store.insert(id(sh, m.nextID), &fakeRow{tenant: int32(s.member), due: m.store.now(), every: 200 * time.Millisecond, begun: m.store.now()})
			m.store.mu.Unlock()
		}
	case "take", "steal":
		other := m.members[1-s.member]
		other.unassign(s.shards...)
		if s.do == "take" {
			other.tryRelease(s.shards)
		}
		a.tryAcquire(s.shards)
	case "give", "release":
		a.unassign(s.shards...)
		a.tryRelease(s.shards)
	case "kill":
		m.arms[s.member].set(s.point, true)
	case "pause":
		m.arms[s.member].set(s.point, false)
		time.Sleep(s.wait)
		m.arms[s.member].open()
	case "close":
		for _, r := range m.store.claimedRuns() {
			if slices.Contains(s.shards, r.Task.Shard()) && m.kafka.times(r) > 0 {
				m.store.close(r)
			}
		}
	}
	m.revive(s.member)
}

// revive replaces a member that was killed.
func (m *machine) revive(i int) {
	if m.members[i].killed() == nil {
		return
	}
	m.members[i].ended()
	m.begin(i)
}

func (m *member) tryAcquire(shards []task.Shard) {
	m.mu.Lock()
	for _, s := range shards {
		m.assigned[s] = true
	}
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = m.Acquire(ctx, shards)
}

func (m *member) tryRelease(shards []task.Shard) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = m.Release(ctx, shards)
}

// end lets one healthy owner settle all runs and returns the fault, or "".
func (m *machine) end() string {
	m.mu.Lock()
	m.claims, m.answers = nil, nil
	m.mu.Unlock()
	for i, a := range m.members {
		m.arms[i].open()
		m.arms[i].set("", false)
		a.mu.Lock()
		a.again = false
		a.mu.Unlock()
		a.cancel()
		a.ended()
	}
	time.Sleep(2 * landsLaterWait)
	m.store.mu.Lock()
	for _, r := range m.store.rows {
		r.due = task.Never
	}
	m.store.mu.Unlock()
	last := m.start("last", nil)
	last.tryAcquire(machineShards)
	time.Sleep(10 * time.Second)
	last.cancel()
	last.ended()
	return m.fault()
}

// fault describes a violated condition of the outcome, or returns "".
func (m *machine) fault() string {
	for _, r := range m.store.claimedRuns() {
		if m.kafka.times(r) == 0 && !m.store.closed[r] {
			return fmt.Sprintf("run %s was claimed but never published", r)
		}
	}
	if early := m.kafka.earlyRuns(); len(early) > 0 {
		return fmt.Sprintf("runs published before their instant: %v", early)
	}
	if n := m.store.outboxRows(); n > 0 {
		return fmt.Sprintf("%d rows are left in the outbox", n)
	}
	return ""
}
