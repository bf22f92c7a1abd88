package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/task"
)

// Contract adds tasks that use the rest of the contract, in addition to the plan's tasks,
// and changes them while they run. It covers calendars, misfire policies and spread; edits,
// pauses, triggers and cancels; keys and upserts by two concurrent callers; handlers that
// fail, give up and snooze; and dead runs that are replayed. It records all answers.
type Contract struct {
	plan    Plan
	each    int // number of tasks of each variety
	pad     string
	clients []*client.Client
	history *history.Writer
	number  *atomic.Int64
	from    time.Time // when the tasks begin
	to      time.Time // when they end

	// Excuse, if not nil, reports whether the database has lost changes of a task, so that
	// its calls may be answered with anything. Run calls it at its end.
	Excuse func(task.ID) bool

	mu     sync.Mutex
	faults []refusal
}

// refusal is an answer that no caller may get. id is the task, or 0.
type refusal struct {
	id  task.ID
	err error
}

const (
	maxChangeTries = 40
	changePause    = 250 * time.Millisecond
	changeLimit    = 20 * time.Second // of one try, with the client's own retries
	contractTries  = int32(3)         // attempts of a run with a script
	maxFaults      = 10
)

// NewContract returns a contract load. It adds no tasks yet. The clients stand for
// independent callers; there must be at least two.
func NewContract(p Plan, each int, a *Adder, clients []*client.Client, h *history.Writer) *Contract {
	return &Contract{plan: p, each: each, pad: a.pad, clients: clients, history: h, number: &a.number}
}

// errEnded means that a task had ended before the change.
var errEnded = errors.New("the task had already ended")

// variety is a sort of task, together with the changes that are made to it.
type variety struct {
	name string
	make func(*Contract, *rand.Rand, *item)
	live func(context.Context, *Contract, *rand.Rand, *item)
}

// Run adds all tasks and changes them until they end, at to. It returns the faults that it
// found; the answers are in the history.
func (c *Contract) Run(ctx context.Context, from, to time.Time) error {
	c.from, c.to = from, to
	var all sync.WaitGroup
	for _, v := range varieties {
		for i := range c.each {
			number := c.number.Add(1)
			random := rand.New(rand.NewPCG(c.plan.Seed, uint64(number)))
			all.Go(func() { c.one(ctx, v, i, number, random) })
		}
	}
	all.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	var faults []error
	for _, f := range c.faults {
		if c.Excuse == nil || !c.Excuse(f.id) {
			faults = append(faults, f.err)
		}
	}
	return errors.Join(faults[:min(len(faults), maxFaults)]...)
}

// one adds one task and changes it until it ends.
func (c *Contract) one(ctx context.Context, v variety, i int, number int64, random *rand.Rand) {
	it := c.item(number, i)
	if v.make != nil {
		v.make(c, random, &it)
	}
	id := c.add(ctx, &it)
	if id == 0 || v.live == nil {
		return
	}
	it.add.ID = id
	v.live(ctx, c, random, &it)
}

// item returns a NON_BLOCKING task that runs every second until the end.
func (c *Contract) item(number int64, i int) item {
	begin := task.At(c.from.Add(time.Duration(i) * time.Second / time.Duration(c.each)))
	a := check.Add{
		Number: number, Type: task.NonBlocking, Begin: begin, End: task.At(c.to), Interval: time.Second, Retained: true,
	}
	t := client.Task{
		Kind: c.plan.Kind, AckTimeout: c.plan.AckTimeout, Retention: retention,
		Params: map[string]string{numberParam: strconv.FormatInt(number, 10), padParam: c.pad},
	}
	return item{t, a}
}

// complete copies the terms that the checker knows to the SDK's task and returns it.
func (it *item) complete() client.Task {
	t, a := it.task, it.add
	t.Type, t.Begin, t.End = client.Type(a.Type), a.Begin.Time(), a.End.Time()
	t.Interval, t.MaxCount = a.Interval, a.MaxCount
	if a.Now {
		t.Begin = time.Time{}
	}
	terms(&t, a.Terms)
	return t
}

