package scenario

import (
	"maps"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
)

// measured is a process, or a group of them, that uses processor time.
type measured interface {
	PID() int
	CPUTime() (time.Duration, error)
}

// meter adds up processor time by process. A process that starts again begins
// at zero; what it used before counts up to the last sample, so there must be one
// before it is ended.
type meter struct {
	sources map[string]measured

	mu    sync.Mutex
	last  map[string]reading
	total map[string]time.Duration
}

type reading struct {
	pid  int
	used time.Duration
}

func newMeter(s *stack.Stack, listeners []*workload.Listener) *meter {
	m := &meter{
		sources: map[string]measured{"loadtest": self{}},
		last:    map[string]reading{}, total: map[string]time.Duration{},
	}
	for _, p := range s.Parts {
		m.sources[p.Name] = p.Server
	}
	for i, l := range listeners {
		m.sources[listenerName(i)] = l
	}
	return m
}

// self is this process.
type self struct{}

func (self) PID() int { return os.Getpid() }

func (self) CPUTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// sample returns what each process has used up to now, since some moment.
func (m *meter) sample() map[string]time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, source := range m.sources {
		pid := source.PID()
		used, err := source.CPUTime()
		if err != nil {
			continue // it is not there now
		}
		before := m.last[name]
		if before.pid != pid {
			before = reading{pid: pid}
		}
		if used > before.used { // else a process of the group has just ended
			m.total[name] += used - before.used
			before.used = used
		}
		m.last[name] = before
	}
	return maps.Clone(m.total)
}
