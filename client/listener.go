package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// ListenerConfig says how a listener works. The zero value is good for most.
type ListenerConfig struct {
	// Workers is how many handlers run at the same time. Default: 64.
	Workers int
	// MaxPending is how many records are held in memory at most: waiting, running,
	// or with a result that is not answered. Results are answered within half a
	// second when the service is busy, so this divided by that bounds how many runs
	// a listener does in a second. Default: 32,768; at least Workers.
	MaxPending int
	// MaxPendingBytes bounds the params of those records; each partition may hold
	// one record more. Default: 64 MiB.
	MaxPendingBytes int
	// Memory is how many settled runs are remembered to recognise duplicates.
	// Default: 100,000.
	Memory int
	// StopGrace is how long running handlers may go on when the listener stops;
	// then their contexts end. Default: 30 s.
	StopGrace time.Duration
	// NoHeartbeats turns off, for kinds without [Heartbeats], the heartbeats that the listener sends by itself for
	// handlers that run long; see [Run.Heartbeat]. Then a run that takes longer
	// than its ack_timeout is delivered again, and one of a NonBlocking task holds
	// up the offsets of its partition.
	NoHeartbeats bool
	// Check says which runs are asked about before their handler is called: their
	// task may have been cancelled or edited since they were published. Default:
	// [CheckLate].
	Check CheckPolicy
	// Events are called when something happens.
	Events Events
	// Logger is used for what needs attention. Default: slog.Default().
	Logger *slog.Logger

	// kafka are the times of the consumer group, parkFor how long a run waits for a
	// slot of its kind; tests make them short.
	kafka   groupTimes
	parkFor time.Duration
}

const (
	defaultWorkers    = 64
	defaultMaxPending = 32_768
	defaultMaxBytes   = 64 << 20
	defaultMemory     = 100_000
	defaultStopGrace  = 30 * time.Second
)

// Listener calls handlers when their runs are due. Make it with
// [Client.NewListener], give it handlers, then call Run once.
type Listener struct {
	c      *Client
	cfg    ListenerConfig
	log    *slog.Logger
	holder uint64
	ran    atomic.Bool

	kinds      map[string]*kind
	middleware []Middleware

	engine *engine
	poison logLimit
}

// NewListener returns a listener without handlers. Each has its own identity as
// a holder of leases: make one per process.
func (c *Client) NewListener(cfg ListenerConfig) (*Listener, error) {
	var faults []error
	for name, v := range map[string]int{"Workers": cfg.Workers, "MaxPending": cfg.MaxPending, "MaxPendingBytes": cfg.MaxPendingBytes, "Memory": cfg.Memory} {
		if v < 0 {
			faults = append(faults, fmt.Errorf("%s %d is negative", name, v))
		}
	}
	if cfg.StopGrace < 0 {
		faults = append(faults, fmt.Errorf("StopGrace %s is negative", cfg.StopGrace))
	}
	setDefault(&cfg.Workers, defaultWorkers)
	setDefault(&cfg.MaxPending, max(defaultMaxPending, cfg.Workers))
	setDefault(&cfg.MaxPendingBytes, defaultMaxBytes)
	setDefault(&cfg.Memory, defaultMemory)
	setDefault(&cfg.StopGrace, defaultStopGrace)
	setDefault(&cfg.Logger, slog.Default())
	setDefault(&cfg.parkFor, parkFor)
	cfg.kafka.complete()
	if cfg.Check > CheckNever {
		faults = append(faults, fmt.Errorf("Check %d is not one of CheckLate, CheckAlways, CheckNever", cfg.Check))
	}
	if cfg.MaxPending < cfg.Workers {
		faults = append(faults, fmt.Errorf("MaxPending %d is less than Workers %d", cfg.MaxPending, cfg.Workers))
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("perceptor: listener configuration: %w", errors.Join(faults...))
	}
	l := &Listener{c: c, cfg: cfg, log: cfg.Logger, holder: rand.Uint64() | 1, kinds: map[string]*kind{}}
	l.engine = newEngine(l)
	return l, nil
}

// Run joins the consumer group and calls handlers until ctx ends. Then it stops
// fetching, lets running handlers finish for at most StopGrace, reports their
// results, commits offsets, leaves the group and returns nil. It waits for
// services that are away; it returns an error only when it cannot begin: the
// token is refused, or it was called before.
func (l *Listener) Run(ctx context.Context) error {
	if l.ran.Swap(true) {
		return errors.New("perceptor: a listener runs only once")
	}
	for _, k := range l.kinds {
		k.call = l.chain(k)
		l.engine.limited = l.engine.limited || k.limit != nil
	}
	d, err := l.delivery(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	l.log.Info("listener started", "tenant", d.GetTenant(), "topic", d.GetTopic(), "group", d.GetGroup())
	// What sends ends last; the consumer keeps its place in the group until all
	// that runs is settled and committed.
	sendCtx, stopSending := context.WithCancel(context.WithoutCancel(ctx))
	groupCtx, leave := context.WithCancel(context.WithoutCancel(ctx))
	var senders sync.WaitGroup
	l.engine.runSenders(sendCtx, &senders)
	consumer := newConsumer(l, d)
	left := make(chan error, 1)
	go func() { left <- consumer.run(ctx, groupCtx) }()
	select {
	case <-ctx.Done():
		l.engine.drain(l.cfg.StopGrace)
		leave()
		err = <-left
	case err = <-left: // it could not begin
		leave()
	}
	stopSending()
	senders.Wait()
	l.engine.wait()
	l.log.Info("listener stopped", "tenant", d.GetTenant())
	return err
}

// delivery asks where the runs are published, until it is answered.
func (l *Listener) delivery(ctx context.Context) (*perceptorv1.Delivery, error) {
	for tries := 1; ; tries++ {
		try, cancel := context.WithTimeout(ctx, tryTimeout)
		asked := time.Now()
		d, err := call(try, l.c, "GetDelivery", l.c.runs.GetDelivery, &perceptorv1.GetDeliveryRequest{})
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, nil
		case err == nil:
			l.engine.setClock(d.GetNow(), asked)
			return l.completeDelivery(d)
		case !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrResourceExhausted):
			return nil, err
		}
		l.log.Warn("the service does not answer; trying again", "address", l.c.cfg.Address, "err", err)
		sleep(ctx, retryDelay(tries))
	}
}

func (l *Listener) completeDelivery(d *perceptorv1.Delivery) (*perceptorv1.Delivery, error) {
	if len(l.c.cfg.Kafka.Brokers) > 0 {
		d.Brokers = l.c.cfg.Kafka.Brokers
	}
	if d.GetTopic() == "" || d.GetGroup() == "" || len(d.GetBrokers()) == 0 {
		return nil, fmt.Errorf("perceptor: GetDelivery: topic %q, group %q, brokers %q: one is missing", d.GetTopic(), d.GetGroup(), d.GetBrokers())
	}
	return d, nil
}

// logLimit lets a message through at most once per interval, with the number of
// those it held back.
type logLimit struct {
	mu   sync.Mutex
	last time.Time
	held int
}

const logInterval = 10 * time.Second

func (l *logLimit) allow() (held int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.last.IsZero() || now.Sub(l.last) >= logInterval {
		held, l.held, l.last = l.held, 0, now
		return held, true
	}
	l.held++
	return 0, false
}
