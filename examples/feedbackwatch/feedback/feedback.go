// Package feedback deletes content about which too many people complain.
//
// Content that is shown to many people is checked every four hours. When the number
// of complaints reaches a threshold, the content is deleted and the checks end.
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

// Params are the parameters of a check.
type Params struct {
	Content string `param:",required"`
}

// Contents is the store of contents.
type Contents interface {
	// Complaints returns the number of people who have complained about a content.
	Complaints(ctx context.Context, content string) (int, error)
	// Delete deletes a content. Deleting it twice does no harm.
	Delete(ctx context.Context, content string) error
}

// Watcher deletes content about which too many people complain.
type Watcher struct {
	Contents Contents
	// TooMany is the number of complaints at which content is deleted.
	TooMany int
}

// Watch adds the task that watches a content from now on. It returns the id of
// the task. hour is the duration of an hour: time.Hour, or less for a
// demonstration. Watching the same content twice adds only one task.
func Watch(ctx context.Context, c client.Tasks, content string, promoted time.Time, hour time.Duration) (int64, error) {
	id, err := c.AddTask(ctx, client.Task{
		Kind:     Kind,
		Type:     client.Blocking,
		Begin:    promoted.Add(everyHours * hour),
		Interval: everyHours * hour, // no End: the task runs until the content is deleted
		Params:   client.MustParams(Params{Content: content}),
	}, client.WithRequestID("feedback-"+content))
	if err != nil {
		return 0, fmt.Errorf("watching the feedback on %s: %w", content, err)
	}
	return id, nil
}

// Look is the handler. It checks the feedback on one content.
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
	return client.Stop(nil) // end the task, since the content is deleted
}
