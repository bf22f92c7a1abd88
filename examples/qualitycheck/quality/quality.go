// Package quality promotes content of high quality.
//
// Content is checked for the first time one hour after it appeared and then every
// hour, for at most two days and at most 1,000 times. When its score is high enough,
// it is promoted and the checks end.
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

// Params are the parameters of a check.
type Params struct {
	Content string `param:",required"`
	// LastScore is the score that the previous check found.
	LastScore float64 `param:",omitempty"`
}

// Contents is the store of contents.
type Contents interface {
	// Score returns the current score of a content, from 0 to 1.
	Score(ctx context.Context, content string) (float64, error)
	// Promote shows a content to many people. Promoting it twice does no harm.
	Promote(ctx context.Context, content string) error
}

// Checker checks content until it is good enough.
type Checker struct {
	Contents Contents
	// Enough is the lowest score at which content is promoted.
	Enough float64
}

// Watch adds the task that checks a content that appeared at the given time. It
// returns the id of the task. hour is the duration of an hour: time.Hour, or less
// for a demonstration. Watching the same content twice adds only one task.
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

// Check is the handler. It checks one content. If it returns an error, the check is
// retried soon, according to the retry policy of the task.
func (c *Checker) Check(ctx context.Context, run *client.Run, p Params) error {
	score, err := c.Contents.Score(ctx, p.Content)
	if err != nil {
		return fmt.Errorf("scoring %s: %w", p.Content, err)
	}
	if score < c.Enough {
		return run.SetParams(Params{Content: p.Content, LastScore: score}) // for the next check
	}
	if err := c.Contents.Promote(ctx, p.Content); err != nil {
		return fmt.Errorf("promoting %s: %w", p.Content, err)
	}
	return client.Stop(nil) // end the task, since the content is promoted
}
