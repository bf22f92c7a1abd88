package client

import (
	"testing"
	"time"
)

func TestIdleMeter(t *testing.T) {
	var m idleMeter
	now := time.Second
	clock := func() time.Duration { return now }
	after := func(d time.Duration, idle bool) {
		now += d
		m.set(idle, clock)
	}
	after(0, true)
	now += 300 * time.Millisecond
	m.read(now)
	for _, c := range []struct {
		name  string
		steps func()
		want  int32
	}{
		{"idle all the time", func() { now += time.Second }, 100},
		{"a moment later", func() { after(time.Millisecond, false); after(48*time.Millisecond, true) }, 100},
		{"then", func() { now += 51 * time.Millisecond }, 52},
		{"idle for a quarter", func() { after(time.Second, false); after(3*time.Second, false) }, 25},
		{"never idle", func() { now += time.Second }, 0},
		{"idle twice", func() {
			after(time.Second, true)
			after(time.Second, false)
			after(time.Second, true)
			after(time.Second, true)
		}, 50},
	} {
		if c.steps(); m.read(now) != c.want {
			t.Errorf("%s: another reading than %d", c.name, c.want)
		}
	}
}
