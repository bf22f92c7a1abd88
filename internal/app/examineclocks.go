package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/store"
)

// clocksDiffer is the difference between two clocks from which on it is found: docs/operations.md asks for less.
const clocksDiffer = time.Second

// A serverClock is ahead of this machine's clock by what is between the two bounds.
type serverClock struct {
	address     string
	least, most time.Duration
}

func (c serverClock) ahead() time.Duration { return (c.least + c.most) / 2 }

// clocks finds servers whose clocks differ from each other or from that of this machine.
func (e *examination) clocks(ctx context.Context, cluster *store.Cluster) {
	var list []serverClock
	for _, d := range cluster.FirstOfServers() {
		ahead, within, err := cluster.ClockAhead(ctx, d)
		if err != nil {
			e.fail("clocks", fmt.Errorf("%s: %w", cluster.ServerAddress(d), err))
			return
		}
		list = append(list, serverClock{cluster.ServerAddress(d), ahead - within, ahead + within})
	}
	e.judgeClocks(list)
}

func (e *examination) judgeClocks(servers []serverClock) {
	all := append(slices.Clone(servers), serverClock{}) // the last is this machine
	var surely, perhaps time.Duration                   // the largest difference of two clocks
	for _, a := range all {
		for _, b := range all {
			surely, perhaps = max(surely, a.least-b.most), max(perhaps, a.ahead()-b.ahead())
		}
	}
	if surely < clocksDiffer {
		e.add(OK, "clocks", "those of the PostgreSQL servers and of this machine differ by %v", perhaps.Round(time.Millisecond))
		return
	}
	var texts []string
	for _, c := range servers {
		texts = append(texts, c.String())
	}
	e.add(Warning, "clocks", "those of the PostgreSQL servers and of this machine differ by %v: %s", perhaps.Round(100*time.Millisecond), strings.Join(texts, ", "))
	e.cure("let all machines follow the same time servers: what is due is what the clock of a task's server says")
}

// String says how the clock differs from that of this machine.
func (c serverClock) String() string {
	switch ahead := c.ahead().Round(100 * time.Millisecond); {
	case ahead > 0:
		return fmt.Sprintf("%s is %v ahead of this machine", c.address, ahead)
	case ahead < 0:
		return fmt.Sprintf("%s is %v behind this machine", c.address, -ahead)
	}
	return c.address + " is like this machine"
}
