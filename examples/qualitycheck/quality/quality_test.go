package quality

import (
	"context"
	"errors"
	"testing"

	"github.com/perceptor/perceptor/client"
)

// contents has one score for everything.
type contents struct {
	score    float64
	err      error
	promoted []string
}

func (c *contents) Score(context.Context, string) (float64, error) { return c.score, c.err }

func (c *contents) Promote(_ context.Context, content string) error {
	c.promoted = append(c.promoted, content)
	return nil
}

func TestOnlyGoodContentIsPromoted(t *testing.T) {
	down := errors.New("down")
	for name, c := range map[string]struct {
		score    float64
		err      error
		promoted int
	}{
		"not good enough":   {score: 0.89},
		"just enough":       {score: 0.9, promoted: 1},
		"score not to know": {score: 1, err: down},
	} {
		have := &contents{score: c.score, err: c.err}
		checker := Checker{Contents: have, Enough: 0.9}
		err := checker.Check(context.Background(), &client.Run{Params: map[string]string{"content": "a"}})
		if !errors.Is(err, c.err) || len(have.promoted) != c.promoted {
			t.Errorf("%s: error %v, promoted %v", name, err, have.promoted)
		}
	}
}
