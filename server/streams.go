package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/internal/requestid"
	"github.com/perceptor/perceptor/task"
)

// # Streams
//
// A stream is a call with many messages, so what holds for a call at its beginning must hold
// for each message of a stream: the credentials are checked again, since they may have ended,
// and the bytes are charged to the tenant's rate. A stream has no deadline as a whole. Each of
// its messages has one in either direction, so a caller that sends nothing, or takes nothing,
// keeps nothing for long. A stream counts as one call in progress of its tenant. When the server
// stops, a stream receives nothing more, so that it ends after what it has received.
//
// The one request of a stream to which only the server sends more is received and charged like
// that of any other call. The methods that receive more bound their streams themselves.

const (
	// streamIdle bounds the time between two messages of a caller.
	streamIdle = 2 * time.Minute
	// admitEvery is the longest time between two checks of a stream's credentials.
	admitEvery = 5 * time.Second
	// streamDebt bounds the wait of a stream for the tenant's rate of bytes.
	streamDebt = 30 * time.Second
)

var errStreamStopped = reasoned(task.ReasonServerStopping, "the server stops; open another stream")

var (
	errStreamIdle = reasoned(task.ReasonRequestSlow, "the stream was idle for too long; open another one")
	errPartsSlow  = reasoned(task.ReasonRequestSlow, "what the stream has begun to send did not arrive in time; open another one")
)

// registerStreams adds the streams of a service to its guarded description.
func (g *gate) registerStreams(guarded *grpc.ServiceDesc, desc *grpc.ServiceDesc) error {
	guarded.Streams = make([]grpc.StreamDesc, len(desc.Streams))
	for i, s := range desc.Streams {
		full := "/" + desc.ServiceName + "/" + s.StreamName
		need := access[full]
		if need == 0 {
			return fmt.Errorf("register %s: it has no scope", full)
		}
		guarded.Streams[i] = s
		guarded.Streams[i].Handler = g.guardStream(full, need, s.Handler, !s.ClientStreams)
	}
	return nil
}

// guardStream wraps the handler of a stream: it authenticates the caller before the first
// message is read. single says that the caller sends one request only.
func (g *gate) guardStream(full string, need Scopes, next grpc.StreamHandler, single bool) grpc.StreamHandler {
	return func(service any, from grpc.ServerStream) error {
		ctx := from.Context()
		c := &call{method: full, began: time.Now(), headers: authorization(ctx)}
		ctx = incoming(requestid.With(ctx, requestID(ctx)))
		s := &stream{ServerStream: from, gate: g, call: c, need: need, single: single, ctx: ctx}
		err := g.serveStream(s, service, next)
		if err != nil {
			g.tarpit.delay(ctx, c.who, err)
		}
		return err
	}
}

func (g *gate) serveStream(s *stream, service any, next grpc.StreamHandler) (err error) {
	ctx, c := s.ctx, s.call
	defer func() {
		if p := recover(); p != nil {
			err = g.panicked(ctx, c, p)
		}
		err = g.finish(ctx, c, err)
	}()
	if err := s.admit(); err != nil {
		return err
	}
	s.ctx = g.traces.begin(ctx, c)
	if c.spent, err = g.quotas.begin(s.ctx, c.method, c.who); err != nil {
		return err
	}
	defer func() { c.spent.end(ctx, nil, err) }()
	if err := g.enter(c.who.Tenant.ID); err != nil {
		return err
	}
	defer g.calls.Give(c.who.Tenant.ID, 1)
	defer c.release()
	return next(service, s)
}

// stream is a stream behind the gate. As with [grpc.ServerStream], one goroutine may receive
// while another one sends.
type stream struct {
	grpc.ServerStream
	gate *gate
	call *call
	need Scopes
	// single says that the caller sends one request only.
	single bool
	ctx    context.Context
	// left bounds the wait for what the caller is sending. 0: each message has streamIdle. It belongs to who receives.
	left time.Duration
	// who is the caller as of the last check, at admitted.
	who      atomic.Pointer[Identity]
	admitted atomic.Pointer[time.Time]
}

type streamKey struct{}

