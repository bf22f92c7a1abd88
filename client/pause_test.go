package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

func TestConcurrentAddsKeepThePaceOfTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		began := time.Now()
		add := func(n int) time.Duration {
			if err := p.wait(t.Context(), n, time.Minute); err != nil {
				t.Error(err)
			}
			return time.Since(began)
		}
		p.told(nil, 100)
		if at := add(1000); at != 0 {
			t.Errorf("an add waits for %v without a pause", at)
		}
		p.told(durationpb.New(100*time.Millisecond), 100) // 1,000 tasks per second
		var adds sync.WaitGroup
		var mu sync.Mutex
		at := map[time.Duration]bool{}
		for range 20 {
			adds.Go(func() {
				sent := add(500)
				mu.Lock()
				defer mu.Unlock()
				at[sent] = true
			})
		}
		adds.Wait()
		for i := range 20 {
			if d := time.Duration(i) * 500 * time.Millisecond; !at[d] {
				t.Errorf("no add of 500 tasks was sent after %v: %v", d, at)
			}
		}
		time.Sleep(500 * time.Millisecond) // the time of the last reservation
		began = time.Now().Add(time.Nanosecond)
		time.Sleep(time.Nanosecond)
		if at := add(1); at != 0 {
			t.Errorf("an add waits for %v, though the pace is old", at)
		}
	})
}

func TestAPauseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		p.told(durationpb.New(time.Hour), 1)
		if err := p.wait(t.Context(), 1, time.Second); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := p.wait(t.Context(), 1, time.Second); err != nil || time.Since(began) != time.Second {
			t.Errorf("waited %v, %v; want the most, 1s", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.wait(ctx, 1, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a deadline within the pause: %v", err)
		}
		p.told(durationpb.New(-time.Hour), 0)
		if d := p.reserve(1); d != 0 {
			t.Errorf("an add waits for %v after an answer without a pause", d)
		}
	})
}
