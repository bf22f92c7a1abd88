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
	// Lost means that a due instant has neither a callback nor a recorded miss, that a run
	// has no accepted result, or that an acknowledged task does not exist.
	Lost Kind = "lost"
	// Early means that a handler began before its scheduled instant, or that a run of a
	// BLOCKING task was scheduled less than an interval after the last result.
	Early Kind = "early"
	// DuplicateResult means that a run has two accepted final results, or an attempt has
	// two accepted failures.
	DuplicateResult Kind = "duplicate_result"
	// OutOfBounds means that a scheduled instant lies outside [begin, end) or is not in the
	// schedule.
	OutOfBounds Kind = "out_of_bounds"
	// Overlap means that two handlers of one BLOCKING task ran at the same time, or that
	// one ran without a lease of its own.
	Overlap Kind = "overlap"
	// OverCount means that there are more runs than max_count, or two runs for one instant.
	OverCount Kind = "over_count"
	// Mismatch means that two accounts of one run or task contradict each other.
	Mismatch Kind = "mismatch"
	// Phantom means that there is a task or a callback without an add.
	Phantom Kind = "phantom"
	// Late means that a run fired although its policy for missed instants drops it.
	Late Kind = "late"
	// Stale means that a handler began on a state that had been changed or ended before,
	// and that the change had more time than it may take to reach the handler.
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

// String returns the violation as one line of text.
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
	// LateAfter is the age up to which a listener calls a run without asking the API,
	// counted from its claim or its instant, whichever is later. ClaimAhead is how long
	// before its instant a run may be claimed by default. docs/editing.md promises their
	// sum.
	LateAfter     = time.Second
	ClaimAhead    = 500 * time.Millisecond
	DefaultWindow = LateAfter + ClaimAhead
	DefaultSlack  = 500 * time.Millisecond
)

// Config says which accounts there are and what to measure.
type Config struct {
	// Epsilon is the largest difference between the observers' clocks. Default 5 ms.
	Epsilon time.Duration
	// OneClock says that handlers and the database read the same clock, so that no handler
	// may begin before its instant.
	OneClock bool
	// Quiet is the instant at which everything due before had to be done. If it is 0, there
	// was no such instant, and a run that has not happened yet is not lost.
	Quiet Micros
	// Finals says that the API was asked for all tasks at the end.
	Finals bool
	// Replies says that the answers to starts and reports were recorded.
	Replies bool
	// From and To bound the window of the figures.
	From, To Micros
	// Spans are stretches of time. For each, [Figures.CaughtUp] says when all instants
	// scheduled in it had been handled.
	Spans []Span
	// Delivery is the longest time from the claim of a run to its handler, disturbances
	// included. Default 10 s.
	Delivery time.Duration
	// Window is how long after the acknowledgement of a cancel, an edit or a pause a
	// listener may still decide to call a handler without knowing the change. Default:
	// [LateAfter] plus [ClaimAhead].
	Window time.Duration
	// Slack is the longest time on a busy machine from that decision until the handler
	// reads its clock. Default 500 ms.
	Slack time.Duration
	// Deaths maps the number of each killed listener to the time of its death. The calls
	// that it had begun are silent from then on.
	Deaths map[uint16]Micros
	// Frozen maps the number of a listener to the times for which it was suspended. A handler
	// that ran then could not end when its lease ended, so it counts as ended.
	Frozen map[uint16][]Span
	// AckTimeout is the ack_timeout of all tasks. Redelivery is the longest time from the
	// death of a listener until the calls that it had begun are repeated. Deaths needs
	// both.
	AckTimeout, Redelivery time.Duration
	// Skew returns by how much the clock of a task's database was wrong at most. nil: never.
	Skew func(task.ID) time.Duration
	// Told has what databases have lost of acknowledged changes. nil: nothing may be lost.
	Told *Told
	// Fired is called for each run, with the start of its first execution. May be nil.
	Fired func(add *Add, at task.Instant, first Micros)
	// Examples is the number of violations of each kind to keep. Default 5.
	Examples int
}

// Span is the time from From to To, To excluded.
type Span struct{ From, To Micros }

func (s Span) holds(m Micros) bool { return s.From <= m && m < s.To }

// Checker checks tasks and sums up figures. It is not safe for concurrent use.
type Checker struct {
	cfg     Config
	counts  map[Kind]int64
	kept    []Violation
	figures Figures
	// calendars has the calendars by zone and expression
	calendars map[string]*calendar
	// keyed has the ids of adds with an idempotency_key, by number
	keyed map[int64]task.ID
	// gone counts the tasks that were lost as a whole, as databases told.
	gone int64
	// skew is how wrong the clock of the present task's database was.
	skew time.Duration
}

