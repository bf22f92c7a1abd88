package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// hedgeAfter is how long a try may be without an answer before another server is asked.
const hedgeAfter = time.Second

// hedge makes one try of a call. If there is no answer after hedgeAfter, it asks another server
// too: a server may hang, and all calls can be repeated. The first success counts. The budget
// bounds these second tries, so that slow servers get little more load than without them
// (Dean and Barroso, The Tail at Scale, 2013).
func hedge(b *budget) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		message, ok := reply.(proto.Message)
		if !ok {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		b.call()
		kind := message.ProtoReflect().Type() // message belongs to the first try from here on
		ctx, cancel := context.WithCancel(ctx)
		h := &hedged{ends: make(chan end, 2)}
		ask := func(into proto.Message, other bool) {
			h.asked++
			go func() {
				h.ends <- end{into, invoke(withTry(ctx, try{&h.went, other}), method, req, into, cc, opts...)}
			}()
		}
		ask(message, false)
		e := h.first(ctx, message, func() {
			if b.take() {
				h.both = true
				ask(kind.New().Interface(), true)
			}
		})
		cancel()
		h.drain() // they end at once, and use req and reply no longer
		if e.err == nil && e.into != message {
			proto.Reset(message)
			proto.Merge(message, e.into)
		}
		return e.err
	}
}

// hedged is a call with up to two tries.
type hedged struct {
	went  atomic.Pointer[server]
	ends  chan end
	asked int  // tries that have not ended
	both  bool // set if another server is asked, or was
}

type end struct {
	into proto.Message
	err  error
}

// first returns the end that counts: the first success; or else a refusal, for which it waits for the other try
// up to hedgeAfter, because that one may have done what this one finds impossible now; or else the end of the
// try into message, the first one, unless that says that nothing was done: the other try may
// have done it. Until another server is asked it calls again after each hedgeAfter: no other one may
// have been connected, or the budget may have been empty.
func (h *hedged) first(ctx context.Context, message proto.Message, again func()) end {
	late := time.NewTimer(hedgeAfter)
	defer late.Stop()
	var failed, refused end
	for {
		select {
		case <-late.C:
			if refused.err != nil {
				return refused
			}
			if ctx.Err() == nil && !h.both {
				again()
			}
			late.Reset(hedgeAfter)
		case e := <-h.ends:
			h.asked--
			switch {
			case e.err == nil:
				return e
			case !retriable(e.err) && refused.err == nil:
				refused = e
				late.Reset(hedgeAfter)
			case errors.Is(e.err, errNoOtherServer):
				h.both = false
			case failed.err == nil, nothingDone(failed.err), e.into == message && !nothingDone(e.err):
				failed = e
			}
			if h.asked == 0 {
				if refused.err != nil {
					return refused
				}
				return failed
			}
		}
	}
}

func (h *hedged) drain() {
	for ; h.asked > 0; h.asked-- {
		<-h.ends
	}
}

// A budget bounds how much load repeated tries add. Each call earns share tries, up to budgetMost,
// and budgetFree per second are free. A try that repeats a call costs one. A retry that succeeds
// earns it back: then the service has recovered, and others that wait may follow. Its methods
// may be called concurrently.
type budget struct {
	share float64

	mu   sync.Mutex
	left float64
	at   time.Time
}

// The budgets of a client.
const (
	hedgeShare = 0.1
	retryShare = 0.3
	budgetMost = 20
	budgetFree = 2 // per second
)

func newBudget(share float64) *budget {
	return &budget{share: share, left: budgetMost, at: time.Now()}
}

// earn adds n tries.
func (b *budget) earn(n float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = min(b.left+n, budgetMost)
}

// call records a call.
func (b *budget) call() { b.earn(b.share) }

// take reports whether a try may be repeated.
func (b *budget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.left = min(b.left+now.Sub(b.at).Seconds()*budgetFree, budgetMost)
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
