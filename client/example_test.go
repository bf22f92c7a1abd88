package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/perceptor/perceptor/client"
)

// A reminder that is due in an hour, and the process that sends it.
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
	type reminder struct{ User string }
	client.Handle(l, "remind", func(ctx context.Context, run *client.Run, r reminder) error {
		fmt.Println("remind", r.User, "of", run.RunID())
		return nil
	})
	if err := l.Run(ctx); err != nil { // until Ctrl-C
		log.Print(err)
		return
	}
}

// Hourly checks, one after the other, for at most two days. The handler can end
// them earlier.
func ExampleClient_AddTask_blocking() {
	c, err := client.New(client.Config{Address: "taskd-1:7070,taskd-2:7070", Token: os.Getenv("TOKEN"), TLS: &tls.Config{}})
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

// A handler can change later runs.
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

// All unfinished tasks of a kind.
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

// Params converts a struct to params; Typed reads them in the handler.
func ExampleTyped() {
	type Check struct {
		Content   string `param:",required"`
		LastScore float64
		Every     time.Duration `param:",omitempty"`
	}
	params := client.MustParams(Check{Content: "post-42", LastScore: 0.25})
	fmt.Println(params)

	handler := client.Typed(func(_ context.Context, run *client.Run, c Check) error {
		fmt.Println("checking", c.Content, "after", c.LastScore)
		return nil
	})
	fmt.Println(client.Execute(context.Background(), handler, &client.Run{Params: params}).Status)

	delete(params, "content")
	o := client.Execute(context.Background(), handler, &client.Run{Params: params})
	fmt.Println(o.Status, o.Permanent, o.Err)
	// Output:
	// map[content:post-42 last_score:0.25]
	// checking post-42 after 0.25
	// SUCCESS
	// FAIL true perceptor: params["content"] is missing
}

// The error that a handler returns decides what follows.
func ExampleSnooze() {
	errGone := errors.New("the account is gone")
	handler := func(_ context.Context, run *client.Run) error {
		switch run.Params["account"] {
		case "closed":
			return fmt.Errorf("billing: %w", client.Permanent(errGone))
		case "busy":
			return client.Retry(errors.New("too many requests"), 30*time.Second)
		case "open":
			return client.Snooze(10 * time.Minute) // nothing to bill yet
		}
		return client.Stop(nil)
	}
	for _, account := range []string{"closed", "busy", "open", "billed"} {
		o := client.Execute(context.Background(), handler, &client.Run{Params: map[string]string{"account": account}})
		fmt.Println(account, o.Status, "permanent", o.Permanent, "stop", o.Stop, "after", o.After, o.Err)
	}
	// Output:
	// closed FAIL permanent true stop false after 0s billing: the account is gone
	// busy FAIL permanent false stop false after 30s too many requests
	// open SNOOZE permanent false stop false after 10m0s <nil>
	// billed SUCCESS permanent false stop true after 0s <nil>
}

// Middleware wraps the handlers of all kinds, or of one.
func ExampleListener_Use() {
	c, err := client.New(client.Config{Token: "secret"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	l, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		log.Print(err)
		return
	}
	say := func(words string) client.Middleware {
		return func(next client.Handler) client.Handler {
			return func(ctx context.Context, run *client.Run) error {
				fmt.Println(words)
				return next(ctx, run)
			}
		}
	}
	l.Use(say("for all kinds"), client.LogRuns(nil))
	l.Handle("report", func(context.Context, *client.Run) error { fmt.Println("report"); return nil },
		client.MaxConcurrent(2), client.MaxDuration(time.Minute), client.With(say("for reports")))
	o, err := l.Execute(context.Background(), &client.Run{Kind: "report"})
	fmt.Println(o.Status, err)
	// Output:
	// for all kinds
	// for reports
	// report
	// SUCCESS <nil>
}
