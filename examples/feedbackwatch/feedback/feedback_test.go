package feedback

import (
	"context"
	"errors"
	"testing"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/client/clienttest"
)

// contents has the same number of complaints for every content.
type contents struct {
	complaints int
	err        error
	deleted    []string
}

func (c *contents) Complaints(context.Context, string) (int, error) { return c.complaints, c.err }

func (c *contents) Delete(_ context.Context, content string) error {
	c.deleted = append(c.deleted, content)
	return nil
}

func TestOnlyUnwantedContentIsDeleted(t *testing.T) {
	down := errors.New("down")
	for name, c := range map[string]struct {
		complaints int
		err        error
		deleted    int
	}{
		"few complaints":       {complaints: 29},
		"too many":             {complaints: 30, deleted: 1},
		"feedback unavailable": {complaints: 99, err: down},
	} {
		have := &contents{complaints: c.complaints, err: c.err}
		watcher := Watcher{Contents: have, TooMany: 30}
		got := clienttest.Run(t, client.Typed(watcher.Look), &client.Run{Params: client.MustParams(Params{Content: "a"})})
		if !errors.Is(got.Err, c.err) || len(have.deleted) != c.deleted || got.Stop != (c.deleted > 0) {
			t.Errorf("%s: %+v, deleted %v", name, got, have.deleted)
		}
	}
}
