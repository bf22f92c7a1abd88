package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Kind names a way to break the contract.
type Kind string

// The kinds of violations.
const (
	// Lost: a due instant has neither a callback nor a recorded miss, a run has
	// no result that was taken, or an acknowledged task is not there.
	Lost Kind = "lost"
	// Early: a handler began before its scheduled instant, or a run of a BLOCKING
	// task was scheduled less than an interval after the last result.
	Early Kind = "early"
	// DuplicateResult: a run has two accepted final results, or an attempt two
	// accepted failures.
	DuplicateResult Kind = "duplicate_result"
	// OutOfBounds: a scheduled instant lies outside [begin, end) or is none that
	// the schedule has.
	OutOfBounds Kind = "out_of_bounds"
	// Overlap: two handlers of one BLOCKING task ran at once, or one ran without
	// a lease of its own.
	Overlap Kind = "overlap"
	// OverCount: there are more runs than max_count, or two for one instant.
	OverCount Kind = "over_count"
	// Mismatch: two accounts of one run or task contradict each other.
	Mismatch Kind = "mismatch"
	// Phantom: a task or a callback that no add accounts for.
	Phantom Kind = "phantom"
	// Late: a run fired that its policy for missed instants drops.
	Late Kind = "late"
	// Stale: a handler began under what had been changed, or ended, for longer than
	// the change may take to reach it.
	Stale Kind = "stale"
)

// Kinds lists all kinds.
var Kinds = []Kind{Lost, Early, DuplicateResult, OutOfBounds, Overlap, OverCount, Mismatch, Phantom, Late, Stale}

// Violation is one broken rule.
type Violation struct {
	Kind    Kind    `json:"kind"`
	Task    task.ID `json:"task_id"`
	Seq     int64   `json:"seq,omitempty"`
	Message string  `json:"message"`
}

// String returns one line for people.
func (v Violation) String() string {
	if v.Seq == 0 {
		return fmt.Sprintf("%s: task %d: %s", v.Kind, v.Task, v.Message)
	}
	return fmt.Sprintf("%s: run %d-%d: %s", v.Kind, v.Task, v.Seq, v.Message)
}

// Defaults of [Config].
const (
	DefaultEpsilon  = 5 * time.Millisecond
	DefaultExamples = 5
	DefaultDelivery = 10 * time.Second
	// LateAfter is how old a run may be that a listener does not ask about, counted
	// from its claim or its instant, whichever is later, and ClaimAhead how far before
	// its instant it may have been claimed, unless that is configured. Together they
	// are what docs/editing.md promises.
	LateAfter     = time.Second
	ClaimAhead    = 500 * time.Millisecond
	DefaultWindow = LateAfter + ClaimAhead
	DefaultSlack  = 500 * time.Millisecond
)

// Config says which accounts there are, and what is measured.
type Config struct {
	// Epsilon is how far the observers' clocks may differ. Default 5 ms.
	Epsilon time.Duration
	// OneClock says that handlers and the database read one clock: no handler may begin
	// before its instant at all.
	OneClock bool
	// Quiet is the instant at which everything due before had to be done. 0:
	// there was no such instant, and nothing is called lost for not having
	// happened yet.
	Quiet Micros
	// Finals says that the API was asked for every task that it still knows.
	Finals bool
	// Replies says that the answers to starts and reports were recorded.
	Replies bool
	// From and To bound the window of the figures.
	From, To Micros
	// Spans ask each when the instants scheduled in them had all been handled.
	Spans []Span
	// Delivery is how long a run may take from its claim to its handler, whatever
	// was disturbed. Default 10 s.
	Delivery time.Duration
	// Window is how long after the acknowledgement of a cancel, an edit or a pause a
	// listener may decide to call a handler that knows nothing of it. Default:
	// [LateAfter] and [ClaimAhead].
	Window time.Duration
	// Slack is how long a busy machine may take from that decision to what is seen of
	// it: the handler reads its clock when it has got a processor. Default 500 ms.
	Slack time.Duration
	// Deaths says when listeners were killed, by their number: what they had begun is
	// silent from then on.
	Deaths map[uint16]Micros
	// AckTimeout is that of all tasks, and Redelivery how long after the death of a
	// listener at the latest what it had begun is called again; both are needed where
	// there are Deaths.
	AckTimeout, Redelivery time.Duration
	// Fired is told of each run, with its first call of a handler. May be nil.
	Fired func(add *Add, at task.Instant, first Micros)
	// Examples is how many violations of each kind are kept. Default 5.
	Examples int
}

// Span is a stretch of time, To excluded.
type Span struct{ From, To Micros }

func (s Span) holds(m Micros) bool { return s.From <= m && m < s.To }

// Checker checks tasks and adds up figures. It is not safe for concurrent use.
type Checker struct {
	cfg     Config
	counts  map[Kind]int64
	kept    []Violation
	figures Figures
	// calendars by zone and expression
	calendars map[string]*calendar
	// keyed has the ids of adds with a key, by number
	keyed map[int64]task.ID
}

