package shards

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// model is the same tasks in plain Go: package task decides every step.
type model struct {
	tenant   int32
	machines map[task.ID]*task.Machine
	done     map[task.ID]doneTask
	counts   map[task.Type]*task.Counts // but for those of the rows at hand
}

// doneTask is a finished task that is kept.
type doneTask struct {
	typ       task.Type
	state     task.State
	expiresAt task.Instant
}

func newModel(tenant int32) *model {
	return &model{tenant: tenant, machines: map[task.ID]*task.Machine{}, done: map[task.ID]doneTask{}, counts: map[task.Type]*task.Counts{}}
}

// count returns the counts of a type, to change them.
func (m *model) count(t task.Type) *task.Counts {
	if m.counts[t] == nil {
		m.counts[t] = &task.Counts{}
	}
	return m.counts[t]
}

// census returns what the counters must say.
func (m *model) census() []task.TypeCounts {
	sum := map[task.Type]task.Counts{}
	for t, c := range m.counts {
		sum[t] = *c
	}
	add := func(t task.Type, s task.State) {
		c := sum[t]
		map[task.State]func(){
			task.Scheduled: func() { c.Scheduled++ }, task.Running: func() { c.Running++ }, task.Completed: func() { c.Completed++ },
			task.Cancelled: func() { c.Cancelled++ }, task.Failed: func() { c.Failed++ },
		}[s]()
		sum[t] = c
	}
	for _, k := range m.machines {
		add(k.Task.Type, k.Task.State)
	}
	for _, d := range m.done {
		add(d.typ, d.state)
	}
	var out []task.TypeCounts
	for _, t := range task.Types {
		if c, ok := sum[t]; ok {
			out = append(out, task.TypeCounts{Tenant: m.tenant, Type: t, Counts: c})
		}
	}
	return out
}

// forget counts a finished task as no longer kept.
func (m *model) forget(t task.Type, s task.State) {
	c := m.count(t)
	map[task.State]func(){
		task.Completed: func() { c.PurgedCompleted++ }, task.Cancelled: func() { c.PurgedCancelled++ }, task.Failed: func() { c.PurgedFailed++ },
	}[s]()
}

// purge drops what has expired.
func (m *model) purge(now task.Instant) {
	for id, d := range m.done {
		if d.expiresAt <= now {
			m.forget(d.typ, d.state)
			delete(m.done, id)
		}
	}
}

// rows returns the living rows of the model, as they would be stored.
func (m *model) rows() map[kernel.Key]*task.Row {
	out := map[kernel.Key]*task.Row{}
	for _, k := range m.machines {
		out[kernel.RowKey(k.Task)] = k.Task
		for _, r := range k.Runs {
			out[kernel.RowKey(r)] = r
		}
	}
	return out
}

// settle stores the effects of a step on a task's rows.
func (m *model) settle(id task.ID, now task.Instant) {
	k := m.machines[id]
	c := m.count(k.Task.Type)
	c.Dead, c.Died = c.Dead+int64(len(k.Dead)), c.Died+int64(len(k.Dead))
	k.Dead, k.Skipped = nil, nil
	if k.Task.Change == task.Removed {
		delete(m.machines, id)
		if k.Task.Retention > 0 {
			m.done[id] = doneTask{k.Task.Type, k.Task.State, now.Add(k.Task.Retention)}
		} else {
			m.forget(k.Task.Type, k.Task.State)
		}
		return
	}
	k.Task.Change = task.Kept
	maps.DeleteFunc(k.Runs, func(_ int64, r *task.Row) bool { return r.Change == task.Removed })
	for _, r := range k.Runs {
		r.Change = task.Kept
	}
}

// claim claims due rows and, ahead of the clock, scheduled rows. Rows that SQL decides
// come first, as in a claim of the store.
func (m *model) claim(now task.Instant, ahead time.Duration) []task.Publication {
	var plain, undecided []kernel.Key
	for k, r := range m.rows() {
		switch {
		case r.DueAt > now && (r.State != task.Scheduled || r.ScheduledAt <= now || r.DueAt > now.Add(ahead)):
		case needsMachine(r, now):
			undecided = append(undecided, k)
		default:
			plain = append(plain, k)
		}
	}
	var out []task.Publication
	for _, keys := range [][]kernel.Key{plain, undecided} {
		slices.SortFunc(keys, kernel.CompareKeys)
		for _, k := range keys {
			machine := m.machines[k.ID]
			if machine == nil || machine.Task.Change == task.Removed || (k.Run != 0 && machine.Runs[k.Run].Change == task.Removed) {
				continue
			}
			if k.Run == 0 && machine.Task.DueAt > now && machine.Task.Overlapped() {
				continue // the run may be closed before the instant comes
			}
			if p := machine.Due(k.Run, max(now, m.rows()[k].DueAt)); p != nil {
				p.ClaimedAt = max(now, p.ScheduledAt)
				out = append(out, *p)
			}
		}
		for _, id := range slices.Collect(maps.Keys(m.machines)) {
			m.settle(id, now)
		}
	}
	return out
}

