package task

import (
	"encoding/json"
	"testing"
	"time"
)

// TestRunsComeAheadOnlyWhileEveryListenerHoldsThem follows what listeners that do not hold runs may still do: they read for 55 s
// after their last answer, which may be of half a minute after the change, and dispatchers go by what they have known for 10 s.
func TestRunsComeAheadOnlyWhileEveryListenerHoldsThem(t *testing.T) {
	const begun = Instant(1_000_000)
	at := begun.Add
	var r Rates
	change := func(to Ahead) { (&RatesChange{Ahead: &to}).Apply(&r) }
	check := func(when string, now Instant, covers, binds bool) {
		t.Helper()
		if got := r.Ahead.On() || r.Ahead.Ending(now) > 0; r.Ahead.Covers(now) != covers || got != binds {
			t.Errorf("%s: runs come ahead: %t, and listeners must hold them: %t; want %t and %t", when, r.Ahead.Covers(now), got, covers, binds)
		}
	}
	check("never on", begun, false, false)
	change(EndAhead(begun))
	check("off again", begun, false, false)
	change(StartAhead(begun))
	check("just on", begun, false, true)
	check("when the last listener that was not refused may still read", at(90*time.Second), false, true)
	change(EndAhead(at(91 * time.Second)))
	check("off before it has begun, by the clock of a dispatcher or a setting of before", at(91*time.Second), false, true)
	change(StartAhead(at(100 * time.Second)))
	change(StartAhead(at(200 * time.Second))) // changes nothing
	check("later", at(250*time.Second), true, true)
	change(EndAhead(at(260 * time.Second)))
	check("just off", at(260*time.Second), false, true)
	check("while dispatchers may not know it", at(275*time.Second), false, true)
	check("off", at(320*time.Second), false, false)
	change(StartAhead(at(321 * time.Second)))
	check("on again", at(322*time.Second), false, true)
}

func TestATenantWithoutAheadIsStoredAsBefore(t *testing.T) {
	if b, err := json.Marshal(Rates{}); err != nil || string(b) != "{}" {
		t.Errorf("stored as %s, %v, want {}", b, err)
	}
}
