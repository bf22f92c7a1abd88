package operate

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/task"
)

const begin = task.Instant(1_800_000_000_000)

// made returns n generated tasks of the default mix, with ids.
func made(t *testing.T, round, n int) (mix, []task.Row) {
	t.Helper()
	o := DefaultOptions()
	o.Seed = 7
	m := newMix(&o, tenants{large: 3, medium: 4, small: 5}, begin)
	maker, err := m.maker(round)
	if err != nil {
		t.Fatal(err)
	}
	rows := maker.Chunk(1, n, begin)
	for i := range rows {
		rows[i].ID = task.NewID(int64(i+1), 5)
	}
	return m, rows
}

func TestTasksOfTheMixHaveTheirShares(t *testing.T) {
	const n = 100_000
	m, rows := made(t, 0, n)
	counts := map[string]int{}
	for i := range rows {
		r := &rows[i]
		switch {
		case m.near.holds(r.DueAt):
			counts["near"]++
		case !m.far.holds(r.DueAt):
			t.Fatalf("task %d is due at %s, want it in the near range %v or the far range %v", i, r.DueAt, m.near, m.far)
		}
		switch r.Tenant {
		case m.large:
			counts["large "+r.Kind]++
		case m.small:
			counts["small"]++
		case m.medium:
			counts["medium"]++
		}
		if slices.Contains(r.Tags, rareTag) {
			counts["rare"]++
		}
		if slices.Contains(r.Tags, commonTag) {
			counts["common"]++
		}
		if r.DueAt != r.ScheduledAt || r.Begin != r.DueAt || r.Retention == 0 {
			t.Fatalf("task %d = %+v, want equal instants and a retention", i, r)
		}
	}
	want := map[string]float64{"near": 0.1, "small": smallShare, "medium": mediumShare, "rare": 0.01, "common": 0.1}
	for _, kind := range kindNames {
		want["large "+kind] = 0.1
	}
	for name, share := range want {
		if got := float64(counts[name]) / n; math.Abs(got-share) > share/5 {
			t.Errorf("share of %s tasks = %.4f, want %.4f", name, got, share)
		}
	}
	if _, again := made(t, 1, n); again[0].DueAt == rows[0].DueAt && again[1].DueAt == rows[1].DueAt {
		t.Error("two rounds generate the same tasks")
	}
}

// bookOf returns the book of rows that are read back.
func bookOf(rows []task.Row) *book {
	b := &book{large: 3, steady: 9}
	var p page
	for i := range rows {
		b.count(&p, &rows[i])
	}
	b.add(&p)
	return b
}

func TestABookSeesEveryChangeInItsGroup(t *testing.T) {
	_, rows := made(t, 0, 5000)
	var b books
	b.large = 3
	b.record(rows)
	if faults := compare(&b.groups, &bookOf(rows).groups); len(faults) > 0 {
		t.Fatalf("faults without a change = %v, want none", faults)
	}
	rows = append(rows, task.Row{Tenant: 2, Terms: task.Terms{Kind: kindNames[kindPlain]}, State: task.Running}) // of a tenant that existed before
	if faults := compare(&b.groups, &bookOf(rows).groups); len(faults) > 0 {
		t.Fatalf("faults after a task of another tenant = %v, want none", faults)
	}
	of := func(tenant int32, kind int) *task.Row {
		i := slices.IndexFunc(rows, func(r task.Row) bool { return r.Tenant == tenant && r.Kind == kindNames[kind] })
		return &rows[i]
	}
	for name, change := range map[string]func(*task.Row){
		"paused":    func(r *task.Row) { r.Paused, r.DueAt = true, task.Never },
		"due later": func(r *task.Row) { r.DueAt++ },
		"moved":     func(r *task.Row) { r.ScheduledAt++; r.DueAt++ },
		"running":   func(r *task.Row) { r.State = task.Running },
		"params":    func(r *task.Row) { r.Params = append(slices.Clone(r.Params), 1) },
		"tags":      func(r *task.Row) { r.Tags = []string{"other"} },
		"interval":  func(r *task.Row) { r.Interval++ },
		"gone":      func(r *task.Row) { r.Tenant = 9 },
	} {
		for _, where := range []struct {
			row  *task.Row
			name string
		}{{of(3, kindPlain), kindNames[kindPlain]}, {of(4, kindPause), "all other tasks"}} {
			before := *where.row
			change(where.row)
			if faults := compare(&b.groups, &bookOf(rows).groups); len(faults) != 1 || !strings.HasPrefix(faults[0], where.name+":") {
				t.Errorf("change %q in %s: faults = %v, want one of this group", name, where.name, faults)
			}
			*where.row = before
		}
	}
}

