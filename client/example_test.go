package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/perceptor/perceptor/client"
)

// A reminder in an hour, and the process that sends it.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := client.New(client.Config{}) // PERCEPTOR_ADDRESS, PERCEPTOR_TOKEN
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close()
	if _, err := c.AddTask(ctx, client.Task{
		Kind: "remind", Type: client.OneShot, Begin: time.Now().Add(time.Hour),
		Params: map[string]string{"user": "ann"},
	}); err != nil {
		log.Print(err)
		return
	}
	l, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		log.Print(err)
		return
	}
	l.Handle("remind", func(ctx context.Context, run *client.Run) error {
		fmt.Println("remind", run.Params["user"], "of", run.RunID())
		return nil
	})
	if err := l.Run(ctx); err != nil { // until Ctrl-C
		log.Print(err)
		return
	}
}

// Hourly checks, one after the other, for at most two days; the handler ends
// them itself.
func ExampleClient_AddTask_blocking() {
	c, err := client.New(client.Config{Address: "taskd-1:7070,taskd-2:7070", Token: os.Getenv("TOKEN")})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	now := time.Now()
	id, err := c.AddTask(context.Background(), client.Task{
		Kind: "quality-check", Type: client.Blocking,
		Begin: now.Add(time.Hour), End: now.Add(48 * time.Hour), Interval: time.Hour, MaxCount: 1000,
		Retry: client.RetryPolicy{MaxAttempts: 3},
	}, client.WithRequestID("quality-of-post-42")) // adding it again returns the same id
	var refused *client.Error
	switch {
	case errors.As(err, &refused) && errors.Is(err, client.ErrInvalidArgument):
		for _, f := range refused.Fields {
			fmt.Println(f.Field, f.Message)
		}
	case err != nil:
		log.Print(err)
		return
	}
	fmt.Println(id)
}

// A handler may say what follows.
func ExampleListener_Handle() {
	score := func(string) float64 { return 0.5 }
	handler := func(ctx context.Context, run *client.Run) error {
		s := score(run.Params["content"])
		switch {
		case s > 0.9:
			run.Stop() // that was the last run
		case s > 0.5:
			run.SetNext(time.Now().Add(10 * time.Minute)) // sooner than the interval says
		}
		run.SetParam("last_score", fmt.Sprint(s)) // for the next run
		return nil
	}
	_ = handler // listener.Handle("quality-check", handler)
}

// All living tasks of a kind.
func ExampleClient_ListTasks() {
	c, err := client.New(client.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for t, err := range c.ListTasks(context.Background(), client.Filter{Kind: "quality-check"}) {
		if err != nil {
			log.Print(err)
			return
		}
		fmt.Println(t.ID, t.State, t.RunCount, t.ScheduledAt)
	}
}
