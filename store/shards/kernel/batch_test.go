package kernel

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestGroupsAreFartherApartTheMoreTimeThoseOfAllDatabasesTake(t *testing.T) {
	const ms = time.Millisecond
	p := Spacing{Least: 40 * ms, Most: 240 * ms, Share: 0.2}
	now := time.Now()
	if got := p.took(0, now, 2*ms); got != 40*ms {
		t.Errorf("one database that takes little: %s, want the least", got)
	}
	for d := range task.Databases / 2 {
		p.took(d, now, 2*ms)
	}
	if got := p.took(0, now, 2*ms); got != 80*ms {
		t.Errorf("8 databases at 2 ms: %s, want 8 x 2 ms / 0.2", got)
	}
	for d := range task.Databases {
		p.took(d, now, 50*ms)
	}
	if got := p.took(0, now, 50*ms); got != 240*ms {
		t.Errorf("16 databases that take long: %s, want the most", got)
	}
	now = now.Add(time.Second)
	for range 40 {
		p.took(3, now, 4*ms)
	}
	if got := p.took(3, now, 4*ms); got < 40*ms || got > 50*ms {
		t.Errorf("one database, the others idle for a second: %s, want the least", got)
	}
}
