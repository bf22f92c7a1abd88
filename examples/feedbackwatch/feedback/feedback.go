// Package feedback takes content down that people do not want to see.
//
// Content that is shown to many is looked at every four hours. When the negative
// feedback goes beyond a threshold, the content is deleted and the watch ends.
package feedback

import (
	"context"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/client"
)

// Kind is the name of the handler.
const Kind = "feedback-watch"

const everyHours = 4

// Params are what a look knows.
type Params struct {
	Content string `param:",required"`
}

// Contents is where content lives.
type Contents interface {
	// Complaints returns how many people complained about a content so far.
	Complaints(ctx context.Context, content string) (int, error)
	// Delete takes a content down. Deleting it twice does no harm.
	Delete(ctx context.Context, content string) error
}

// Watcher deletes content about which too many complain.
type Watcher struct {
	Contents Contents
	// TooMany is the number of complaints at which content is deleted.
	TooMany int
}

// Watch adds the task that watches a content from now on. It returns the id of
// the task. hour is how long an hour takes: time.Hour, or less to watch it
// happen. Watching the same content twice adds one task.
func Watch(ctx context.Context, c client.Tasks, content string, promoted time.Time, hour time.Duration) (int64, error) {
	id, err := c.AddTask(ctx, client.Task{
		Kind:     Kind,
		Type:     client.Blocking,
		Begin:    promoted.Add(everyHours * hour),
		Interval: everyHours * hour, // without an End: as long as the content is there
		Params:   client.MustParams(Params{Content: content}),
	}, client.WithRequestID("feedback-"+content))
	if err != nil {
		return 0, fmt.Errorf("watching the feedback on %s: %w", content, err)
	}
	return id, nil
}

// Look is the handler: one look at the feedback on one content.
func (w *Watcher) Look(ctx context.Context, _ *client.Run, p Params) error {
	complaints, err := w.Contents.Complaints(ctx, p.Content)
	if err != nil {
		return fmt.Errorf("reading the feedback on %s: %w", p.Content, err)
	}
	if complaints < w.TooMany {
		return nil
	}
	if err := w.Contents.Delete(ctx, p.Content); err != nil {
		return fmt.Errorf("deleting %s: %w", p.Content, err)
	}
	return client.Stop(nil) // there is nothing left to watch
}