// needsMachine is the rule of the fragment needs_model.
func needsMachine(r *task.Row, now task.Instant) bool {
	if r.State == task.Scheduled {
		return r.Modeled() || r.Type == task.NonBlocking && r.OpenRuns != 0 && needsBits(r, max(now, r.DueAt))
	}
	heard := r.FirstClaimAt
	if r.HeardAt != 0 {
		heard = r.HeardAt
	}
	return (r.Type == task.NonBlocking && r.Run == 0) || (r.Out && now.Sub(heard) >= r.GiveUpAfter)
}

// needsBits is the part of the rule about open runs without a row.
func needsBits(r *task.Row, at task.Instant) bool {
	step := task.Instant(r.Interval.Milliseconds())
	if r.OpenRuns>>63 == 1 || r.ScheduledAt-r.Anchor != step || at.Sub(r.ScheduledAt) > min(r.AckTimeout/16, 10*time.Second).Truncate(time.Millisecond) {
		return true
	}
	for i := task.Instant(0); i < 63; i++ {
		if r.OpenRuns&(1<<i) != 0 && max(r.Anchor-i*step, r.FirstClaimAt).Add(r.AckTimeout) < at {
			return true
		}
	}
	if r.MaxCount > 0 && r.Seq+1 >= r.MaxCount {
		return true
	}
	return r.ScheduledAt+step >= r.End // the claim is on time, so that the next instant follows at once
}

// say applies a call of a listener to the model.
func (m *model) say(a task.Attempt, now task.Instant, f func(*task.Machine) task.Reply) task.Reply {
	k := m.machines[a.Task]
	if k == nil {
		if _, ok := m.done[a.Task]; ok {
			return task.Reply{Code: task.Finished}
		}
		return task.Reply{Code: task.Unknown}
	}
	r := f(k)
	m.settle(a.Task, now)
	return r
}

// sideBySide is one random history of the store and the model.
type sideBySide struct {
	*bundle
	rt    *rapid.T
	m     *model
	ids   []task.ID
	seen  []task.Attempt // deliveries so far
	fired map[task.RunID]task.Instant
}

func TestStoreAndStateMachineAgreeOnRandomHistories(t *testing.T) {
	b := setup(t)
	rapid.Check(t, func(rt *rapid.T) {
		b.empty()
		b.setClock(1_000_000_000_000)
		h := &sideBySide{bundle: b, rt: rt, fired: map[task.RunID]task.Instant{}, m: newModel(b.tenant)}
		for range rapid.IntRange(1, 3).Draw(rt, "tasks") {
			h.addTask()
		}
		if len(h.ids) == 0 {
			rt.Skip("all were refused")
		}
		rt.Repeat(map[string]func(*rapid.T){
			"advance":   func(*rapid.T) { h.advanceClock() },
			"claim":     func(*rapid.T) { h.claimBoth() },
			"claim2":    func(*rapid.T) { h.advanceClock(); h.claimBoth() },
			"punctual":  func(*rapid.T) { h.claimPunctually() },
			"report":    func(*rapid.T) { h.reportBoth() },
			"reports":   func(*rapid.T) { h.reportMany() },
			"start":     func(*rapid.T) { h.startBoth() },
			"heartbeat": func(*rapid.T) { h.beatBoth("heartbeat", (*task.Machine).Heartbeat, h.bundle.heartbeat) },
			"handback":  func(*rapid.T) { h.beatBoth("hand back", (*task.Machine).HandBack, h.bundle.handBack) },
			"edit":      func(*rapid.T) { h.editBoth() },
			"pack":      func(*rapid.T) { h.pack() },
			"unpack":    func(*rapid.T) { h.unpackOne() },
			"purge":     func(*rapid.T) { h.purgeBoth() },
			"fold":      func(*rapid.T) { h.fold() },
			"":          func(*rapid.T) { h.compare() },
		})
		h.recount()
		h.listAll()
	})
}

