package app

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/place"
)

// places tells which databases have moved away from where the configuration says, and which
// moves are not finished.
func (e *examination) places(ctx context.Context, cluster *store.Cluster) {
	var mu sync.Mutex
	var moved, open []string
	err := cluster.Each(ctx, func(ctx context.Context, d int) error {
		says, err := place.Read(ctx, cluster.Pool(d))
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if _, at := cluster.Place(d); at != cluster.Configured(d) {
			moved = append(moved, fmt.Sprintf("%d at %s", d, at))
		}
		switch {
		case says.Target != "":
			open = append(open, fmt.Sprintf("%d to %s (%s)", d, says.Target, says.Step))
		case says.Address != "":
			open = append(open, fmt.Sprintf("%d from %s (%s)", d, says.Address, place.Uncleaned))
		}
		return nil
	})
	if err != nil {
		e.add(Failed, "places", "%s", oneLine(err))
		return
	}
	if len(moved) > 0 {
		e.add(OK, "places", "databases that have moved, write them into postgres.servers at the next restart: %s", strings.Join(moved, ", "))
	}
	if len(open) > 0 {
		e.add(Warning, "places", "moves that are not finished: %s; perceptorctl database move N --resume, or --abort", strings.Join(open, ", "))
	}
}
