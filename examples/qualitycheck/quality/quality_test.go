package quality

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/client/clienttest"
)

// contents has the same score for every content.
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
		status   client.Status
		stop     bool
	}{
		"not good enough":   {score: 0.89, status: client.Success},
		"just enough":       {score: 0.9, promoted: 1, status: client.Success, stop: true},
		"score unavailable": {score: 1, err: down, status: client.Failure},
	} {
		have := &contents{score: c.score, err: c.err}
		checker := Checker{Contents: have, Enough: 0.9}
		got := clienttest.Run(t, client.Typed(checker.Check), &client.Run{Params: client.MustParams(Params{Content: "a"})})
		if got.Status != c.status || got.Stop != c.stop || !errors.Is(got.Err, c.err) || len(have.promoted) != c.promoted {
			t.Errorf("%s: %+v, promoted %v", name, got, have.promoted)
		}
		if c.status == client.Success && !c.stop && got.SetParams["last_score"] != "0.89" {
			t.Errorf("%s: the next check sees %v", name, got.SetParams)
		}
	}
}

func TestAContentIsWatchedOnceFromAnHourAfterItAppeared(t *testing.T) {
	c := clienttest.New(t)
	appeared := time.Now().UTC().Truncate(time.Millisecond)
	first, err := Watch(t.Context(), c, "a", appeared, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Watch(t.Context(), c, "a", appeared, time.Hour)
	if err != nil || second != first {
		t.Errorf("tasks %d and %d, %v", first, second, err)
	}
	want := client.Task{
		Kind: Kind, Type: client.Blocking, Begin: appeared.Add(time.Hour), End: appeared.Add(48 * time.Hour), Interval: time.Hour,
		MaxCount: 1000, Params: map[string]string{"content": "a"},
	}
	if diff := cmp.Diff(want, c.AddedOne(Kind)); diff != "" {
		t.Error(diff)
	}
}
