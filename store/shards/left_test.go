package shards

import (
	"context"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// TestAChangeIsNotMadeOnceItsCallerHasLeft: a client that got no answer asks another server. When that has answered, the client may
// make the next change, such as a resume after a pause. The first server must not do the first one after that.
func TestAChangeIsNotMadeOnceItsCallerHasLeft(t *testing.T) {
	for name, change := range map[string]func(ctx context.Context, b *bundle, id task.ID) error{
		"pause": func(ctx context.Context, b *bundle, id task.ID) error {
			_, err := b.Pause(ctx, b.tenant, id)
			return err
		},
		"resume": func(ctx context.Context, b *bundle, id task.ID) error {
			_, err := b.Resume(ctx, b.tenant, id)
			return err
		},
		"cancel": func(ctx context.Context, b *bundle, id task.ID) error {
			_, err := b.Cancel(ctx, b.tenant, id)
			return err
		},
		"trigger": func(ctx context.Context, b *bundle, id task.ID) error {
			_, _, err := b.Trigger(ctx, b.tenant, id, "again")
			return err
		},
		"update": func(ctx context.Context, b *bundle, id task.ID) error {
			spec := b.spec(task.NonBlocking, func(s *task.Spec) { s.Interval = time.Hour })
			_, err := b.Update(ctx, b.tenant, id, task.Edit{Spec: &spec})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			id := b.add(b.spec(task.NonBlocking))[0]
			if name == "resume" {
				if _, err := b.Pause(t.Context(), b.tenant, id); err != nil {
					t.Fatal(err)
				}
			}
			before, err := b.Get(t.Context(), b.tenant, id)
			if err != nil {
				t.Fatal(err)
			}
			caller, leave := context.WithCancel(t.Context())
			leave()
			if err := change(ctxtime.WithCaller(t.Context(), caller), b, id); err == nil {
				t.Error("the change was made")
			}
			after, err := b.Get(t.Context(), b.tenant, id)
			if err != nil || after.State != before.State || after.Paused != before.Paused || after.Version != before.Version || after.Seq != before.Seq {
				t.Errorf("the task is %+v, %v; want it as before: %+v", after, err, before)
			}
			if err := change(t.Context(), b, id); err != nil {
				t.Errorf("for a caller that waits: %v", err)
			}
		})
	}
}
