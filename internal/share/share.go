// Package share divides a limited number of places among parties, so that no party can
// take them all from the others.
//
// # Dynamic thresholds
//
// A party may hold as many places as remain free (Choudhury and Hahne, "Dynamic Queue
// Length Thresholds for Shared-Memory Packet Switches", 1998, with alpha = 1). So one
// party alone gets half of the places, two get a third each, and n get 1/(n+1) each. Some
// places always remain free for a party that comes next, without a reservation for parties
// that are idle. A party that holds nothing gets what is free.
//
// Waiting parties are served in turn, and the calls of one party in the order of their
// arrival.
package share

import (
	"context"
	"sync"
)

// Pool is a number of places. Parties are told apart by K. It is safe for concurrent use.
type Pool[K comparable] struct {
	mu      sync.Mutex
	free    int64
	each    int64 // the most that one party may hold; 0 means no limit besides the threshold
	parties map[K]*party
	// turns are the parties with waiting calls, in the order in which they are served.
	turns []K
}

// party is what one party holds and waits for. A party that has neither is removed.
type party struct {
	held    int64
	waiting []*wait
}

type wait struct {
	n     int64
	ready chan struct{} // closed when the places are held
}

// NewPool returns a pool of size places, of which one party holds at most each (0: as many as
// the threshold allows).
func NewPool[K comparable](size, each int64) *Pool[K] {
	return &Pool[K]{free: size, each: each, parties: map[K]*party{}}
}

// Take takes n places for a party, or none. Return them with [Pool.Give].
func (p *Pool[K]) Take(k K, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(k, n)
}

// take requires the lock. Calls that wait already come first.
func (p *Pool[K]) take(k K, n int64) bool {
	of := p.parties[k]
	if of != nil && len(of.waiting) > 0 || !p.fits(of, n) {
		return false
	}
	p.hold(k, n)
	return true
}

// fits reports whether a party may hold n places more.
func (p *Pool[K]) fits(of *party, n int64) bool {
	held := int64(0)
	if of != nil {
		held = of.held
	}
	switch {
	case n > p.free, p.each > 0 && held > 0 && held+n > p.each:
		return false
	}
	return held == 0 || held+n <= p.free-n
}

func (p *Pool[K]) hold(k K, n int64) {
	of := p.parties[k]
	if of == nil {
		of = &party{}
		p.parties[k] = of
	}
	of.held += n
	p.free -= n
}

// Wait takes n places for a party, and waits for them until ctx ends. Then it returns the
// cause of that end, and the party holds no more than before.
func (p *Pool[K]) Wait(ctx context.Context, k K, n int64) error {
	p.mu.Lock()
	if p.take(k, n) {
		p.mu.Unlock()
		return nil
	}
	w := &wait{n: n, ready: make(chan struct{})}
	of := p.parties[k]
	if of == nil {
		of = &party{}
		p.parties[k] = of
	}
	if of.waiting = append(of.waiting, w); len(of.waiting) == 1 {
		p.turns = append(p.turns, k)
	}
	p.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		p.leave(k, w)
		return context.Cause(ctx)
	}
}

// leave withdraws a waiting call, or returns what it was given meanwhile.
func (p *Pool[K]) leave(k K, w *wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.parties[k]
	for i, other := range of.waiting {
		if other == w {
			of.waiting = append(of.waiting[:i], of.waiting[i+1:]...)
			p.serve()
			return
		}
	}
	p.give(k, w.n)
}

// Give returns n places of a party.
func (p *Pool[K]) Give(k K, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.give(k, n)
}

func (p *Pool[K]) give(k K, n int64) {
	of := p.parties[k]
	of.held -= n
	p.free += n
	if of.held == 0 && len(of.waiting) == 0 {
		delete(p.parties, k)
	}
	if len(p.turns) > 0 {
		p.serve()
	}
}

// serve gives places to waiting calls, one call of each party at a time, until no party's
// first call fits.
func (p *Pool[K]) serve() {
	for left := len(p.turns); left > 0; left-- {
		k := p.turns[0]
		of := p.parties[k]
		p.turns = p.turns[1:]
		served := len(of.waiting) > 0 && p.fits(of, of.waiting[0].n)
		if served {
			w := of.waiting[0]
			of.waiting = of.waiting[1:]
			p.hold(k, w.n)
			close(w.ready)
		}
		switch {
		case len(of.waiting) > 0:
			p.turns = append(p.turns, k)
		case of.held == 0:
			delete(p.parties, k)
		}
		if served {
			left = len(p.turns) + 1
		}
	}
}

// Free returns the number of free places.
func (p *Pool[K]) Free() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.free
}
