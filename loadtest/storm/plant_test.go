package storm

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/task"
)

// begin is an instant long after the origin of histories.
const begin = task.Instant(1_800_000_000_000)

// record writes a history without violations: one task of each type with two runs at most.
func record(t *testing.T, dir string) {
	t.Helper()
	w, err := history.Create(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i, typ := range task.Types {
		add := check.Add{
			Number: int64(i + 1), ID: task.ID((i + 1) * task.Shards), Answer: check.Acknowledged, Type: typ, Begin: begin, End: task.Never,
			Interval: time.Minute, MaxCount: 2, Retained: true, Sent: check.Of(begin) - 2000, Answered: check.Of(begin) - 1000,
		}
		if typ == task.OneShot {
			add.Interval, add.MaxCount = 0, 1
		}
		w.Add(add)
		at := begin
		for seq := range add.MaxCount {
			start := check.Of(at).Add(10 * time.Millisecond)
			end := start.Add(5 * time.Millisecond)
			if typ == task.Blocking {
				w.Reply(check.Reply{ID: add.ID, Seq: seq + 1, Attempt: 1, Call: check.Start, Code: task.Accepted, Answered: start - 1})
			}
			w.Execution(check.Execution{Number: add.Number, ID: add.ID, Seq: seq + 1, Attempt: 1, ScheduledAt: at, Start: start, End: end, Outcome: task.Success})
			w.Reply(check.Reply{ID: add.ID, Seq: seq + 1, Attempt: 1, Call: check.Report, Code: task.Accepted, Answered: end})
			if at = at.Add(time.Minute); typ == task.Blocking {
				at = task.At(end.Add(time.Minute).Time())
			}
		}
		w.Final(check.Final{
			ID: add.ID, Number: add.Number, Type: typ, State: task.Completed, Begin: begin, End: task.Never,
			Interval: add.Interval, MaxCount: add.MaxCount, Runs: add.MaxCount,
		})
	}
}

func TestEachPlantedFaultIsFound(t *testing.T) {
	dir := t.TempDir()
	record(t, dir)
	findings := func(p *planting) map[check.Kind]int64 {
		c := check.New(check.Config{Replies: true, Finals: true, Quiet: check.Of(begin).Add(time.Hour), From: check.Of(begin), To: check.Of(begin).Add(time.Hour)})
		if err := history.Check(dir, p.before(c)); err != nil {
			t.Fatal(err)
		}
		return c.Result().Violations
	}
	for kind, n := range findings(nil) {
		if n > 0 {
			t.Errorf("the history has %d violations of kind %s without a plant", n, kind)
		}
	}
	for name, plant := range plants {
		p := &planting{name: name}
		if found := findings(p); !p.done || found[plant.finds] == 0 {
			t.Errorf("%s: planted %v, violations %v, want one of kind %s", name, p.done, found, plant.finds)
		}
	}
}
