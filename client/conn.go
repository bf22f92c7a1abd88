package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/ctxtime"
)

const (
	// tryTimeout bounds one try of a call, so that a server that hangs does not
	// use up the time of the whole call.
	tryTimeout = 10 * time.Second
	// A server that is asked something and sends nothing for aliveEvery is asked whether it is
	// alive. The connection ends if there is no answer within aliveTimeout. Until then hardly a
	// call goes to a server that hangs (see answeringFirst), and those that do ask another one
	// too (see hedge).
	aliveEvery   = 15 * time.Second // servers refuse less than 10 s
	aliveTimeout = 5 * time.Second
	// The delay between two tries.
	minBackoff = 50 * time.Millisecond
	maxBackoff = 3 * time.Second
	// maxAnswerBytes bounds an answer: 1,000 tasks with params of the maximum
	// size.
	maxAnswerBytes = 320 << 20
)

func dial(cfg Config, extra ...grpc.DialOption) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		creds = credentials.NewTLS(cfg.TLS)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithPerRPCCredentials(bearer{tokenSource(&cfg), !cfg.Insecure && !onLoopback(cfg.Address)}),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"` + answeringFirst + `":{}}]}`),
		grpc.WithChainUnaryInterceptor(hedge(newBudget(hedgeShare))),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: aliveEvery, Timeout: aliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
	target := "dns:///" + cfg.Address
	if list := splitAddresses(cfg.Address); len(list) > 1 {
		fixed := manual.NewBuilderWithScheme("perceptor")
		var state resolver.State
		for _, a := range list {
			state.Addresses = append(state.Addresses, resolver.Address{Addr: a, ServerName: hostOf(a)})
		}
		fixed.InitialState(state)
		opts = append(opts, grpc.WithResolvers(fixed))
		target = "perceptor:///taskd"
	}
	return grpc.NewClient(target, slices.Concat(opts, cfg.DialOptions, extra)...)
}

func hostOf(address string) string { return address[:strings.LastIndexByte(address, ':')] }

// onLoopback reports whether all addresses are this machine's loopback. A name other than
// localhost is not: others may decide what it stands for.
func onLoopback(addresses string) bool {
	for _, a := range splitAddresses(addresses) {
		host, _, err := net.SplitHostPort(a)
		if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

// retriable reports whether a call may succeed when it is repeated.
func retriable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Unknown:
		return true
	case codes.ResourceExhausted:
		return !oversized(status.Convert(err))
	}
	return false
}

// retryDelay returns the delay after the given number of failed tries, counted
// from 1.
func retryDelay(tries int) time.Duration {
	d := maxBackoff
	if tries < 8 {
		d = min(d, minBackoff<<max(0, tries-1))
	}
	return d/2 + rand.N(d/2)
}

// delayOf returns the delay before a call is repeated that failed with err. After
// RESOURCE_EXHAUSTED that is the delay that the answer names, and a part of it more, so that
// those who were refused together do not come back together.
func delayOf(err error, tries int) time.Duration {
	d := retryDelay(tries)
	if asked := retryAfter(err); asked > 0 {
		d = max(d, asked+rand.N(asked/4+minBackoff))
	}
	return d
}

// retryAfter returns the delay that a RESOURCE_EXHAUSTED names, or 0.
func retryAfter(err error) time.Duration {
	st := status.Convert(err)
	if st.Code() != codes.ResourceExhausted {
		return 0
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return min(max(info.GetRetryDelay().AsDuration(), 0), time.Hour)
		}
	}
	return 0
}

// mayRetry waits before a call is repeated. It returns false if that is not worthwhile: the
// error is final, ctx ends, or the answer names a delay that is longer than the time left.
// Without such a delay it also waits until the budget allows a try.
func (c *Client) mayRetry(ctx context.Context, err error, tries int) bool {
	if !retriable(err) {
		return false
	}
	c.warn(err, tries)
	delay := delayOf(err, tries)
	if retryAfter(err) > 0 {
		if end, ok := ctx.Deadline(); ok && time.Until(end) < delay {
			return false
		}
		return ctxtime.Sleep(ctx, delay)
	}
	for ctxtime.Sleep(ctx, delay) {
		if c.retries.take() {
			return true
		}
		delay = retryDelay(tries)
	}
	return false
}

// warnAfter is the number of tries, in about half a second, after which repeated calls are worth a warning.
const warnAfter = 4

// warn tells that calls wait because the service does not answer, or something else does.
func (c *Client) warn(err error, tries int) {
	st := status.Convert(err)
	if tries < warnAfter || st.Code() == codes.ResourceExhausted {
		return
	}
	if suppressed, ok := c.silent.allow(); ok {
		message := "the service does not answer; trying again"
		if strings.Contains(st.Message(), "looked like an HTTP/1.1 header") {
			message = "the address does not answer gRPC; is it that of the HTTP API? trying again"
		}
		c.cfg.Logger.Warn("perceptor: "+message, "address", c.cfg.Address, "suppressed", suppressed, "err", st.Message())
	}
}

// call makes one idempotent call. It retries retriable errors until ctx ends or
// CallTimeout has passed.
func call[Q, A any](ctx context.Context, c *Client, op string, f func(context.Context, Q, ...grpc.CallOption) (A, error), q Q) (A, error) {
	var none A
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	c.retries.call()
	for tries := 1; ; tries++ {
		try, end := context.WithTimeout(carryTrace(ctx), tryTimeout)
		a, err := f(try, q)
		end()
		if err == nil {
			if tries > 1 {
				c.retries.earn(1)
			}
			return a, nil
		}
		if outer.Err() != nil {
			return none, fmt.Errorf("perceptor: %s: %w", op, outer.Err())
		}
		if c.closed() {
			return none, ErrClosed
		}
		if !c.mayRetry(ctx, err, tries) {
			if outer.Err() != nil {
				return none, fmt.Errorf("perceptor: %s: %w (the last answer was: %s)", op, outer.Err(), status.Convert(err).Message())
			}
			return none, errorOf(op, status.Convert(err))
		}
	}
}
