// Command feedbackwatch checks the complaints about a post every four hours. When
// there are too many, it deletes the post and ends.
//
//	PERCEPTOR_TOKEN=... go run ./examples/feedbackwatch -scale 500ms
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
	"github.com/perceptor/perceptor/examples/feedbackwatch/feedback"
)

func main() {
	hour := flag.Duration("scale", scale(), "duration of an hour (or set TIME_SCALE)")
	flag.Parse()
	if err := run(*hour); err != nil {
		log.Fatal(err)
	}
}

func scale() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("TIME_SCALE")); err == nil {
		return d
	}
	return time.Hour
}

// run shows a post to many people and returns when it has been deleted.
func run(hour time.Duration) error {
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
	feed := &feed{complaints: map[string]int{}, deleted: make(chan string, 1)}
	watcher := &feedback.Watcher{Contents: feed, TooMany: 30}
	client.Handle(listener, feedback.Kind, watcher.Look)
	done := make(chan error, 1)
	go func() { done <- listener.Run(ctx) }()
	err = show(ctx, c, feed, hour)
	stop()
	return errors.Join(err, <-done)
}

// show shows a post and waits until it has been deleted.
func show(ctx context.Context, c *client.Client, feed *feed, hour time.Duration) error {
	post := fmt.Sprintf("post-%d", time.Now().Unix())
	id, err := feedback.Watch(ctx, c, post, time.Now(), hour)
	if err != nil {
		return err
	}
	fmt.Printf("%s is shown to many, watched by task %d\n", post, id)
	select {
	case post := <-feed.deleted:
		fmt.Println("deleted", post)
	case <-ctx.Done():
	}
	return nil
}

// feed holds content in memory. Every check finds more complaints.
type feed struct {
	mu         sync.Mutex
	complaints map[string]int
	deleted    chan string
}

// Complaints implements [feedback.Contents].
func (f *feed) Complaints(_ context.Context, post string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.complaints[post] += 11
	fmt.Printf("%d complaints about %s\n", f.complaints[post], post)
	return f.complaints[post], nil
}

// Delete implements [feedback.Contents].
func (f *feed) Delete(ctx context.Context, post string) error {
	select {
	case f.deleted <- post:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
