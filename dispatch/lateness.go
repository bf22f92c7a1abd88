package dispatch

import (
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

const (
	// latenessWindow is the time over which lateness is the mean.
	latenessWindow = 250 * time.Millisecond
	// latenessHolds is how long the lateness of a window stands while nothing more is published.
	// Then nothing is late: nobody is in the way.
	latenessHolds = time.Second
)

// A paceMeter measures how late records are published. It is not for concurrent use.
type paceMeter struct {
	began time.Time
	// published counts records since began. first counts the first attempts among them, and late
	// adds up their lateness.
	published, first int
	late             time.Duration
	last             task.Pace
	lastAt           time.Time
}

// count records that n records were confirmed, of which first are first attempts that were late
// by the sum late.
func (m *paceMeter) count(now time.Time, n, first int, late time.Duration) {
	m.roll(now)
	m.published += n
	m.first += first
	m.late += late
}

// roll ends the window if it is over.
func (m *paceMeter) roll(now time.Time) {
	took := now.Sub(m.began)
	if took < latenessWindow {
		return
	}
	if took < latenessHolds && m.published > 0 {
		m.last, m.lastAt = task.Pace{PerSecond: float64(m.published) / took.Seconds()}, now
		if m.first > 0 {
			m.last.Late = max(m.late/time.Duration(m.first), 0)
		}
	}
	m.began, m.published, m.first, m.late = now, 0, 0, 0
}

// read returns the pace of the last window.
func (m *paceMeter) read(now time.Time) task.Pace {
	m.roll(now)
	if m.lastAt.IsZero() || now.Sub(m.lastAt) >= latenessHolds {
		return task.Pace{}
	}
	return m.last
}

// A latenessMeter measures the lateness of the foreground and of backlogs. Its methods may be
// called concurrently.
type latenessMeter struct {
	mu                   sync.Mutex
	foreground, backlogs paceMeter
}

// confirmed counts confirmed records. caused is the lateness of each that dispatchers have caused: a task that is added after
// its begin is late by itself, and other adds need not yield because of it. Nor because of tasks that may have
// waited for a rate or a cap of their own tenant, whose lateness does not count.
func (m *latenessMeter) confirmed(now time.Time, records []*record, caused []time.Duration) {
	var n, first [2]int
	var sum [2]time.Duration
	for i, r := range records {
		of := 0
		if r.background {
			of = 1
		}
		n[of]++
		if r.pub.Attempt == 1 && !r.limited {
			first[of]++
			sum[of] += caused[i]
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.foreground.count(now, n[0], first[0], sum[0])
	m.backlogs.count(now, n[1], first[1], sum[1])
}

// caused returns the part of a lateness in which the record's row waited for dispatchers, as far as that is known.
func (r *record) caused(now time.Time, late time.Duration) time.Duration {
	if r.since.IsZero() {
		return late
	}
	return min(late, now.Sub(r.since))
}

// read returns the lateness of the last window, without the tenants.
func (m *latenessMeter) read(now time.Time) task.Lateness {
	m.mu.Lock()
	defer m.mu.Unlock()
	return task.Lateness{Foreground: m.foreground.read(now), Backlogs: m.backlogs.read(now)}
}

// Lateness returns how late records are published now.
func (d *Dispatcher) Lateness() task.Lateness {
	l := d.lateness.read(time.Now())
	l.Backlogged = d.scheduler.backlogged()
	return l
}