func (h *sideBySide) addTask() {
	typ := rapid.SampledFrom(task.Types).Draw(h.rt, "type")
	spec := h.spec(typ, func(s *task.Spec) {
		s.Begin = h.now.Add(time.Duration(rapid.IntRange(-5, 5).Draw(h.rt, "begin")) * time.Second)
		s.AckTimeout = time.Duration(rapid.IntRange(1, 9).Draw(h.rt, "ack")) * time.Second
		s.GiveUpAfter = s.AckTimeout * time.Duration(rapid.IntRange(1, 6).Draw(h.rt, "give up"))
		s.Retry = task.RetryPolicy{MaxAttempts: int32(rapid.IntRange(1, 3).Draw(h.rt, "max attempts")), InitialBackoff: time.Second, Multiplier: 1.5, Jitter: 0}
		s.StopOnFailure = rapid.Bool().Draw(h.rt, "stop on failure")
		s.Retention = rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(h.rt, "retention")
		h.drawTiming(s)
		if typ == task.OneShot {
			return
		}
		s.MaxCount = rapid.SampledFrom([]int64{0, 1, 2, 3, 5, 80}).Draw(h.rt, "max count")
		if rapid.Bool().Draw(h.rt, "bounded") {
			s.End = h.now.Add(time.Duration(rapid.IntRange(6, 300).Draw(h.rt, "end")) * time.Second)
		}
	})
	id, ok := h.addOrRefuse(spec)
	if !ok {
		return
	}
	spec.ResolveBegin(h.now)
	if spec.Cron != nil {
		var err error
		if spec.Calendar, err = h.machines.CalendarOf(*spec.Cron, id, spec.Spread); err != nil {
			h.rt.Fatal(err)
		}
	}
	row := task.NewRow(h.tenant, id, &spec, h.now)
	row.Change = task.Kept
	h.m.machines[id] = &task.Machine{Task: row, Runs: map[int64]*task.Row{}}
	h.m.count(typ).Added++
	h.ids = append(h.ids, id)
}

// overlaps are the overlap policies of drawn tasks.
var overlaps = []task.Overlap{0, 0, task.OverlapSkip, task.OverlapBufferOne}

// drawTiming draws when the task's instants are, and what happens to missed ones.
func (h *sideBySide) drawTiming(s *task.Spec) {
	s.Tags = rapid.SampledFrom([][]string{nil, nil, {"a"}, {"a", "b"}}).Draw(h.rt, "tags")
	if s.Type != task.OneShot {
		s.Interval = time.Duration(rapid.IntRange(1, 7).Draw(h.rt, "interval")) * time.Second
	}
	if rapid.IntRange(0, 2).Draw(h.rt, "by cron") == 0 {
		s.Interval = 0
		s.Cron = &task.Cron{Dialect: task.StandardCron, Zone: "UTC", Expression: rapid.SampledFrom([]string{"* * * * * *", "*/5 * * * * *", "0/7,3 * * * * *", "* * * * *", "H H * * * *", "17 3 * * *", "0 0 1 1 *"}).Draw(h.rt, "expression")}
	}
	s.Spread = rapid.SampledFrom([]time.Duration{0, 0, 900 * time.Millisecond}).Draw(h.rt, "spread")
	switch s.Misfire = rapid.SampledFrom([]task.Misfire{0, task.FireAll, task.Skip}).Draw(h.rt, "misfire"); s.Misfire {
	case task.FireAll:
		s.CatchUp = int32(rapid.SampledFrom([]int{1, 3, 1000}).Draw(h.rt, "catch up"))
	case task.Skip:
		s.Grace = rapid.SampledFrom([]time.Duration{0, 800 * time.Millisecond, 5 * time.Second, time.Hour}).Draw(h.rt, "grace")
	}
	if s.Type == task.NonBlocking && s.Misfire != task.FireAll {
		s.Overlap = rapid.SampledFrom(overlaps).Draw(h.rt, "overlap")
	}
}

// addOrRefuse adds a task that the store may refuse because it would never fire.
func (h *sideBySide) addOrRefuse(spec task.Spec) (task.ID, bool) {
	item := h.tryAdd(spec)[0]
	return item.ID, len(item.Faults) == 0
}

