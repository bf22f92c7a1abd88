// Package ctxtime waits for durations and for the end of contexts, and tells whether a caller has left.
package ctxtime

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// Sleep waits for d. It returns false if ctx ends before that. If d is not positive it returns at once.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// A process that is idle but for many things that it looks at from time to time wakes up for each of them, and a wake costs more than most
// looks. So such waits end together, at the beats of the process: waits of at least longBeat at the long beats, and those of at least beat at
// each. Processes have phases of their own, so that not all of them ask a server at one instant.
const (
	beat     = time.Second
	longBeat = 5 * beat
	// early is how long before a beat a wait may begin as if at the beat. Otherwise a timer that is early
	// by the clock would be followed by a wait of nothing.
	early = 50 * time.Millisecond
)

var phase = rand.N(longBeat)

// Lags are those of what comes after a beat. What came at the beat itself has then given back its connections, so that no others are opened
// that would soon be closed for want of use.
const (
	firstLag = 200 * time.Millisecond
	nextLag  = 25 * time.Millisecond
	lags     = 16
)

var lagging atomic.Uint32

// A Pace has the waits of one thing that looks at servers from time to time. They end at the beats of the process, and a time after them that is
// its own.
type Pace struct{ lag time.Duration }

// NewPace returns the pace of one thing: 200 to 575 ms after beats, in turn.
func NewPace() Pace { return Pace{firstLag + time.Duration(lagging.Add(1)%lags)*nextLag} }

// Wait is [Beat] of a wait that begins now.
func (p Pace) Wait(d time.Duration) time.Duration { return p.from(time.Now(), d) }

// Sleep waits as long. It returns false if ctx ends before that.
func (p Pace) Sleep(ctx context.Context, d time.Duration) bool { return Sleep(ctx, p.Wait(d)) }

func (p Pace) from(now time.Time, d time.Duration) time.Duration { return Beat(now.Add(-p.lag), d) }

// Beat shortens the wait d, which begins at now, so that it ends at a beat of the process: by less than a second, and waits of at
// least five seconds by less than five. Waits of less than a second stay as they are. The result may be up to 50 ms longer than d.
func Beat(now time.Time, d time.Duration) time.Duration {
	every := beat
	switch {
	case d < beat:
		return d
	case d >= longBeat:
		every = longBeat
	}
	now = now.Add(-phase)
	return now.Add(d + early).Truncate(every).Sub(now)
}

// Every calls f after each interval until ctx ends: if the interval has at least a second, at a time after beats of the process that is its own.
// It returns nil.
func Every(ctx context.Context, interval time.Duration, f func(context.Context)) error {
	began, pace := time.Now(), NewPace()
	for Sleep(ctx, pace.from(began, interval)-time.Since(began)) {
		began = time.Now()
		f(ctx)
	}
	return nil
}

type callerKey struct{}

// WithCaller returns ctx, with which work goes on although the context of its caller may have ended; see [Left].
func WithCaller(ctx, caller context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// Left reports whether the work of ctx is for a caller that has left.
func Left(ctx context.Context) bool {
	caller, ok := ctx.Value(callerKey{}).(context.Context)
	return ok && caller.Err() != nil
}