// Context implements [grpc.ServerStream]. It has the identity as of the last check.
func (s *stream) Context() context.Context {
	return context.WithValue(context.WithValue(s.ctx, streamKey{}, s), identityKey{}, s.who.Load())
}

// admittedStill checks the credentials of the stream with this context again. A method calls it
// before it stores what has waited since it was received: the tenant may be deleted meanwhile.
func admittedStill(ctx context.Context) error {
	if s, ok := ctx.Value(streamKey{}).(*stream); ok {
		return s.admit()
	}
	return nil
}

// admit checks the credentials, unless that was done just now.
func (s *stream) admit() error {
	now := time.Now()
	if at := s.admitted.Load(); at != nil && now.Sub(*at) < admitEvery {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.gate.timeout)
	defer cancel()
	who, err := s.gate.admit(ctx, s.call.method, s.need)
	if s.who.Load() == nil {
		s.call.who = who
	}
	if err != nil {
		return err
	}
	s.who.Store(who)
	s.admitted.Store(&now)
	return nil
}

// RecvMsg implements [grpc.ServerStream].
func (s *stream) RecvMsg(m any) error {
	if err := s.admit(); err != nil {
		return err
	}
	if s.single { // otherwise a tenant could leave as many of the largest size unfinished as it may have calls
		return s.gate.receive(s.ctx, s.call, m, s.ServerStream.RecvMsg)
	}
	if err := s.call.spent.payDebt(s.ctx); err != nil {
		return err
	}
	r := &received{message: m, streamed: true}
	err := s.arrives(func() error { return s.ServerStream.RecvMsg(r) })
	if err == nil {
		err = r.err
	}
	if err == nil {
		s.call.spent.streamed(proto.Size(m.(proto.Message)))
	}
	return err
}

// arrives waits for a message.
func (s *stream) arrives(receive func() error) error {
	if s.left == 0 {
		return s.within(streamIdle, errStreamIdle, s.gate.stopping, receive)
	}
	began := time.Now()
	err := s.within(min(s.left, streamIdle), errPartsSlow, s.gate.stopping, receive)
	s.left = max(s.left-time.Since(began), 1) // 1 ns: nothing is left
	return err
}

// arriveFor sets how long the callers of the stream with this context may be waited for from now on, in all; 0 ends that. The
// waits for a quota do not count. The receiving goroutine calls it.
func arriveFor(ctx context.Context, d time.Duration) {
	if s, ok := ctx.Value(streamKey{}).(*stream); ok {
		s.left = d
	}
}

// arriveLonger adds to that time.
func arriveLonger(ctx context.Context, d time.Duration) {
	if s, ok := ctx.Value(streamKey{}).(*stream); ok && s.left > 0 {
		s.left += d
	}
}

// SendMsg implements [grpc.ServerStream].
func (s *stream) SendMsg(m any) error {
	if err := s.admit(); err != nil {
		return err
	}
	if err := s.call.spent.pace(s.ctx, s.gate.stopping, m); err != nil {
		return err
	}
	s.call.spent.streamed(proto.Size(m.(proto.Message)))
	return s.within(s.gate.sendWithin, errTooSlow, nil, func() error { return s.ServerStream.SendMsg(m) })
}

// within runs f beside the call, because the library's functions have no deadline: they end
// with the stream, and so with the call. It gives f up when stop is closed; nil never is.
func (s *stream) within(d time.Duration, late error, stop <-chan struct{}, f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				s.gate.log.LogAttrs(s.ctx, slog.LevelError, "stream panicked", append(s.call.attrs(), slog.Any("err", p))...)
				done <- errInternal
			}
		}()
		done <- f()
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return late
	case <-stop:
		return errStreamStopped
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// streamed adds the bytes of a message to what the streams of the tenant owe.
func (s *spending) streamed(bytes int) {
	if s != nil && s.bytes != nil {
		s.use.stocks[task.QuotaBytes].borrow(*s.bytes, bytes)
	}
}

// payDebt waits until the tenant's rate of bytes has made up for the messages before.
func (s *spending) payDebt(ctx context.Context) error {
	if s == nil || s.bytes == nil {
		return nil
	}
	return s.of.payDebt(ctx, s.tenant, s.use, task.QuotaBytes, streamDebt)
}