func (h *sideBySide) advanceClock() {
	ms := rapid.SampledFrom([]int{1, 500, 1000, 1500, 3000, 7000, 30_000, 4_000_000}).Draw(h.rt, "ms")
	h.promote(h.now.Add(time.Duration(ms) * time.Millisecond))
	h.advance(time.Duration(ms) * time.Millisecond)
}

// claimPunctually claims some rows when they are due, or a moment later, as dispatchers do.
func (h *sideBySide) claimPunctually() {
	for range rapid.IntRange(1, 4).Draw(h.rt, "claims") {
		due := h.now.Add(time.Hour)
		for _, r := range h.m.rows() {
			if r.DueAt > h.now {
				due = min(due, r.DueAt)
			}
		}
		due = due.Add(time.Duration(rapid.SampledFrom([]int{0, 0, 30, 200}).Draw(h.rt, "late")) * time.Millisecond)
		h.promote(due)
		h.setClock(due)
		h.claimBoth()
	}
}

func (h *sideBySide) claimBoth() {
	form := rapid.SampledFrom([]task.ClaimForm{task.RangeForm, task.CappedForm}).Draw(h.rt, "form")
	ahead := rapid.SampledFrom([]time.Duration{0, 0, 0, time.Millisecond, 700 * time.Millisecond, 4 * time.Second, 20 * time.Second}).Draw(h.rt, "ahead")
	h.promote(h.now.Add(ahead))
	got, want := h.claimAhead(form, ahead), h.m.claim(h.now, ahead)
	order := func(a, b task.Publication) bool {
		return fmt.Sprint(a.RunID(), a.Attempt) < fmt.Sprint(b.RunID(), b.Attempt)
	}
	if diff := cmp.Diff(want, got.Publications, cmpopts.SortSlices(order), cmpopts.EquateEmpty()); diff != "" {
		h.rt.Fatalf("claim at %s, %s ahead: want -, got +\n%s", h.now, ahead, diff)
	}
	for _, p := range want {
		h.seen = append(h.seen, attempt(p.Task, p.Seq, p.Attempt))
		h.checkPublication(p, ahead)
	}
}

// checkPublication asserts what holds for every delivery.
func (h *sideBySide) checkPublication(p task.Publication, ahead time.Duration) {
	at, again := h.fired[p.RunID()]
	// A run that was claimed ahead may be handed back at once, here where nobody
	// holds its record until it is due.
	if !again && p.ScheduledAt > h.now.Add(ahead) {
		h.rt.Fatalf("run %s was claimed before its time", p.RunID())
	}
	if again && at != p.ScheduledAt {
		h.rt.Fatalf("run %s was scheduled at %s, then at %s", p.RunID(), at, p.ScheduledAt)
	}
	h.fired[p.RunID()] = p.ScheduledAt
}

// drawAttempt names a delivery that was made, or one near it.
func (h *sideBySide) drawAttempt() task.Attempt {
	a := attempt(rapid.SampledFrom(h.ids).Draw(h.rt, "task"), 1, 1)
	if len(h.seen) > 0 && rapid.IntRange(0, 9).Draw(h.rt, "guess") > 0 {
		recent := h.seen[max(0, len(h.seen)-12):]
		a = rapid.SampledFrom(recent).Draw(h.rt, "attempt")
	}
	switch rapid.IntRange(0, 19).Draw(h.rt, "skew") {
	case 0:
		a.Attempt++
	case 1:
		a.Seq++
	}
	return a
}

func (h *sideBySide) drawResult() task.Report {
	r := task.Report{Attempt: h.drawAttempt(), Holder: h.drawHolder(), Result: task.Result{Outcome: task.Success, Next: task.Never}}
	switch rapid.IntRange(0, 11).Draw(h.rt, "result") {
	case 0, 1, 2:
		r.Outcome, r.Error = task.Fail, "no"
	case 3:
		r.Stop = true
	case 4:
		r.Next = h.now.Add(time.Duration(rapid.IntRange(-20, 200).Draw(h.rt, "next")) * time.Second)
	case 6:
		r.Outcome, r.After = task.Snooze, time.Duration(rapid.SampledFrom([]int{1, 1000, 5000, 60_000}).Draw(h.rt, "snooze"))*time.Millisecond
	case 7:
		r.Outcome, r.Error, r.Permanent = task.Fail, "never", rapid.Bool().Draw(h.rt, "permanent")
		r.After = time.Duration(rapid.IntRange(0, 3).Draw(h.rt, "after")) * time.Second
	case 5:
		r.Patch = &task.ParamsPatch{Set: map[string]string{"k": fmt.Sprint(h.now)}}
	}
	return r
}

