package shards

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Edits and triggers in the race of the far tier. One actor edits a task, and repeats an
// edit until its outcome is known. So at any time a task may begin at one of at most two
// instants. Each edit sets a mark in the params, which only grows.
type edits struct {
	typ     task.Type
	editing bool
	next    task.Instant // where an edit wants the task to begin; 0: no edit is under way
	// mark and version are those of the last answered edit, and the instant since when;
	// wanted is the mark of the edit that is under way.
	mark, wanted int
	version      int32
	since        int64
	// opened are the runs that triggers have returned, by seq; pending is the number of
	// triggers that are under way.
	opened  map[int64]string
	pending int
}

func (e *edits) isTriggered(seq int64) bool { return e.opened[seq] != "" || e.pending > 0 }

// terms describes the fault in the params of a delivery, or returns "" for none.
func (e *edits) terms(p *task.Publication, began int64) string {
	mark, _ := strconv.Atoi(string(p.Params)) // none: 0
	switch {
	case e.opened == nil: // its add is about to be acknowledged
	case began > e.since && (mark < e.mark || p.Version < e.version):
		return fmt.Sprintf("has version %d with mark %d; before its claim began version %d was answered, with mark %d", p.Version, mark, e.version, e.mark)
	case mark > max(e.mark, e.wanted):
		return fmt.Sprintf("has mark %d; the last edit set %d", mark, max(e.mark, e.wanted))
	}
	return ""
}

// enough reports whether enough changes were made, which takes long on a busy machine.
func (f *farRace) enough() bool {
	return f.answeredEdits.Load() >= leastChanges && f.answeredTriggers.Load() >= leastChanges || time.Now().After(f.until)
}

const leastChanges = 20

// editor moves a task to another instant, or gives it another interval, and a mark.
func (f *farRace) editor() {
	t := f.pick()
	if t == nil {
		return
	}
	f.mu.Lock()
	if t.editing {
		f.mu.Unlock()
		return
	}
	t.editing, t.wanted = true, t.mark+1
	every, move := 3*time.Hour, f.r.IntN(2) == 0
	if f.r.IntN(2) == 0 {
		every = time.Hour
	}
	f.mu.Unlock()
	if move {
		at := f.now().Add(time.Duration(f.random([]int{5, 120, 60 * 24}[f.random(3)]*60_000)) * time.Millisecond)
		f.mu.Lock()
		t.next = at
		f.mu.Unlock()
	}
	f.edit(t, every, move)
	f.mu.Lock()
	t.editing, t.next, t.wanted = false, 0, 0
	f.mu.Unlock()
}

func (f *farRace) edit(t *racer, every time.Duration, move bool) {
	f.mu.Lock()
	begin, next, mark := t.begin, t.next, t.wanted
	f.mu.Unlock()
	if !move {
		next = begin
	}
	s := f.spec(t.typ, func(s *task.Spec) {
		s.Begin, s.AckTimeout, s.GiveUpAfter, s.Retention = next, 24*time.Hour, 30*24*time.Hour, 80*24*time.Hour
		s.ParamsWire = strconv.AppendInt(nil, int64(mark), 10)
		if t.typ != task.OneShot {
			s.Interval, s.MaxCount = every, 2
		}
	})
	for perhaps := false; ; perhaps = true {
		got, err := f.Update(context.Background(), f.tenant, t.id, task.Edit{Spec: &s, KeepBegin: !move, Params: true})
		switch {
		case err == nil:
			f.edited(t, got)
			return
		case allowed(err):
			continue
		case task.CodeOf(err) != task.FailedPrecondition && task.CodeOf(err) != task.InvalidArgument:
			f.fail("edit of %d: %v", t.id, err)
			return
		case !perhaps:
			return // it was not done
		}
		break
	}
	for { // it may have been done before the task went on
		got, err := f.Get(context.Background(), f.tenant, t.id)
		if err == nil {
			f.edited(t, got)
			return
		}
		if !allowed(err) {
			f.fail("get of %d: %v", t.id, err)
			return
		}
	}
}

// edited records the outcome of an edit.
func (f *farRace) edited(t *racer, got *task.Snapshot) {
	mark, _ := strconv.Atoi(string(got.Params))
	f.answeredEdits.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if (got.Begin != t.begin && got.Begin != t.next) || (mark != t.mark && mark != t.wanted) || got.Version < t.version {
		f.fails = append(f.fails, fmt.Sprintf("task %d begins at %s with version %d and mark %d; it began at %s with version %d and mark %d, and was to begin at %s with mark %d",
			t.id, got.Begin, got.Version, mark, t.begin, t.version, t.mark, t.next, t.wanted))
	}
	t.begin, t.mark, t.version, t.since = got.Begin, mark, got.Version, f.order.Add(1)
}

// trigger opens one run and repeats the call until its outcome is known.
func (f *farRace) trigger() {
	t := f.pick()
	if t == nil {
		return
	}
	request := "t" + strconv.FormatInt(f.order.Add(1), 10)
	f.mu.Lock()
	t.pending++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		t.pending--
		f.mu.Unlock()
	}()
	for {
		seq, _, err := f.Trigger(context.Background(), f.tenant, t.id, request)
		switch {
		case err == nil:
			f.answeredTriggers.Add(1)
			f.mu.Lock()
			if other := t.opened[seq]; other != "" {
				f.fails = append(f.fails, fmt.Sprintf("run %d-%d was opened by the requests %s and %s", t.id, seq, other, request))
			}
			t.opened[seq] = request
			f.mu.Unlock()
			return
		case allowed(err):
			continue
		case task.CodeOf(err) != task.FailedPrecondition:
			f.fail("trigger of %d: %v", t.id, err)
		}
		return
	}
}

// judgeChanges compares the tasks with the answers to edits and triggers.
func (f *farRace) judgeChanges() {
	for _, t := range f.tasks {
		for seq := range t.opened {
			if t.fired[seq] == 0 && !t.tried {
				f.fail("run %d-%d was triggered and never fired", t.id, seq)
			}
		}
		if t.version == 0 {
			continue
		}
		got, err := f.Get(context.Background(), f.tenant, t.id)
		if err != nil {
			f.fail("get of %d: %v", t.id, err)
			continue
		}
		if mark, _ := strconv.Atoi(string(got.Params)); mark != t.mark || got.Version < t.version || got.Begin != t.begin {
			f.fail("task %d has ended with version %d, mark %d, begin %s; the last edit was answered with %d, %d, %s",
				t.id, got.Version, mark, got.Begin, t.version, t.mark, t.begin)
		}
	}
	if found, err := f.Recount(context.Background(), f.d, f.tenant, false); err != nil || len(found) > 0 {
		f.fail("the counters differ: %+v, %v", found, err)
	}
	f.t.Logf("%d edits, %d triggers", f.answeredEdits.Load(), f.answeredTriggers.Load())
	if f.answeredEdits.Load() < leastChanges || f.answeredTriggers.Load() < leastChanges {
		f.fail("hardly anything was changed")
	}
}
