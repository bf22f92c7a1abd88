package storm

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// watchTakeover observes when others have taken over what the part of h does. The result
// waits for the end of the observation. A take-over that a short fault does not cause is no error.
func (r *runner) watchTakeover(ctx context.Context, h *happening) (wait func() error) {
	watch := func(context.Context) error { return nil }
	switch kind, number := kindOf(h.Part); {
	case kind == "dispatcher" && h.Lasts >= 2*r.Real.Session:
		owned, err := r.owned(ctx, h.Part)
		if err != nil || len(owned) == 0 {
			return func() error { return err }
		}
		watch = func(ctx context.Context) error { return r.awaitOwners(ctx, h, owned) }
	case kind == "kafka":
		topic, err := r.on.Brokers.Topic(ctx, r.loads[0].topic)
		if err != nil || topic.Led[number-1] == 0 {
			return func() error { return err }
		}
		watch = func(ctx context.Context) error { return r.awaitLeaders(ctx, h, number-1, topic.Led[number-1]) }
	}
	ctx, cancel := context.WithTimeout(ctx, h.Lasts+watchLimit)
	done := make(chan error, 1)
	go func() { done <- watch(ctx) }()
	return func() error {
		defer cancel()
		return <-done
	}
}

// kindOf splits the name of a part into its kind and its number.
func kindOf(part string) (kind string, number int) {
	kind, text, _ := strings.Cut(part, "-")
	number, _ = strconv.Atoi(text)
	return kind, number
}

// owned returns the shards that a dispatcher owns.
func (r *runner) owned(ctx context.Context, name string) ([]stack.Owner, error) {
	all, err := r.on.Owners().List(ctx)
	return slices.DeleteFunc(all, func(o stack.Owner) bool { return o.Name != name }), err
}

// awaitOwners waits until other dispatchers own the shards.
func (r *runner) awaitOwners(ctx context.Context, h *happening, owned []stack.Owner) error {
	at, err := r.on.Owners().AwaitTakeover(ctx, owned)
	if err != nil {
		return err
	}
	took := task.Instant.Time(at).Sub(h.at)
	h.tookOver(took)
	h.saw("%d shards were taken over after %v", len(owned), took.Round(time.Millisecond))
	return nil
}

// awaitLeaders waits until a broker does not lead any of the partitions of the first
// tenant's topic that it has led, or until the fault has ended.
func (r *runner) awaitLeaders(ctx context.Context, h *happening, broker, led int) error {
	for ends := h.at.Add(h.Lasts); time.Now().Before(ends); {
		topic, err := r.on.Brokers.Topic(ctx, r.loads[0].topic)
		if err == nil && topic.Partitions > 0 && topic.Led[broker] == 0 {
			took := time.Since(h.at)
			h.tookOver(took)
			h.saw("%d partitions have other leaders after %v", led, took.Round(time.Millisecond))
			return nil
		}
		if harness.Sleep(ctx, probeEvery) != nil {
			return nil
		}
	}
	return nil
}
