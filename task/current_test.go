package task

import (
	"testing"
	"time"
)

// ScheduledAt of a NON_BLOCKING task after its last claim is an instant that does not fire. A copy that began with it would fire at an
// instant that the task does not have, and the open run would be lost.
func TestTheCurrentInstantIsThatOfTheOpenRunOrTheNextOne(t *testing.T) {
	twice := func(s *Spec) { s.MaxCount = 2 }
	until := func(s *Spec) { s.End = 102 * anHour }
	for name, c := range map[string]struct {
		m    *Machine
		do   func(*Machine)
		want Instant
	}{
		"before the first run":           {hourly(twice), func(*Machine) {}, 100 * anHour},
		"between two runs":               {hourly(twice), func(m *Machine) { m.Due(0, 100*anHour) }, 101 * anHour},
		"the last run of max_count":      {hourly(twice), func(m *Machine) { m.Due(0, 100*anHour); m.Due(0, 101*anHour) }, 101 * anHour},
		"the last run before end_time":   {hourly(until), func(m *Machine) { m.Due(0, 100*anHour); m.Due(0, 101*anHour) }, 101 * anHour},
		"an earlier run alone is open":   {hourly(twice, func(s *Spec) { s.AckTimeout = 24 * time.Hour }), func(m *Machine) { m.Due(0, 100*anHour); m.Due(0, 101*anHour); m.Task.clearBit(0) }, 100 * anHour},
		"the last run has a row":         {hourly(twice), func(m *Machine) { m.Due(0, 100*anHour); m.Due(0, 101*anHour); m.detachFrom(0, 101*anHour) }, 101 * anHour},
		"the last run, which came late":  {hourly(twice), func(m *Machine) { m.Due(0, 100*anHour); m.Due(0, 105*anHour+1) }, 101 * anHour},
		"the only run, triggered before": {hourly(twice), func(m *Machine) { _, _ = m.Trigger(50 * anHour) }, 100 * anHour},
	} {
		c.do(c.m)
		if got := c.m.Task.CurrentInstant(); got != c.want {
			t.Errorf("%s: the current instant of the %s task is %s, want %s", name, c.m.Task.State, got, c.want)
		}
	}
}
