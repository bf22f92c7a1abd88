package client

import "time"

// An idleMeter measures in which part of the time the listener could have executed another run: a
// worker was free, and no run waited for the limit of its kind. The service wants to know it, because
// runs that wait although handlers are idle wait for the service. The zero value is one of a listener
// that was never idle. It is not safe for concurrent use.
//
// Instants are those of [engine.since].
type idleMeter struct {
	idle bool
	// idle or not, it is so since at. The current reading began at from, and until at the listener was idle for sum of its time.
	at, from, sum time.Duration
	last          int32 // the last reading
}

// leastReading is the shortest time that a reading is about. A busy listener has many calls under way, which would
// read 0 or 100 percent of a moment.
const leastReading = 50 * time.Millisecond

// set records whether the listener is idle from now on.
func (m *idleMeter) set(idle bool, now func() time.Duration) {
	if idle != m.idle {
		m.pass(now())
		m.idle = idle
	}
}

func (m *idleMeter) pass(now time.Duration) {
	if m.idle {
		m.sum += now - m.at
	}
	m.at = now
}

// read returns the idle part of the time, in percent: of the time since the last reading, or of that reading if it
// was a moment ago.
func (m *idleMeter) read(now time.Duration) int32 {
	if took := now - m.from; took >= leastReading {
		m.pass(now)
		m.last = int32(100 * m.sum / took)
		m.from, m.sum = now, 0
	}
	return m.last
}
