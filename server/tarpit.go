package server

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/share"
)

const (
	// Refusals of one party that are answered at once: promptBurst, and then promptRate per
	// second. Further ones are answered after about refusalDelay.
	promptRate   = 100
	promptBurst  = 200
	refusalDelay = time.Second
	// delayedRefusals is the most answers that wait, of all parties.
	delayedRefusals = 16_384
)

// tarpit delays the answers to callers that go on calling although they are refused. A refusal
// costs a tenth of a call or more, so a caller that repeats refused calls as fast as it gets their
// answers would use the processor that others need. Such a caller waits for its answers instead,
// and HTTP/2 lets it have few calls on the way. The technique is that of tarpits against mail and
// worms (T. Liston, LaBrea, 2001).
type tarpit struct {
	prompt *throttle[refused]
	places *share.Pool[refused]
}

// refused is a party: a tenant, or the source of a caller who is not known. Operators are one.
type refused struct {
	tenant int32
	from   source
}

func newTarpit() *tarpit {
	return &tarpit{newThrottle[refused](promptRate, promptBurst), share.NewPool[refused](delayedRefusals, 0)}
}

// delay returns when the answer to a call may be sent: at once, unless err refuses the call because
// of a limit or its credentials, and the caller's party has many such refusals. It never waits for more
// than half of the time that the caller has left, nor longer than the caller.
func (t *tarpit) delay(ctx context.Context, who *Identity, err error) {
	if code := status.Code(err); code != codes.ResourceExhausted && code != codes.Unauthenticated {
		return
	}
	party := refused{}
	if who != nil {
		party.tenant = who.Tenant.ID
	} else {
		party.from = callSource(ctx)
	}
	if _, ok := t.prompt.allow(party); ok || !t.places.Take(party, 1) {
		return
	}
	defer t.places.Give(party, 1)
	// At random, so that callers that were refused together do not come again together.
	wait := refusalDelay/2 + rand.N(refusalDelay)
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)/2)
	}
	ctxtime.Sleep(ctx, wait)
}