// New returns a checker that has checked no tasks.
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

// Result is the outcome of the check.
type Result struct {
	// Violations has the number of violations of every kind, 0 included.
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

// Result returns the outcome for the tasks checked so far.
func (c *Checker) Result() Result {
	return Result{Violations: c.counts, Examples: c.kept, Figures: c.figures}
}

// Task checks one task. It sorts the slices of t.
func (c *Checker) Task(t Task) {
	if c.cfg.Skew != nil {
		defer c.skewed(c.cfg.Skew(t.ID))()
	}
	c.figures.add(t.Add)
	k := &checking{Checker: c, Task: t}
	k.unfinished()
	k.gather()
	if k.toldLost() {
		return
	}
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
		return // as far as is known, it was not stored
	}
	var err error
	if k.grid, err = c.gridOf(k.Add, t.ID); err != nil {
		k.violate(Mismatch, 0, "the instants of the task cannot be computed: %v", err)
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

// skewed widens what depends on the clock of a database, until restore is called.
func (c *Checker) skewed(by time.Duration) (restore func()) {
	epsilon, window := c.cfg.Epsilon, c.cfg.Window
	c.cfg.Epsilon, c.cfg.Window, c.skew = epsilon+by, window+by, by
	return func() { c.cfg.Epsilon, c.cfg.Window, c.skew = epsilon, window, 0 }
}

// checking is the check of one task.
type checking struct {
	*Checker
	Task
	grid grid
	runs []run // by seq
	// ended says that certainly no further run was due before Quiet. goesOn says that
	// certainly a run is due after it. Both are false for a BLOCKING task if the instant of
	// its last result is not known well enough.
	ended, goesOn bool
	// missed is the number of instants without a run.
	missed int64
	// cancelled is the first cancel that was done or may have been done, or nil.
	cancelled *Op
	// editions are the edits that are known to be done, by version.
	editions []*Op
}

// run is what the accounts say about one run.
type run struct {
	seq        int64
	at         task.Instant
	missed     int64
	first      Micros // the earliest start
	executions []Execution
	// accepted counts accepted final results.
	accepted int
	// fails counts accepted failures by attempt. It is nil if there are none.
	fails map[int32]int
	// taken is the latest instant at which the accepted result can have been stored: the
	// time of its answer. ended is when its handler ended. 0 means not known.
	taken, ended Micros
	// beside says that the run was triggered: its instant is not in the schedule.
	beside bool
	// dead is when the last failure of a dead run was accepted. 0 means that the run did
	// not die or that the time is not known.
	dead Micros
	// closed says that an answer showed that the run has its final result. perhaps says
	// that a listener may have died before it recorded such an answer.
	closed, perhaps bool
}

func (k *checking) violate(kind Kind, seq int64, format string, args ...any) {
	k.counts[kind]++
	if k.counts[kind] <= int64(k.cfg.Examples) {
		k.kept = append(k.kept, Violation{Kind: kind, Task: k.ID, Seq: seq, Message: fmt.Sprintf(format, args...) + k.changed()})
	}
}

// changed tells of the changes of the task.
func (k *checking) changed() (text string) {
	for i := range k.Ops {
		op := &k.Ops[i]
		text += fmt.Sprintf("; %s from %s to %s", op.Change, op.Sent.Time().Format(opTime), op.Answered.Time().Format(opTime))
		if !op.Known {
			text += " without an answer"
		}
	}
	return text
}

const opTime = "15:04:05.000"

// gather groups executions and replies by run.
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

// run returns the run with number seq, or nil if it has no callback.
func (k *checking) run(seq int64) *run {
	i, ok := slices.BinarySearchFunc(k.runs, seq, func(r run, seq int64) int { return cmp.Compare(r.seq, seq) })
	if !ok {
		return nil
	}
	return &k.runs[i]
}

func (k *checking) phantom() {
	for _, r := range k.runs {
		k.violate(Phantom, r.seq, "a handler was called at %v for task number %d, but no such task was added", r.first.Time(), r.executions[0].Number)
	}
	if len(k.runs) == 0 && k.Final != nil {
		k.violate(Phantom, 0, "the API shows the task with number %d, but no such task was added", k.Final.Number)
	}
}
