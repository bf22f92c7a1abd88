package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestRefusalsOfAFloodAreAnsweredLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pit, over := newTarpit(), status.Error(codes.ResourceExhausted, "over")
		took := func(ctx context.Context, who *Identity, err error) time.Duration {
			began := time.Now()
			pit.delay(ctx, who, err)
			return time.Since(began)
		}
		flooder, other := &Identity{Tenant: acme}, &Identity{Tenant: rival}
		for n := range promptBurst {
			if d := took(t.Context(), flooder, over); d != 0 {
				t.Fatalf("refusal %d took %s", n, d)
			}
		}
		soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		left, leave := context.WithCancel(t.Context())
		leave()
		for _, c := range []struct {
			name string
			ctx  context.Context
			who  *Identity
			err  error
			want time.Duration
		}{
			{"a further one", soon, flooder, over, 50 * time.Millisecond},
			{"when the caller has left", left, flooder, over, 0},
			{"another tenant's", t.Context(), other, over, 0},
			{"one of an unknown caller", t.Context(), nil, status.Error(codes.Unauthenticated, "no"), 0},
			{"no error", t.Context(), flooder, nil, 0},
			{"a fault of the request", t.Context(), flooder, status.Error(codes.InvalidArgument, "bad"), 0},
			{"another error", t.Context(), flooder, errors.New("broken"), 0},
		} {
			for range promptRate { // uses what has come back meanwhile
				pit.prompt.allow(refused{tenant: acme.ID})
			}
			if d := took(c.ctx, c.who, c.err); d != c.want {
				t.Errorf("%s took %s, want %s", c.name, d, c.want)
			}
		}
		if d := took(t.Context(), flooder, over); d < refusalDelay/2 || d >= refusalDelay*3/2 {
			t.Errorf("without a deadline a refusal took %s, want about %s", d, refusalDelay)
		}
		if free := pit.places.Free(); free != delayedRefusals {
			t.Errorf("%d places of %d are free in the end", free, delayedRefusals)
		}
	})
}

func TestAFloodOverHTTPWithoutAValidTokenIsAnsweredLate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	calls := 0
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); calls++ { // a slow machine may need a while for more than promptRate per second
		began := time.Now()
		if a := b.fetch("wrong", "GET", "/v1/tasks", "", nil); a.code != codes.Unauthenticated {
			t.Fatalf("got %v %s", a.code, a.message)
		}
		if time.Since(began) >= refusalDelay/2 {
			return
		}
	}
	t.Errorf("%d refusals were answered at once", calls)
}
