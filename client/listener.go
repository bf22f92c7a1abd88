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

	"github.com/perceptor/perceptor/internal/ctxtime"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// ListenerConfig configures a listener. The zero value suits most services.
type ListenerConfig struct {
	// Name and Version describe the program in the history of runs, beside the
	// name of the host. Default: the name of the executable file, and the version
	// with which it was built.
	Name, Version string
	// Workers is the number of handlers that run at the same time. Default: 64; at most 1,000,000.
	Workers int
	// MaxPending is the maximum number of records in memory: waiting,
	// executing, or with a result that is not answered yet. A busy service
	// answers results within half a second, so twice this number bounds the
	// runs per second of a listener. Default: 32,768; at least Workers.
	MaxPending int
	// MaxPendingBytes is the maximum size of the params of those records, in
	// bytes. Each partition may exceed it by one record. Default: 64 MiB.
	MaxPendingBytes int
	// RememberedRuns is the number of settled runs that the listener remembers at
	// least, to recognise duplicates; it remembers up to twice as many. Default: 100,000.
	RememberedRuns int
	// StopGrace is how long running handlers may go on after the listener was
	// stopped. Then their contexts end. Default: 30 s.
	StopGrace time.Duration
	// NoHeartbeats turns off automatic heartbeats for long-running handlers,
	// except for kinds with [Heartbeats]; see [Run.Heartbeat]. Without
	// heartbeats a run that takes longer than its ack_timeout is delivered
	// again, and such a run of a NonBlocking task blocks the offsets of its
	// partition.
	NoHeartbeats bool
	// Check selects the runs for which the listener asks the service, before it
	// calls the handler, whether the task was cancelled or edited. Default:
	// [CheckLate].
	Check CheckPolicy
	// Events are called on events in the listener.
	Events Events
	// Logger gets messages that need attention. Handlers that fail or panic and
	// kinds without a handler are among them, each kind at most every 10 s.
	// Default: slog.Default().
	Logger *slog.Logger

	// kafka has the times of the consumer group; parkFor is how long a run may
	// wait for a slot of its kind. Tests shorten them.
	kafka   groupTimes
	parkFor time.Duration
}

const (
	defaultWorkers        = 64
	maxWorkers            = 1_000_000 // each has a place in a queue
	defaultMaxPending     = 32_768
	defaultMaxBytes       = 64 << 20
	defaultRememberedRuns = 100_000
	defaultStopGrace      = 30 * time.Second
)

// Listener calls handlers when their runs are due. Create it with
// [Client.NewListener], register handlers, then call Run once.
type Listener struct {
	c        *Client
	cfg      ListenerConfig
	log      *slog.Logger
	troubles *troubles
	holder   uint64
	ran      atomic.Bool

	kinds      map[string]*kind
	middleware []Middleware

	engine         *engine
	keys           *keyring
	poison, forged logLimit
}

// NewListener returns a listener without handlers. Each listener is a separate
// holder of leases. One per process is enough.
func (c *Client) NewListener(cfg ListenerConfig) (*Listener, error) {
	var faults []error
	for name, v := range map[string]int{"Workers": cfg.Workers, "MaxPending": cfg.MaxPending, "MaxPendingBytes": cfg.MaxPendingBytes, "RememberedRuns": cfg.RememberedRuns} {
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
	setDefault(&cfg.RememberedRuns, defaultRememberedRuns)
	setDefault(&cfg.StopGrace, defaultStopGrace)
	setDefault(&cfg.Logger, slog.Default())
	setDefault(&cfg.parkFor, parkFor)
	cfg.kafka.complete()
	if cfg.Check > CheckNever {
		faults = append(faults, fmt.Errorf("Check %d is not one of CheckLate, CheckAlways, CheckNever", cfg.Check))
	}
	if cfg.Workers > maxWorkers {
		faults = append(faults, fmt.Errorf("Workers %d is above %d", cfg.Workers, maxWorkers))
	}
	if cfg.MaxPending < cfg.Workers {
		faults = append(faults, fmt.Errorf("MaxPending %d is less than Workers %d", cfg.MaxPending, cfg.Workers))
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("perceptor: listener configuration: %w", errors.Join(faults...))
	}
	l := &Listener{c: c, cfg: cfg, log: cfg.Logger, troubles: newTroubles(cfg.Logger), holder: rand.Uint64() | 1, kinds: map[string]*kind{}}
	l.engine = newEngine(l)
	l.keys = newKeyring(func(ctx context.Context) (*perceptorv1.Delivery, error) {
		asked := time.Now()
		d, err := c.runs.GetDelivery(ctx, &perceptorv1.GetDeliveryRequest{HoldsRuns: true})
		if err == nil {
			l.engine.setClock(d.GetNow(), asked) // the first answer may have taken long
		}
		return d, err
	})
	return l, nil
}

// Run joins the consumer group and calls handlers until ctx ends. Then it stops
// fetching, waits up to StopGrace for running handlers, reports their results,
// commits offsets, leaves the group and returns nil. It waits for services that
// are unavailable. It returns an error only if it cannot start: the token is
// refused, no kind has a handler, or Run was called before.
func (l *Listener) Run(ctx context.Context) error {
	if l.ran.Swap(true) {
		return errors.New("perceptor: Listener.Run was called twice")
	}
	if len(l.kinds) == 0 { // it would take runs from those that can handle them
		return errors.New("perceptor: the listener has no handler: call Handle before Run")
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
	// The senders stop last. The consumer stays in the group until all runs
	// that have begun are settled and committed.
	sendCtx, stopSending := context.WithCancel(context.WithoutCancel(ctx))
	groupCtx, leave := context.WithCancel(context.WithoutCancel(ctx))
	var senders sync.WaitGroup
	l.engine.runSenders(sendCtx, &senders)
	senders.Go(func() { l.keys.run(sendCtx) })
	consumer := newConsumer(l, d)
	left := make(chan error, 1)
	go func() { left <- consumer.run(ctx, groupCtx) }()
	select {
	case <-ctx.Done():
		l.engine.drain(l.cfg.StopGrace)
		leave()
		err = <-left
	case err = <-left: // it could not start
		leave()
	}
	stopSending()
	senders.Wait()
	l.engine.wait()
	l.log.Info("listener stopped", "tenant", d.GetTenant())
	return err
}

// delivery asks the service where runs are published. It retries until it has
// an answer.
func (l *Listener) delivery(ctx context.Context) (*perceptorv1.Delivery, error) {
	for tries := 1; ; tries++ {
		try, cancel := context.WithTimeout(ctx, tryTimeout)
		asked := time.Now()
		d, err := call(try, l.c, "GetDelivery", l.c.runs.GetDelivery, &perceptorv1.GetDeliveryRequest{HoldsRuns: true})
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, nil
		case err == nil:
			l.engine.setClock(d.GetNow(), asked)
			l.keys.set(d, asked)
			return l.completeDelivery(d)
		case !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrResourceExhausted):
			return nil, err
		}
		l.log.Warn("the service does not answer; retrying", "address", l.c.cfg.Address, "err", err)
		ctxtime.Sleep(ctx, retryDelay(tries))
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

// logLimit lets a message pass at most once per logInterval, together with the
// number of messages that it suppressed.
type logLimit struct {
	mu         sync.Mutex
	last       time.Time
	suppressed int
}

const logInterval = 10 * time.Second

func (l *logLimit) allow() (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.last.IsZero() || now.Sub(l.last) >= logInterval {
		suppressed, l.suppressed, l.last = l.suppressed, 0, now
		return suppressed, true
	}
	l.suppressed++
	return 0, false
}
