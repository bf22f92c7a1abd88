package dispatch

import (
	"sync"
	"time"
)

// Lateness says how late a dispatcher, or all of them, publish the records of the foreground,
// for those who could give way: see [Hints.Report].
type Lateness struct {
	// Late is the mean lateness of the records of the last latenessWindow in which any were
	// published. It is 0 if the last one was longer ago than latenessHolds: nothing is published,
	// so nobody is in the way.
	Late time.Duration
	// PerSecond is how many records are published per second, of the foreground and of backlogs.
	PerSecond float64
}

const (
	latenessWindow = 250 * time.Millisecond
	latenessHolds  = time.Second
)

// A latenessMeter measures the lateness of published records. Its methods may be called
// concurrently.
type latenessMeter struct {
	mu    sync.Mutex
	began time.Time
	// published counts all records since began. first and late count those of the foreground,
	// and add up their lateness.
	published, first int
	late             time.Duration
	last             Lateness
	lastAt           time.Time
}

// count records that n records were confirmed, of which first are first attempts of the
// foreground that were late by the sum late.
func (m *latenessMeter) count(now time.Time, n, first int, late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.roll(now)
	m.published += n
	m.first += first
	m.late += late
}

// roll ends the window if it is over.
func (m *latenessMeter) roll(now time.Time) {
	took := now.Sub(m.began)
	if took < latenessWindow {
		return
	}
	if took < latenessHolds && m.published > 0 {
		m.last, m.lastAt = Lateness{PerSecond: float64(m.published) / took.Seconds()}, now
		if m.first > 0 {
			m.last.Late = max(m.late/time.Duration(m.first), 0)
		}
	}
	m.began, m.published, m.first, m.late = now, 0, 0, 0
}

// read returns the lateness of the last window.
func (m *latenessMeter) read(now time.Time) Lateness {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.roll(now)
	if m.lastAt.IsZero() || now.Sub(m.lastAt) >= latenessHolds {
		return Lateness{}
	}
	return m.last
}

// Lateness returns how late records of the foreground are published now.
func (d *Dispatcher) Lateness() Lateness { return d.lateness.read(time.Now()) }
