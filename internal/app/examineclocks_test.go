package app

import (
	"testing"
	"time"
)

func TestClocksThatDifferAreNamed(t *testing.T) {
	near := func(address string, ahead, within time.Duration) serverClock {
		return serverClock{address, ahead - within, ahead + within}
	}
	for name, c := range map[string]struct {
		servers []serverClock
		want    Finding
	}{
		"all alike": {[]serverClock{near("a:5432", 2*time.Millisecond, time.Millisecond), near("b:5432", -3*time.Millisecond, time.Millisecond)}, Finding{
			State: OK, What: "those of the PostgreSQL servers and of this machine differ by 5ms",
		}},
		"a slow answer proves nothing": {[]serverClock{near("a:5432", 1500*time.Millisecond, time.Second)}, Finding{
			State: OK, What: "those of the PostgreSQL servers and of this machine differ by 1.5s",
		}},
		"one server is late": {[]serverClock{near("a:5432", 0, time.Millisecond), near("b:5432", -90*time.Second, time.Millisecond)}, Finding{
			State: Warning, What: "those of the PostgreSQL servers and of this machine differ by 1m30s: a:5432 is like this machine, b:5432 is 1m30s behind this machine",
		}},
		"this machine is late": {[]serverClock{near("a:5432", 3*time.Second, time.Millisecond), near("b:5432", 3*time.Second, time.Millisecond)}, Finding{
			State: Warning, What: "those of the PostgreSQL servers and of this machine differ by 3s: a:5432 is 3s ahead of this machine, b:5432 is 3s ahead of this machine",
		}},
	} {
		e := &examination{}
		e.judgeClocks(c.servers)
		if len(e.findings) != 1 || e.findings[0].State != c.want.State || e.findings[0].What != c.want.What || e.findings[0].Part != "clocks" {
			t.Errorf("%s: %+v, want %+v", name, e.findings, c.want)
		}
	}
}