func (h *sideBySide) drawHolder() task.Holder {
	return task.Holder(rapid.IntRange(1, 2).Draw(h.rt, "holder"))
}

func (h *sideBySide) reportBoth() { h.reportThese([]task.Report{h.drawResult()}) }

// reportMany reports several results in one group, none twice for one task: the
// order in which a group takes the results of one task is not defined.
func (h *sideBySide) reportMany() {
	var rs []task.Report
	seen := map[task.ID]bool{}
	for range 4 {
		if r := h.drawResult(); !seen[r.Task] {
			seen[r.Task] = true
			rs = append(rs, r)
		}
	}
	h.reportThese(rs)
}

func (h *sideBySide) reportThese(rs []task.Report) {
	got := h.report(rs...)
	for i, r := range rs {
		want := h.m.say(r.Attempt, h.now, func(k *task.Machine) task.Reply { return k.Report(r, h.now, 0, mergeParams(1<<14)) })
		if got[i] != want.Code {
			h.rt.Fatalf("report %+v: got %s, want %s", r, got[i], want.Code)
		}
	}
}

func (h *sideBySide) startBoth() {
	a, holder := h.drawAttempt(), h.drawHolder()
	got := h.start(holder, a)[0]
	want := h.m.say(a, h.now, func(k *task.Machine) task.Reply { return k.Start(a, holder, h.now) })
	if diff := cmp.Diff(want, got); diff != "" {
		h.rt.Fatalf("start %+v by %d: want -, got +\n%s", a, holder, diff)
	}
}

func (h *sideBySide) beatBoth(name string, step func(*task.Machine, task.Attempt, task.Holder, task.Instant) task.Reply, do func(task.Holder, ...task.Attempt) []task.Reply) {
	a, holder := h.drawAttempt(), h.drawHolder()
	got := do(holder, a)[0]
	want := h.m.say(a, h.now, func(k *task.Machine) task.Reply { return step(k, a, holder, h.now) })
	if diff := cmp.Diff(want, got); diff != "" {
		h.rt.Fatalf("%s %+v by %d: want -, got +\n%s", name, a, holder, diff)
	}
}

func (h *sideBySide) editBoth() {
	id := rapid.SampledFrom(h.ids).Draw(h.rt, "task")
	k := h.m.machines[id]
	if k == nil {
		return
	}
	var err error
	switch rapid.IntRange(0, 19).Draw(h.rt, "edit") {
	case 10, 11, 12, 13, 14, 15:
		h.updateBoth(k)
		return
	case 16, 17, 18, 19:
		h.triggerBoth(k)
		return
	case 0:
		_, err = h.Cancel(context.Background(), h.tenant, id)
		k.Cancel()
	case 1, 2, 3, 4:
		_, err = h.Pause(context.Background(), h.tenant, id)
		k.Pause(h.now)
	default:
		_, err = h.Resume(context.Background(), h.tenant, id)
		k.Resume(h.now)
	}
	if err != nil {
		h.rt.Fatal(err)
	}
	h.m.settle(id, h.now)
}

