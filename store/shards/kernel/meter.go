package kernel

import (
	"sync"
	"time"
)

// meterWindow is the time over which a meter counts.
const meterWindow = time.Second

// meter counts entries and how long they waited for their answers. It is safe for concurrent use.
type meter struct {
	mu          sync.Mutex
	began       time.Time // of now
	now, before count
}

// count is what was counted in a window.
type count struct {
	n    int
	wait time.Duration // of all entries together
}

// add counts n entries that were answered at an instant, after they had waited.
func (m *meter) add(at time.Time, n int, waited time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(at)
	m.now.n += n
	m.now.wait += time.Duration(n) * waited
}

// read returns what was counted in the last window that has ended.
func (m *meter) read(at time.Time) count {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(at)
	return m.before
}

// turn begins a new window if one has ended.
func (m *meter) turn(at time.Time) {
	past := at.Sub(m.began)
	if past < meterWindow {
		return
	}
	if m.before = m.now; past >= 2*meterWindow {
		m.before = count{}
	}
	m.now, m.began = count{}, at
}