func TestARescheduledKindIsExpectedAtItsNewInstants(t *testing.T) {
	_, rows := made(t, 0, 5000)
	var b books
	b.large = 3
	b.record(rows[:2000])
	b.record(rows[2000:])
	for i := range rows {
		if r := &rows[i]; b.groupOf(r) == kindMove {
			r.ScheduledAt, r.DueAt = r.ScheduledAt.Add(shift), r.DueAt.Add(shift)
		}
	}
	if faults := compare(&b.groups, &bookOf(rows).groups); len(faults) != 1 {
		t.Errorf("faults before the change of the books = %v, want one", faults)
	}
	b.change(kindMove, func(e *entry) { *e = b.moved })
	if faults := compare(&b.groups, &bookOf(rows).groups); len(faults) > 0 {
		t.Errorf("faults after the change of the books = %v, want none", faults)
	}
}

func TestTasksThatAListMustReturnAreCountedByItsFilter(t *testing.T) {
	m, rows := made(t, 0, 50_000)
	all := completes(&m)
	for _, c := range all {
		for i := range rows {
			c.want.count(&rows[i])
		}
		if n := c.want.n.Load(); n == 0 || n == int64(len(rows)) {
			t.Errorf("list %s wants %d of %d tasks, want some but not all", c.name, n, len(rows))
		}
	}
	if whole, kind := all[0].want.n.Load(), all[1].want.n.Load(); kind >= whole/2 {
		t.Errorf("list of one of five kinds wants %d of %d tasks, want fewer than half", kind, whole)
	}
}

func TestARateMayBeExceededOnlyByTwoSecondsAndAStep(t *testing.T) {
	if got := rateBound(1000, 30*time.Second); got < 1100 || got > 1150 {
		t.Errorf("rateBound(1000, 30s) = %.0f, want 1100 to 1150", got)
	}
	if got := rateBound(1000, time.Second); got < 4000 {
		t.Errorf("rateBound(1000, 1s) = %.0f, want at least 4000: two seconds are made up for and two steps are done", got)
	}
}

func TestTheUseOfIdleProgramsIsSubtracted(t *testing.T) {
	used := map[string]time.Duration{"postgres-backends": 5 * time.Second, "taskd-1": time.Second}
	got := net(used, rates{"postgres-backends": 100 * time.Millisecond, "taskd-1": time.Second}, 10*time.Second)
	if got["postgres-backends"] != 4*time.Second || got["taskd-1"] != 0 {
		t.Errorf("got %v", got)
	}
}

func TestTheQuietestLookCounts(t *testing.T) {
	var least rates
	for _, used := range []rates{{"taskd-1": 5, "kafka": 1}, {"taskd-1": 2, "kafka": 3}, {"taskd-1": 4, "kafka": 2}} {
		least = least.atMost(used)
	}
	if least["taskd-1"] != 2 || least["kafka"] != 1 {
		t.Errorf("got %v", least)
	}
}

func TestOptionsThatCannotWorkAreRefusedByFlag(t *testing.T) {
	for flag, change := range map[string]func(o *Options){
		"--tasks":        func(o *Options) { o.Tasks = 10 },
		"--databases":    func(o *Options) { o.Databases = 3 },
		"--near":         func(o *Options) { o.Near = 1 },
		"--days":         func(o *Options) { o.Days = 0 },
		"--quiet":        func(o *Options) { o.Quiet = 20 * 24 * time.Hour },
		"--horizon":      func(o *Options) { o.Horizon = time.Minute },
		"--pages":        func(o *Options) { o.Pages = 0 },
		"--page-size":    func(o *Options) { o.PageSize = 1001 },
		"--throttle":     func(o *Options) { o.Throttle = 0 },
		"--throttle-for": func(o *Options) { o.ThrottleFor = 0 },
		"--rate":         func(o *Options) { o.Rate = 0 },
		"--lists":        func(o *Options) { o.Lists, o.Bulk, o.Console = false, false, false },
	} {
		o := DefaultOptions()
		change(&o)
		if err := harness.Validate(&o); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("invalid %s: err = %v, want one that names the flag", flag, err)
		}
	}
	for _, n := range []int64{10_000, 1e6, 1e7, 1e8} {
		o := DefaultOptions()
		if o.Tasks = n; harness.Validate(&o) != nil {
			t.Errorf("Validate(defaults with %d tasks) = %v", n, harness.Validate(&o))
		}
	}
}

func TestFaultsAndRatiosStandInTheTable(t *testing.T) {
	rep := &Report{
		Tasks: 1000, Faults: []string{"something was lost"}, Findings: harness.Findings{Violations: map[check.Kind]int64{check.Lost: 3}},
		Sizes: []*Size{
			{Tasks: 100, Lists: []ListFigures{{Name: "all", PostgresUs: 500}}},
			{Tasks: 1000, Lists: []ListFigures{{Name: "all", PostgresUs: 1250}}, Refused: []Refusal{{Name: "kind", Hint: "give due_from"}}},
		},
		Bulk: []*BulkFigures{{Name: "pause", Matched: 77, ActsMs: 12, CPU: harness.CPU{UsPerCycle: map[string]float64{"total": 31.5}}}},
	}
	var text bytes.Buffer
	if err := harness.WriteTable(&text, rep); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"something was lost", "lost 3", "2.50", "give due_from", "31.5", "takes effect after 12 ms"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, text.String())
		}
	}
}
