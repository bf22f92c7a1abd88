package client

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// answeringFirst is the name of the load balancing of this package: a call goes to the server
// with the fewest unanswered calls. A server that let a try wait for longer than hedgeAfter
// without an answer counts as silent. It gets a call again after silentFor, or when it answers
// another one, or while all others are silent too.
const answeringFirst = "answering_first"

// silentFor is how long a silent server gets no call. Then one call tries it.
const silentFor = 5 * time.Second

// gRPC knows load balancing by names of the whole program.
func init() {
	balancer.Register(base.NewBalancerBuilder(answeringFirst, pickers{}, base.Config{}))
}

type pickers struct{}

// Build implements [base.PickerBuilder].
func (pickers) Build(info base.PickerBuildInfo) balancer.Picker {
	if len(info.ReadySCs) == 0 {
		return base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	p := &picker{}
	for conn := range info.ReadySCs {
		p.servers = append(p.servers, &server{conn: conn})
	}
	return p
}

// A picker chooses among the servers with a connection. A change of these makes a new picker.
type picker struct{ servers []*server }

// server is what is known of one server.
type server struct {
	conn        balancer.SubConn
	unanswered  atomic.Int64
	silentUntil atomic.Pointer[time.Time] // nil: it answers
}

// Pick implements [balancer.Picker].
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	began := time.Now()
	t, ok := info.Ctx.Value(tryKey{}).(try)
	var excluded *server
	if ok && t.other {
		excluded = t.went.Load()
	}
	s := p.best(excluded, began)
	switch {
	case s == nil:
		return balancer.PickResult{}, errNoOtherServer
	case ok && !t.other:
		t.went.Store(s)
	}
	s.unanswered.Add(1)
	return balancer.PickResult{SubConn: s.conn, Done: func(d balancer.DoneInfo) {
		s.unanswered.Add(-1)
		switch {
		case d.BytesReceived:
			s.silentUntil.Store(nil)
		case time.Since(began) >= hedgeAfter:
			until := time.Now().Add(silentFor)
			s.silentUntil.Store(&until)
		}
	}}, nil
}

// best returns the server for a call, but not the excluded one. It returns nil if there is no
// other.
func (p *picker) best(excluded *server, now time.Time) *server {
	var best *server
	var fewest int64
	first := rand.IntN(len(p.servers)) // so that equals share the calls
	for i := range p.servers {
		s := p.servers[(first+i)%len(p.servers)]
		if excluded != nil && s.conn == excluded.conn { // perhaps of an earlier picker
			continue
		}
		n := s.unanswered.Load()
		if until := s.silentUntil.Load(); until != nil && now.Before(*until) {
			n += silentWeight
		}
		if best == nil || n < fewest {
			best, fewest = s, n
		}
	}
	return best
}

// silentWeight makes each silent server worse than each other one.
const silentWeight = 1 << 32

var errNoOtherServer = status.Error(codes.Unavailable, "no other server is connected")

// A try is one of the two tries of a call. The second one goes to another server than the first.
type try struct {
	went  *atomic.Pointer[server] // where the first try went
	other bool                    // set for the second try
}

type tryKey struct{}

func withTry(ctx context.Context, t try) context.Context { return context.WithValue(ctx, tryKey{}, t) }