// add adds a task and returns its id, or 0 if it was refused or the outcome is not known.
func (c *Contract) add(ctx context.Context, it *item) task.ID {
	callers := c.clients[:1]
	if it.add.Key {
		callers = c.clients[:2] // both concurrently
	}
	ids := make([]task.ID, len(callers))
	var all sync.WaitGroup
	for i, caller := range callers {
		all.Go(func() { ids[i] = c.addBy(ctx, caller, it) })
	}
	all.Wait()
	for _, id := range ids {
		if id != 0 {
			return id
		}
	}
	return 0
}

func (c *Contract) addBy(ctx context.Context, caller *client.Client, it *item) task.ID {
	add := it.add
	add.Sent = check.At(time.Now())
	var options []client.AddOption
	if !add.Key {
		options = append(options, client.WithRequestID(fmt.Sprintf("%s-%d", c.plan.Kind, add.Number)))
	}
	id, err := caller.AddTask(ctx, it.complete(), options...)
	add.Answered, add.Answer = check.At(time.Now()), answerOf(err)
	if add.Answer == check.Acknowledged {
		add.ID = task.ID(id)
	}
	if add.Answer == check.Refused {
		c.fault(0, "add task number %d: %w", add.Number, err)
	}
	c.history.Add(add)
	return add.ID
}

func (c *Contract) fault(id task.ID, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, refusal{id, fmt.Errorf(format, args...)})
}

// change repeats a call until it is answered and records the outcome. It returns false if
// the change was not done or its outcome is not known.
func (c *Contract) change(ctx context.Context, op check.Op, call func(context.Context, *check.Op) error) bool {
	op.Sent = check.At(time.Now())
	perhaps := false // a try without an answer may have made the change
	for range maxChangeTries {
		limited, cancel := context.WithTimeout(ctx, changeLimit)
		err := call(limited, &op)
		cancel()
		op.Answered = check.At(time.Now())
		switch {
		case err == nil:
			op.Known = true
			c.history.Op(op)
			return true
		case errors.Is(err, errEnded), errors.Is(err, client.ErrOtherVersion): // too late, or another caller was first
			if perhaps {
				c.history.Op(op)
			}
			return false
		case errors.Is(err, client.ErrFailedPrecondition), endsBefore(err):
			// The task has ended meanwhile, or will have ended before the change has an effect. The client
			// repeats calls itself, so an earlier try, of which nobody knows, may have made the change.
			c.history.Op(op)
			return false
		case answerOf(err) == check.Refused:
			c.fault(op.ID, "%s task %d: %w", op.Change, op.ID, err)
			return false
		}
		perhaps = true
		if harness.Sleep(ctx, changePause) != nil {
			break
		}
	}
	c.history.Op(op)
	return false
}

// until waits for a random time of up to twice the mean. It returns false if the tasks end soon.
func (c *Contract) until(ctx context.Context, random *rand.Rand, mean time.Duration) bool {
	wait := time.Duration(random.Int64N(int64(2 * mean)))
	if time.Now().Add(wait).After(c.to.Add(-2 * time.Second)) {
		return false
	}
	return harness.Sleep(ctx, wait) == nil
}

// simple makes a change that has no arguments.
func (c *Contract) simple(ctx context.Context, it *item, change check.Change, call func(context.Context, int64) (*client.TaskInfo, error)) bool {
	return c.change(ctx, check.Op{ID: it.add.ID, Change: change}, func(ctx context.Context, op *check.Op) error {
		info, err := call(ctx, int64(op.ID))
		if err == nil {
			op.Version = int32(info.Version)
			if change == check.Cancel && info.State != client.Cancelled {
				return errEnded
			}
		}
		return err
	})
}
