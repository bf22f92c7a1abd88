package share

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func takeAll(p *Pool[string], k string) (n int) {
	for p.Take(k, 1) {
		n++
	}
	return n
}

func TestOnePartyTakesHalfAndTheNextFindsPlaces(t *testing.T) {
	p := NewPool[string](60, 0)
	if n := takeAll(p, "flood"); n != 30 {
		t.Errorf("one party holds %d of 60, want half", n)
	}
	if n := takeAll(p, "second"); n != 15 {
		t.Errorf("the second party holds %d, want half of what is free", n)
	}
	if !p.Take("third", 1) {
		t.Error("no place for a third party")
	}
}

func TestAPartyWithNothingGetsTheLastPlace(t *testing.T) {
	p := NewPool[string](1, 0)
	if !p.Take("a", 1) || p.Take("a", 1) || p.Take("b", 1) {
		t.Error("one place is held by one party")
	}
	p.Give("a", 1)
	if !p.Take("b", 1) {
		t.Error("a returned place is not free")
	}
}

func TestNoPartyHoldsMoreThanEach(t *testing.T) {
	p := NewPool[string](60, 4)
	if n := takeAll(p, "flood"); n != 4 {
		t.Errorf("one party holds %d, want 4", n)
	}
}

func TestWaitingPartiesAreServedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool[string](2, 1)
		var mu sync.Mutex
		var order []string
		wait := func(k string) {
			go func() {
				if err := p.Wait(t.Context(), k, 1); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, k)
				mu.Unlock()
			}()
			synctest.Wait()
		}
		p.Take("x", 1)
		p.Take("y", 1)
		for range 3 {
			wait("flood")
		}
		wait("polite")
		for _, k := range []string{"x", "y", "flood", "polite", "flood"} {
			p.Give(k, 1)
			synctest.Wait()
		}
		p.Give("flood", 1)
		if got := fmt.Sprint(order); got != "[flood polite flood flood]" {
			t.Errorf("served %s", got)
		}
		if p.Free() != 2 || len(p.parties) != 0 || len(p.turns) != 0 {
			t.Errorf("%d places are free, %d parties and %d turns remain", p.Free(), len(p.parties), len(p.turns))
		}
	})
}

func TestAWaitThatEndsHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool[string](2, 0)
		p.Take("a", 1)
		slow := errors.New("slow")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, slow)
		defer cancel()
		if err := p.Wait(ctx, "a", 2); !errors.Is(err, slow) {
			t.Errorf("the wait ended with %v", err)
		}
		p.Give("a", 1)
		if p.Free() != 2 || len(p.parties) != 0 || len(p.turns) != 0 {
			t.Errorf("%d places are free, %d parties and %d turns remain", p.Free(), len(p.parties), len(p.turns))
		}
	})
}

func TestPlacesAreNeitherLostNorMade(t *testing.T) {
	const size = 12
	p := NewPool[int](size, 5)
	var wg sync.WaitGroup
	for k := range 6 {
		for range 4 {
			wg.Go(func() {
				for i := range 300 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%3)*50*time.Microsecond)
					n := int64(1 + i%3)
					if p.Wait(ctx, k, n) == nil {
						p.Give(k, n)
					}
					cancel()
				}
			})
		}
	}
	wg.Wait()
	if p.Free() != size || len(p.parties) != 0 || len(p.turns) != 0 {
		t.Errorf("%d places are free, %d parties and %d turns remain", p.Free(), len(p.parties), len(p.turns))
	}
}