// updateBoth gives a task random terms.
func (h *sideBySide) updateBoth(k *task.Machine) {
	s := k.Task.Spec()
	e := task.Edit{Spec: &s, Params: rapid.Bool().Draw(h.rt, "edit params")}
	if e.Params {
		s.ParamsWire = mergedParams(h.rt, map[string]string{"edited": fmt.Sprint(h.now)})
	}
	sec := func(name string, low, high int) time.Duration {
		return time.Duration(rapid.IntRange(low, high).Draw(h.rt, name)) * time.Second
	}
	for range rapid.IntRange(0, 3).Draw(h.rt, "changes") {
		switch rapid.IntRange(0, 8).Draw(h.rt, "change") {
		case 0:
			if s.Type != task.OneShot {
				s.Interval = sec("new interval", 1, 9)
			}
		case 1:
			s.Begin = h.now.Add(sec("new begin", -5, 9))
		case 2:
			s.End = h.now.Add(sec("new end", -5, 300))
		case 3:
			if s.Type != task.OneShot {
				s.MaxCount = rapid.SampledFrom([]int64{0, 1, 2, 3, 5, 80}).Draw(h.rt, "new max count")
			}
		case 4:
			s.AckTimeout = sec("new ack", 1, 9)
			s.GiveUpAfter = s.AckTimeout * 3
		case 5:
			s.Kind = rapid.SampledFrom([]string{"k", "other"}).Draw(h.rt, "new kind")
		case 6:
			s.Retry.MaxAttempts = int32(rapid.IntRange(1, 4).Draw(h.rt, "new max attempts"))
			s.Retention = rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(h.rt, "new retention")
		case 7:
			s.Tags = rapid.SampledFrom([][]string{nil, {"edited"}}).Draw(h.rt, "new tags")
		case 8:
			s.Overlap = rapid.SampledFrom(overlaps).Draw(h.rt, "new overlap")
		}
	}
	if len(s.Validate(task.Limits{MinInterval: time.Millisecond, MinAckTimeout: time.Millisecond, ParamsBytes: 1 << 14})) > 0 {
		return
	}
	id := k.Task.ID
	_, err := h.Update(context.Background(), h.tenant, id, e)
	h.sameAnswer("update", err, k.Edit(&e, h.now))
	k.Edited, k.EditedParams = false, false
	h.m.settle(id, h.now)
}

// triggerBoth opens a run now.
func (h *sideBySide) triggerBoth(k *task.Machine) {
	id := k.Task.ID
	got, _, err := h.Trigger(context.Background(), h.tenant, id, "")
	want, wantErr := k.Trigger(h.now)
	h.sameAnswer("trigger", err, wantErr)
	if err == nil && got != want {
		h.rt.Fatalf("trigger of %s opened run %d, want %d", id, got, want)
	}
	h.m.settle(id, h.now)
}

func (h *sideBySide) sameAnswer(op string, got, want error) {
	if (got == nil) != (want == nil) || (got != nil && task.CodeOf(got) != task.CodeOf(want)) {
		h.rt.Fatalf("%s at %s: got %v, want %v", op, h.now, got, want)
	}
}

func mergedParams(rt *rapid.T, set map[string]string) []byte {
	wire, err := mergeParams(1<<14)(nil, &task.ParamsPatch{Set: set})
	if err != nil {
		rt.Fatal(err)
	}
	return wire
}

func (h *sideBySide) purgeBoth() {
	var n int
	if err := sql.DonePurge.QueryRow(context.Background(), h.db.Pool(h.d), 100).Scan(&n); err != nil {
		h.rt.Fatal(err)
	}
	h.m.purge(h.now)
}

func (h *sideBySide) fold() {
	if _, _, err := h.FoldCounters(context.Background(), h.d); err != nil {
		h.rt.Fatal(err)
	}
}

// compare compares the stored rows with those of the model.
func (h *sideBySide) compare() {
	if diff := cmp.Diff(h.m.rows(), h.everywhere(), cmp.AllowUnexported(kernel.Key{}), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(task.Row{}, "Change", "Calendar")); diff != "" {
		h.rt.Fatalf("rows at %s: want -, got +\n%s", h.now, diff)
	}
	for id, k := range h.m.machines {
		if got, err := h.Get(context.Background(), h.tenant, id); err != nil || !cmp.Equal(*k.Task, got.Row, cmpopts.IgnoreFields(task.Row{}, "Change", "Calendar")) {
			h.rt.Fatalf("living task %s: got %+v, %v", id, got, err)
		}
	}
	for id, d := range h.m.done {
		got, err := h.Get(context.Background(), h.tenant, id)
		if h.now < d.expiresAt && (err != nil || got.State != d.state) {
			h.rt.Fatalf("finished task %s: got %+v, %v; want %s", id, got, err, d.state)
		}
	}
	got, err := counters.Read(context.Background(), h.db.Pool(h.d), h.tenant)
	if diff := cmp.Diff(h.m.census(), got); err != nil || diff != "" {
		h.rt.Fatalf("counters at %s: want -, got +; %v\n%s", h.now, err, diff)
	}
}

// recount compares the counters with the stored rows.
func (h *sideBySide) recount() {
	if found, err := h.Recount(context.Background(), h.d, 0, false); err != nil || len(found) > 0 {
		h.rt.Fatalf("counters differ from the rows: %+v, %v", found, err)
	}
}
