package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// Clock moves the virtual clock of taskd dev --virtual-clock, so that a test need
// not wait for what it tests. Make it with [NewClock]; it is safe for concurrent
// use. Against an installation that runs by the real clock every method fails with
// [ErrFailedPrecondition].
type Clock struct {
	conn *grpc.ClientConn
	api  perceptorv1.ClockServiceClient
}

// NewClock returns the clock of the installation at cfg.Address. cfg.Token is an
// admin token, such as taskd dev shows. It does not wait for a connection.
func NewClock(cfg Config) (*Clock, error) {
	_, conn, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	return &Clock{conn: conn, api: perceptorv1.NewClockServiceClient(conn)}, nil
}

// Close ends the connection.
func (c *Clock) Close() error { return c.conn.Close() }

// Now returns what the clock shows.
func (c *Clock) Now(ctx context.Context) (time.Time, error) {
	clock, err := c.api.GetClock(ctx, &perceptorv1.GetClockRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return time.Time{}, clockError(ctx, "GetClock", err)
	}
	return goTime(clock.GetTime()), nil
}

// ClockWait says how a move of the clock deals with runs that nobody answers. The
// zero value waits 10 s at each instant and then fails, naming the runs.
type ClockWait struct {
	// Settle is how long one instant may take without progress: up to 60 s.
	// Default (0): 10 s.
	Settle time.Duration
	// LeaveOpen goes on without the results of runs that are still open then; they
	// are in [ClockMoved].Open. So a handler that stays silent reaches its ack
	// timeout.
	LeaveOpen bool
	// NoWait waits for no results at all, only until what is due is published.
	NoWait bool
}

func (w ClockWait) proto() *perceptorv1.ClockWait {
	return &perceptorv1.ClockWait{Settle: protoDuration(w.Settle), LeaveOpen: w.LeaveOpen, NoWait: w.NoWait}
}

// ClockMoved is what a move of the clock has done.
type ClockMoved struct {
	// Now is what the clock shows.
	Now time.Time
	// Instants counts those at which something was due, Deliveries the runs that
	// were delivered, retries and redeliveries with them.
	Instants, Deliveries int64
	// Open has the run ids of runs that were left open.
	Open []string
}

func (m *ClockMoved) add(a *perceptorv1.AdvanceClockResponse) {
	m.Now = goTime(a.GetTime())
	m.Instants += a.GetInstantCount()
	m.Deliveries += a.GetDeliveryCount()
	for _, r := range a.GetOpenRuns() {
		m.Open = append(m.Open, r.GetRunId())
	}
}

// Advance moves the clock on by d, from one instant at which something is due to
// the next. At each, every run is delivered and its result waited for before the
// clock goes on; so a listener must be running. After an error the clock stays
// where it is; what was done until then is in ClockMoved.
func (c *Clock) Advance(ctx context.Context, d time.Duration, wait ...ClockWait) (ClockMoved, error) {
	q := &perceptorv1.AdvanceClockRequest{To: &perceptorv1.AdvanceClockRequest_Duration{Duration: durationpb.New(d)}}
	for _, w := range wait {
		q.Wait = w.proto()
	}
	var m ClockMoved
	for {
		a, err := c.api.AdvanceClock(ctx, q, grpc.WaitForReady(true))
		if err != nil {
			return m, clockError(ctx, "AdvanceClock", err)
		}
		m.add(a)
		if a.GetReached() {
			return m, nil
		}
		q.To = &perceptorv1.AdvanceClockRequest_Time{Time: a.GetTargetTime()}
	}
}

// Set sets the clock to a later instant at once, and waits there. What became due
// in between is late, as after an outage.
func (c *Clock) Set(ctx context.Context, t time.Time, wait ...ClockWait) (ClockMoved, error) {
	q := &perceptorv1.SetClockRequest{Time: protoTime(t)}
	for _, w := range wait {
		q.Wait = w.proto()
	}
	var m ClockMoved
	a, err := c.api.SetClock(ctx, q, grpc.WaitForReady(true))
	if err != nil {
		return m, clockError(ctx, "SetClock", err)
	}
	m.add(a)
	return m, nil
}

func clockError(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("perceptor: %s: %w", op, ctx.Err())
	}
	return errorOf(op, status.Convert(err))
}
