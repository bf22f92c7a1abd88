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
	// idle or not, it is so since at. The meter was last read at from, and until at the listener was idle
	// for sum since then.
	at, from, sum time.Duration
}

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

// read returns the idle part of the time since the last reading, in percent.
func (m *idleMeter) read(now time.Duration) int32 {
	m.pass(now)
	percent := int32(0)
	switch took := now - m.from; {
	case took > 0:
		percent = int32(100 * m.sum / took)
	case m.idle:
		percent = 100
	}
	m.from, m.sum = now, 0
	return percent
}