// New returns a checker that has seen nothing.
func New(cfg Config) *Checker {
	if cfg.Epsilon == 0 {
		cfg.Epsilon = DefaultEpsilon
	}
	if cfg.Examples == 0 {
		cfg.Examples = DefaultExamples
	}
	if cfg.Window == 0 {
		cfg.Window = DefaultWindow
	}
	if cfg.Slack == 0 {
		cfg.Slack = DefaultSlack
	}
	if cfg.Delivery == 0 {
		cfg.Delivery = DefaultDelivery
	}
	c := &Checker{cfg: cfg, counts: map[Kind]int64{}, figures: newFigures(cfg), calendars: map[string]*calendar{}, keyed: map[int64]task.ID{}}
	for _, k := range Kinds {
		c.counts[k] = 0
	}
	return c
}

// Result is what was found.
type Result struct {
	// Violations has every kind.
	Violations map[Kind]int64
	// Examples are the first violations of each kind.
	Examples []Violation
	Figures  Figures
}

// Total returns the number of violations.
func (r Result) Total() int64 {
	var n int64
	for _, k := range r.Violations {
		n += k
	}
	return n
}

// Result returns what was found so far.
func (c *Checker) Result() Result {
	return Result{Violations: c.counts, Examples: c.kept, Figures: c.figures}
}

// Task checks one task. It sorts the slices of t.
func (c *Checker) Task(t Task) {
	c.figures.add(t.Add)
	k := &checking{Checker: c, Task: t}
	k.unfinished()
	k.gather()
	if t.Add == nil || t.Add.Answer == Refused {
		k.phantom()
		return
	}
	k.beginOfNow()
	k.oneID()
	k.changes()
	k.executions()
	k.numbers()
	if t.Add.Type == task.Blocking {
		k.leases()
	}
	if t.Add.Answer == NotKnown && len(k.runs) == 0 && t.Final == nil {
		return // it was not stored, as far as anybody knows
	}
	var err error
	if k.grid, err = c.gridOf(k.Add, t.ID); err != nil {
		k.violate(Mismatch, 0, "nobody can say when it is due: %v", err)
		return
	}
	switch t.Add.Type {
	case task.OneShot:
		k.oneShot()
	case task.NonBlocking:
		k.nonBlocking()
	case task.Blocking:
		k.blocking()
	}
	k.attempts()
	k.silence()
	k.results()
	k.final()
}

// checking is the work on one task.
type checking struct {
	*Checker
	Task
	grid grid
	runs []run // by seq
	// ended says that certainly no further run was due before Quiet, and goesOn
	// that certainly one is due after it. Of a BLOCKING task whose last result has
	// an unknown instant neither may be certain.
	ended, goesOn bool
	// missed is the number of instants that no run was for.
	missed int64
	// cancelled is the first cancel that was, or may have been, done; nil: none.
	cancelled *Op
	// editions are the edits that are known to have been done, by version.
	editions []*Op
}

// run is what was seen of one run.
type run struct {
	seq        int64
	at         task.Instant
	missed     int64
	first      Micros // the earliest start
	executions []Execution
	// accepted counts final results that were taken.
	accepted int
	// fails counts accepted failures by attempt; nil: none.
	fails map[int32]int
	// taken is when the accepted result was answered at the latest, and ended
	// when its handler ended; 0: not known.
	taken, ended Micros
	// beside says that it was triggered: its instant is none of the schedule.
	beside bool
	// dead is when its last failure was taken; 0: not known, or it did not die.
	dead Micros
	// closed says that some answer told that the run has its final result, and perhaps
	// that a listener may have died before it wrote that down.
	closed, perhaps bool
}

func (k *checking) violate(kind Kind, seq int64, format string, args ...any) {
	k.counts[kind]++
	if k.counts[kind] <= int64(k.cfg.Examples) {
		k.kept = append(k.kept, Violation{Kind: kind, Task: k.ID, Seq: seq, Message: fmt.Sprintf(format, args...)})
	}
}

// gather groups what was seen by run.
func (k *checking) gather() {
	slices.SortFunc(k.Executions, func(a, b Execution) int {
		if a.Seq != b.Seq {
			return cmp.Compare(a.Seq, b.Seq)
		}
		return cmp.Compare(a.Start, b.Start)
	})
	for i := 0; i < len(k.Executions); {
		j := i + 1
		for j < len(k.Executions) && k.Executions[j].Seq == k.Executions[i].Seq {
			j++
		}
		k.runs = append(k.runs, newRun(k.Executions[i:j]))
		i = j
	}
	for i := range k.Replies {
		k.reply(&k.Replies[i])
	}
	for i := range k.runs {
		k.figures.run(&k.runs[i], k.Add)
	}
}

func newRun(executions []Execution) run {
	e := executions[0]
	r := run{seq: e.Seq, at: e.ScheduledAt, first: e.Start, executions: executions}
	for _, e := range executions {
		r.missed = max(r.missed, e.Missed)
	}
	return r
}

// run returns the run of seq, or nil when it has no callback.
func (k *checking) run(seq int64) *run {
	i, ok := slices.BinarySearchFunc(k.runs, seq, func(r run, seq int64) int { return cmp.Compare(r.seq, seq) })
	if !ok {
		return nil
	}
	return &k.runs[i]
}

func (k *checking) phantom() {
	for _, r := range k.runs {
		k.violate(Phantom, r.seq, "a handler was called at %v for number %d, but no add accounts for the task", r.first.Time(), r.executions[0].Number)
	}
	if len(k.runs) == 0 && k.Final != nil {
		k.violate(Phantom, 0, "the API shows it with number %d, but no add accounts for it", k.Final.Number)
	}
}
