package dispatch

import (
	"context"
	"sync"
	"time"
)

// A transactions admits the transactions of one database: one at a time on its owned shards,
// and a bounded number over all databases.
//
// Places bound the work of the databases' processors. A transaction that takes longer than
// placeFor waits for its server, which may hang, so it gives its place back and goes on
// without. Further transactions of the database take none until one has ended in time. So a
// server that hangs delays the others once, by at most placeFor for each of its databases.
type transactions struct {
	// own holds one token. places is common to all databases.
	own, places chan struct{}
	place       *place
}

// A place is that of the transaction under way in one database.
type place struct {
	places chan struct{}

	mu sync.Mutex
	// number counts transactions, so that a timer knows its own.
	number int
	began  time.Time
	held   bool
	timer  *time.Timer
	// slow is set if the last transaction has taken longer than placeFor.
	slow bool
}

// placeFor is how long a transaction may keep what transactions of other databases wait for.
const placeFor = 150 * time.Millisecond

func newTransactions(places chan struct{}) transactions {
	return transactions{own: make(chan struct{}, 1), places: places, place: &place{places: places}}
}

// begin waits until a transaction is admitted. It returns false if ctx ends first.
func (t transactions) begin(ctx context.Context) bool {
	select {
	case t.own <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	if t.place.isSlow() {
		t.place.begin(false)
		return true
	}
	select {
	case t.places <- struct{}{}:
		t.place.begin(true)
		return true
	case <-ctx.Done():
		<-t.own
		return false
	}
}

func (t transactions) end() {
	t.place.end()
	<-t.own
}

// hung reports whether a transaction of the database is under way that takes long.
func (t transactions) hung() bool { return t.place.isSlow() && len(t.own) > 0 }

func (p *place) isSlow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slow
}

// begin records that a transaction has begun, with or without a place.
func (p *place) begin(held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	p.began, p.held = time.Now(), held
	if held {
		number := p.number
		p.timer = time.AfterFunc(placeFor, func() { p.giveBack(number) })
	}
}

// giveBack gives back the place of a transaction that takes long.
func (p *place) giveBack(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held && p.number == number {
		p.held, p.slow = false, true
		<-p.places
	}
}

// end records that the transaction has ended.
func (p *place) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held {
		p.timer.Stop()
		p.held = false
		<-p.places
	}
	p.slow = time.Since(p.began) > placeFor
}

// holdBriefly returns a function that takes a token back from a channel, and calls it after
// placeFor. Further calls do nothing.
func holdBriefly(token <-chan struct{}) (release func()) {
	var once sync.Once
	giveBack := func() { once.Do(func() { <-token }) }
	timer := time.AfterFunc(placeFor, giveBack)
	return func() { timer.Stop(); giveBack() }
}
