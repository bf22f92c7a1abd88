package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

func TestPausesOfConcurrentAddsAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		waited := func() time.Duration {
			t.Helper()
			began := time.Now()
			if err := p.wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		p.told(nil)
		if d := waited(); d != 0 {
			t.Errorf("waited %v without a pause", d)
		}
		p.told(durationpb.New(100 * time.Millisecond))
		p.told(durationpb.New(200 * time.Millisecond))
		p.told(durationpb.New(-time.Hour))
		if d := waited(); d != 300*time.Millisecond {
			t.Errorf("waited %v, want the sum of both pauses, 300ms", d)
		}
		if d := waited(); d != 0 {
			t.Errorf("waited %v a second time", d)
		}
		for range 100 {
			p.told(durationpb.New(time.Minute))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a deadline within the pause: %v", err)
		}
		if d := waited(); d != maxPause-time.Second {
			t.Errorf("waited another %v, want the rest of the longest pause", d)
		}
	})
}
