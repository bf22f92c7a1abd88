package kernel

import (
	"testing"
	"time"
)

func TestAMeterTellsOfTheLastFullWindow(t *testing.T) {
	var m meter
	begun := time.Unix(1000, 0)
	at := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	m.add(at(0), 3, time.Second)
	m.add(at(900), 1, 2*time.Second)
	if c := m.read(at(999)); c != (count{}) {
		t.Errorf("within the first window: %v, want nothing", c)
	}
	m.add(at(1000), 7, time.Second)
	for _, ms := range []int{1000, 1999} {
		if c := m.read(at(ms)); c != (count{4, 5 * time.Second}) {
			t.Errorf("after %d ms: %v, want 4 entries that waited 5 s together", ms, c)
		}
	}
	if c := m.read(at(2000)); c != (count{7, 7 * time.Second}) {
		t.Errorf("after the second window: %v, want 7 entries", c)
	}
	if c := m.read(at(9000)); c != (count{}) {
		t.Errorf("after a pause: %v, want nothing", c)
	}
}
