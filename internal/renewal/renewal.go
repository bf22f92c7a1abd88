// Package renewal follows credentials that are changed while a program runs: a password in a
// file, a user name in a connection string, a certificate.
//
// A changed credential is pending until a connection has been opened with it. Until then new connections
// use the one before it. So the order of the two steps of a rotation, the server's and the file's,
// does not matter to a program that has connections, and a file with a mistake ends nothing. Once a
// credential is proven, new connections use it, and [Config].Adopted may replace those that are open.
package renewal

import (
	"context"
	"sync"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
)

const (
	// lookEvery is how often credentials are read without a reason, readEvery the least time
	// between two readings. A pending credential is tried every tryEvery, and for new
	// connections at most once in tryAfter.
	lookEvery = 5 * time.Second
	readEvery = time.Second
	tryEvery  = time.Second
	tryAfter  = 200 * time.Millisecond
	// tryLimit bounds a try.
	tryLimit = 10 * time.Second
)

// Config says what to follow. All functions but Adopted and Refused may be called concurrently.
type Config[C any] struct {
	// Read returns the credential that is to be used, as its files hold it now.
	Read func() (C, error)
	// Same reports whether two credentials log in alike.
	Same func(a, b C) bool
	// Try opens a connection with a credential and closes it.
	Try func(ctx context.Context, c C) error
	// Adopted is called when new connections use another credential.
	Adopted func(ctx context.Context)
	// Refused is called once for each change that cannot be used yet. The error of Read or Try says why.
	Refused func(err error)
}

// A Follower has the credential that works. Its methods may be called concurrently.
type Follower[C any] struct {
	config Config[C]
	kick   chan struct{} // holds a value if a new connection waits for a pending credential

	mu      sync.Mutex
	current C
	pending *C // nil: nothing has changed
	read    time.Time
	tried   time.Time
	told    bool  // Refused was called for what is pending
	fault   error // of the last Read
}

// New returns a follower of a credential that was read last as current. It changes nothing until
// [Follower.Run] is called.
func New[C any](current C, config Config[C]) *Follower[C] {
	return &Follower[C]{config: config, kick: make(chan struct{}, 1), current: current, read: time.Now()}
}

// Current returns the credential for a connection that begins now.
func (f *Follower[C]) Current() C {
	f.look()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending != nil {
		select {
		case f.kick <- struct{}{}:
		default:
		}
	}
	return f.current
}

// look reads the credential unless that was done a moment ago.
func (f *Follower[C]) look() {
	f.mu.Lock()
	if time.Since(f.read) < readEvery {
		f.mu.Unlock()
		return
	}
	f.read = time.Now()
	f.mu.Unlock()
	fresh, err := f.config.Read()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch f.fault = err; {
	case err != nil:
	case f.config.Same(fresh, f.current):
		f.pending, f.told = nil, false
	case f.pending == nil || !f.config.Same(fresh, *f.pending):
		f.pending, f.told = &fresh, false
	}
}

// Run tries what has changed until ctx ends.
func (f *Follower[C]) Run(ctx context.Context) error {
	for {
		wait := lookEvery
		if f.try(ctx) {
			wait = tryEvery
		}
		timer := time.NewTimer(ctxtime.Beat(time.Now(), wait))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-f.kick:
			timer.Stop()
			f.pause(ctx)
		}
	}
}

// pause waits until the next try may begin.
func (f *Follower[C]) pause(ctx context.Context) {
	f.mu.Lock()
	wait := tryAfter - time.Since(f.tried)
	f.mu.Unlock()
	ctxtime.Sleep(ctx, wait)
}

// try tries the pending credential and adopts it if it works. It reports whether one is still pending.
func (f *Follower[C]) try(ctx context.Context) bool {
	f.look()
	f.mu.Lock()
	pending, fault := f.pending, f.fault
	f.tried = time.Now()
	f.mu.Unlock()
	if pending == nil {
		f.refuse(ctx, fault)
		return false
	}
	limited, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	if err := f.config.Try(limited, *pending); err != nil {
		f.refuse(ctx, err)
		return true
	}
	f.mu.Lock()
	f.current, f.told = *pending, false
	if f.pending == pending { // otherwise it has changed again meanwhile
		f.pending = nil
	}
	f.mu.Unlock()
	f.config.Adopted(ctx)
	return false
}

// refuse tells once that a change cannot be used.
func (f *Follower[C]) refuse(ctx context.Context, err error) {
	f.mu.Lock()
	tell := err != nil && !f.told && ctx.Err() == nil
	f.told = f.told || tell
	f.mu.Unlock()
	if tell {
		f.config.Refused(err)
	}
}
