// Command qualitycheck publishes some content and checks its quality every hour
// until its score is high enough.
//
//	PERCEPTOR_TOKEN=... go run ./examples/qualitycheck -scale 1s
//
// -scale sets the duration of an hour.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/examples/qualitycheck/quality"
)

func main() {
	hour := flag.Duration("scale", scale(), "duration of an hour (or set TIME_SCALE)")
	posts := flag.Int("posts", 3, "number of posts to publish")
	flag.Parse()
	if err := run(*hour, *posts); err != nil {
		log.Fatal(err)
	}
}

func scale() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("TIME_SCALE")); err == nil {
		return d
	}
	return time.Hour
}

// run publishes posts and returns when all of them have been promoted.
func run(hour time.Duration, posts int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := client.New(client.Config{}) // PERCEPTOR_ADDRESS, PERCEPTOR_TOKEN
	if err != nil {
		return err
	}
	defer c.Close()
	listener, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		return err
	}
	blog := &blog{checks: map[string]int{}, promoted: make(chan string, posts)}
	checker := &quality.Checker{Contents: blog, Enough: 0.9}
	client.Handle(listener, quality.Kind, checker.Check, client.MaxDuration(time.Minute))
	done := make(chan error, 1)
	go func() { done <- listener.Run(ctx) }()
	err = publish(ctx, c, blog, hour, posts)
	stop()
	return errors.Join(err, <-done)
}

// publish publishes posts and waits until they have been promoted.
func publish(ctx context.Context, c *client.Client, blog *blog, hour time.Duration, posts int) error {
	for n := range posts {
		post := fmt.Sprintf("post-%d-%d", time.Now().Unix(), n)
		id, err := quality.Watch(ctx, c, post, time.Now(), hour)
		if err != nil {
			return err
		}
		fmt.Printf("published %s, watched by task %d\n", post, id)
	}
	for range posts {
		select {
		case post := <-blog.promoted:
			fmt.Println("promoted", post)
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// blog holds content in memory. Every check finds a slightly higher score.
type blog struct {
	mu       sync.Mutex
	checks   map[string]int
	promoted chan string
}

// Score implements [quality.Contents].
func (b *blog) Score(_ context.Context, post string) (float64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checks[post]++
	score := min(1, 0.35*float64(b.checks[post]))
	fmt.Printf("%s has a score of %.1f\n", post, score)
	return score, nil
}

// Promote implements [quality.Contents].
func (b *blog) Promote(ctx context.Context, post string) error {
	select {
	case b.promoted <- post:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
