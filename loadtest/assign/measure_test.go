package assign

import (
	"testing"
	"time"
)

func TestTakeOverHandOverSettlingAndAnOutageAreMeasured(t *testing.T) {
	for _, where := range []string{InZooKeeper, InPostgres} {
		t.Run(where, func(t *testing.T) { measure(t, where) })
	}
}

func measure(t *testing.T, where string) {
	p := Plan{Rounds: 1, SettleItems: 64, SettleMembers: 5, SettleRounds: 1, Outage: 3 * time.Second}
	o := options(t)
	o.Assignment = where
	m, violations, err := Measure(t.Context(), o, p)
	if err != nil || len(violations) > 0 {
		t.Fatalf("Measure: err = %v, violations = %v, want none", err, violations)
	}
	t.Logf("%+v", m)
	if len(m.Takeovers) != 1 || m.Takeovers[0] <= 0 || len(m.Handovers) != 1 || m.Handovers[0] <= 0 || len(m.Settles) != 1 || m.Settles[0] <= 0 {
		t.Errorf("measurements = %+v, want one positive takeover, handover and settling time", m)
	}
	if m.Joins[0] > 11 { // 64 items over 6 members
		t.Errorf("one more member moved %d items, want at most 11", m.Joins[0])
	}
	if m.OutageMoved != 0 {
		t.Errorf("an outage of ZooKeeper moved %d items, want none", m.OutageMoved)
	}
	r := &Report{Measured: m}
	r.sum(p)
	if r.AllowedOnJoin != 11 || r.Violations != 0 || r.SettleMS <= 0 {
		t.Errorf("report = %+v, want 11 allowed moves, no violation and a time to settle", r)
	}
}
