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

// Clock moves the virtual clock of taskd dev --virtual-clock, so that a test
// need not wait for real time. Create it with [NewClock]. It is safe for
// concurrent use. If the installation uses the real clock, every method returns
// [ErrFailedPrecondition].
type Clock struct {
	conn *grpc.ClientConn
	api  perceptorv1.ClockServiceClient
}

// NewClock returns the clock of the installation at cfg.Address. cfg.Token is
// an admin token, such as the one that taskd dev prints. NewClock does not wait
// for a connection.
func NewClock(cfg Config) (*Clock, error) {
	_, conn, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	return &Clock{conn: conn, api: perceptorv1.NewClockServiceClient(conn)}, nil
}

// Close closes the connection.
func (c *Clock) Close() error { return c.conn.Close() }

// Now returns the time of the clock.
func (c *Clock) Now(ctx context.Context) (time.Time, error) {
	clock, err := c.api.GetClock(ctx, &perceptorv1.GetClockRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return time.Time{}, clockError(ctx, "GetClock", err)
	}
	return goTime(clock.GetTime()), nil
}

// ClockWait says how a move of the clock treats runs without a result. With the
// zero value the move waits 10 s at each instant, then fails and names the
// runs.
type ClockWait struct {
	// Settle is how long the move waits at one instant without progress, up to
	// 60 s. Default (0): 10 s.
	Settle time.Duration
	// LeaveOpen continues after that time without the results of open runs, and
	// lists them in [ClockMoved].Open. So tests can let a run reach its
	// ack_timeout.
	LeaveOpen bool
	// NoWait waits until due runs are published, but not for their results.
	NoWait bool
}

func (w ClockWait) proto() *perceptorv1.ClockWait {
	return &perceptorv1.ClockWait{Settle: protoDuration(w.Settle), LeaveOpen: w.LeaveOpen, NoWait: w.NoWait}
}

// ClockMoved is the result of a move of the clock.
type ClockMoved struct {
	// Now is the time of the clock after the move.
	Now time.Time
	// Instants counts the instants at which something was due. Deliveries
	// counts the runs that were delivered, including retries and redeliveries.
	Instants, Deliveries int64
	// Open has the run ids of runs that have no result yet.
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

// Advance moves the clock forward by d, stopping at each instant at which
// something is due. At each instant it waits until every run is delivered and
// has a result, so a listener must be running. After an error the clock stays
// where it is, and ClockMoved says what happened until then.
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

// Set moves the clock to a later instant in one step and waits there. Runs that
// became due in between fire late, as after an outage.
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
