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
