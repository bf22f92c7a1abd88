package outbox

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
)

func TestEachWayToBreakTheContractIsFound(t *testing.T) {
	good := life{Key: "k", V: 3, Triggers: 2}
	info := func(v string, runs int64, state client.State) *client.TaskInfo {
		return &client.TaskInfo{Task: client.Task{Params: map[string]string{"v": v}}, RunCount: runs, State: state}
	}
	for name, c := range map[string]struct {
		life life
		info *client.TaskInfo
		kind string
	}{
		"as it was left":      {good, info("3", 2, client.Scheduled), ""},
		"an older change":     {good, info("2", 2, client.Scheduled), "order"},
		"a trigger too many":  {good, info("3", 3, client.Scheduled), "triggers"},
		"a trigger too few":   {good, info("3", 1, client.Scheduled), "triggers"},
		"cancelled":           {good, info("3", 2, client.Cancelled), "state"},
		"not cancelled":       {life{Key: "k", V: 3, Triggers: 2, Ended: true}, info("3", 2, client.Scheduled), "state"},
		"cancelled as wanted": {life{Key: "k", V: 3, Triggers: 2, Ended: true}, info("3", 2, client.Cancelled), ""},
	} {
		rep := &Report{Violations: map[string]int64{}}
		rep.compare(c.life, c.info)
		if c.kind == "" && rep.broken() > 0 || c.kind != "" && (rep.broken() != 1 || rep.Violations[c.kind] != 1) {
			t.Errorf("%s: %v, want %q", name, rep.Violations, c.kind)
		}
		if (rep.Verdict() != nil) != (c.kind != "") {
			t.Errorf("%s: the verdict is %v", name, rep.Verdict())
		}
	}
}

func TestTheLagIsFromTheCommitToTheStorage(t *testing.T) {
	o, at := newObserved(), time.Now()
	o.committed([]int64{1, 2}, at)
	for n, later := range map[string]time.Duration{"1": 40 * time.Millisecond, "2": 10 * time.Millisecond, "3": time.Hour} {
		run := &client.Run{TaskID: 7, ScheduledAt: at.Add(later), Params: map[string]string{"n": n}}
		if err := o.handle(t.Context(), run); err != nil {
			t.Fatal(err)
		}
	}
	if lags := o.lags(); len(lags) != 2 || lags[0] != 10*time.Millisecond || lags[1] != 40*time.Millisecond {
		t.Errorf("lags %v; 3 was not committed here", lags)
	}
}
