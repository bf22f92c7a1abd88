// Package quality promotes content that turns out to be good.
//
// Content is looked at for the first time one hour after it appeared, then every
// hour, for at most two days and at most 1,000 times. Once its score is high
// enough it is promoted, and its checks end.
package quality

import (
	"context"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/client"
)

// Kind is the name of the handler.
const Kind = "quality-check"

// The rules, in hours.
const (
	firstCheckHours = 1
	everyHours      = 1
	atMostHours     = 48
	atMostChecks    = 1000
)

// Params are what a check knows.
type Params struct {
	Content string `param:",required"`
	// LastScore is what the check before has found.
	LastScore float64 `param:",omitempty"`
}

// Contents is where content lives.
type Contents interface {
	// Score returns the present score of a content, from 0 to 1.
	Score(ctx context.Context, content string) (float64, error)
	// Promote shows a content to many. Promoting it twice does no harm.
	Promote(ctx context.Context, content string) error
}

// Checker checks content until it is good enough.
type Checker struct {
	Contents Contents
	// Enough is the score from which on content is promoted.
	Enough float64
}

// Watch adds the task that checks a content which appeared at the given time. It
// returns the id of the task. hour is how long an hour takes: time.Hour, or less
// to watch it happen. Watching the same content twice adds one task.
func Watch(ctx context.Context, c client.Tasks, content string, appeared time.Time, hour time.Duration) (int64, error) {
	id, err := c.AddTask(ctx, client.Task{
		Kind:     Kind,
		Type:     client.Blocking, // two checks of one content never overlap
		Begin:    appeared.Add(firstCheckHours * hour),
		End:      appeared.Add(atMostHours * hour),
		Interval: everyHours * hour,
		MaxCount: atMostChecks,
		Params:   client.MustParams(Params{Content: content}),
	}, client.WithRequestID("quality-"+content))
	if err != nil {
		return 0, fmt.Errorf("watching the quality of %s: %w", content, err)
	}
	return id, nil
}

// Check is the handler: one look at one content. An error means that it is
// looked at again soon; see the retry policy of a task.
func (c *Checker) Check(ctx context.Context, run *client.Run, p Params) error {
	score, err := c.Contents.Score(ctx, p.Content)
	if err != nil {
		return fmt.Errorf("scoring %s: %w", p.Content, err)
	}
	if score < c.Enough {
		return run.SetParams(Params{Content: p.Content, LastScore: score}) // the next check will see it
	}
	if err := c.Contents.Promote(ctx, p.Content); err != nil {
		return fmt.Errorf("promoting %s: %w", p.Content, err)
	}
	return client.Stop(nil) // that was the last check
}
