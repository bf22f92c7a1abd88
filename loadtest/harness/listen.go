package harness

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
)

// joinWait is how long a listener may take to get its partitions.
const joinWait = time.Minute

// Listen runs a listener for one kind in this process. It returns when the listener has
// partitions. stop ends the listener and waits for that. Listen sets the logger and the event
// Assigned of cfg.
func Listen(ctx context.Context, c *client.Client, cfg client.ListenerConfig, kind string, h client.Handler) (stop func(), err error) {
	joined := make(chan struct{})
	var once sync.Once
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Events.Assigned = func([]int) { once.Do(func() { close(joined) }) }
	l, err := c.NewListener(cfg)
	if err != nil {
		return nil, err
	}
	l.Handle(kind, h)
	listening, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { _ = l.Run(listening) }) // joined tells whether it works
	stop = func() { cancel(); running.Wait() }
	select {
	case <-joined:
		return stop, nil
	case <-time.After(joinWait):
		stop()
		return nil, errors.New("the listener has no partitions")
	}
}
