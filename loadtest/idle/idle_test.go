package idle

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
)

func TestTheListenerIsNoPartOfTheInstallation(t *testing.T) {
	var r Report
	r.add(harness.Usage{CPU: map[string]time.Duration{own: time.Second, "taskd-1": 30 * time.Millisecond, "kafka": 20 * time.Millisecond}, Took: 10 * time.Second, WAL: 5000},
		harness.NewMeter(nil, nil))
	if r.CorePercent != 0.5 || r.CorePercentBy[own] != 10 || r.CorePercentBy["taskd-1"] != 0.3 || r.WALBytesPS != 500 {
		t.Errorf("wrong report: %+v", r)
	}
}

func TestStatementsOfTheMeasuredTimeAreCounted(t *testing.T) {
	before := counts{commits: 100, statements: map[string]executions{"peek": {50, 10}, "past": {9, 9}}}
	after := counts{commits: 300, sessions: 7, statements: map[string]executions{"peek": {150, 60}, "past": {9, 9}, "new": {200, 2}}}
	var r Report
	r.count(before, after, 10*time.Second)
	if r.CommitsPerS != 20 || r.Sessions != 7 || len(r.Statements) != 2 {
		t.Fatalf("wrong report: %+v", r)
	}
	if r.Statements[0] != (Statement{"new", 20, 10}) || r.Statements[1] != (Statement{"peek", 10, 500}) {
		t.Errorf("wrong statements: %+v", r.Statements)
	}
}

func TestAStatementIsShownOnOneLine(t *testing.T) {
	if got := firstWords("SELECT 1\n\t  FROM task"); got != "SELECT 1 FROM task" {
		t.Errorf("firstWords = %q", got)
	}
}
