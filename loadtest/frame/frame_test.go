package frame

import (
	"errors"
	"testing"
	"time"
)

// counter is a process with a processor time to set.
type counter struct {
	pid  int
	used time.Duration
	err  error
}

func (c *counter) PID() int                        { return c.pid }
func (c *counter) CPUTime() (time.Duration, error) { return c.used, c.err }

func TestProcessorTimeIsAddedUpOverRestarts(t *testing.T) {
	c := &counter{pid: 1}
	m := newMeter(map[string]Source{"x": c})
	for _, step := range []struct {
		counter
		want time.Duration
	}{
		{counter{1, 5, nil}, 5},
		{counter{1, 7, nil}, 7},
		{counter{1, 6, nil}, 7}, // a process of the group has just ended
		{counter{1, 9, nil}, 9},
		{counter{0, 0, errors.New("gone")}, 9},
		{counter{2, 4, nil}, 13}, // it was started again
		{counter{2, 5, nil}, 14},
	} {
		*c = step.counter
		if got := m.Sample()["x"]; got != step.want {
			t.Errorf("after %+v: %d, want %d", step.counter, got, step.want)
		}
	}
}
