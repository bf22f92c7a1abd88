package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Store is what a dispatcher needs of the shards. Every method is one whole
// step; calls for one database come one at a time but for Acquire, Unpublished,
// the Peek after it, and Release, and calls for different databases run concurrently.
type Store interface {
	// Acquire raises the epochs of the shards, all of one database, and waits
	// for transactions of older owners.
	Acquire(ctx context.Context, database int, shards []task.Shard, owner task.Owner) ([]task.Ownership, error)

	// Unpublished returns what the outbox holds for owned shards, read by a
	// statement that starts after Acquire has committed. Entries whose run is no
	// longer open are left out, but their part lists the shards all the same.
	Unpublished(ctx context.Context, database int, owned []task.Ownership) ([]task.OutboxBatch, error)

	// Claim is one transaction: assert ownership, acknowledge published
	// outbox parts, claim, write the outbox row, commit. An error that matches [task.ErrOutcomeUnknown] means that the
	// commit may have happened, or may yet.
	Claim(ctx context.Context, req task.ClaimRequest) (task.Claim, error)

	// AcknowledgeOutbox removes published parts in a transaction of its own. If any shard
	// is lost nothing was removed. Repeating it does no harm.
	AcknowledgeOutbox(ctx context.Context, database int, owned []task.Ownership, parts []task.OutboxPart) (lost []task.Shard, err error)

	// Peek counts what is due soon, and finds what is due first.
	Peek(ctx context.Context, database int, req task.PeekRequest) (task.Peek, error)

	// Settings returns what the database knows of tenants with limits or weights.
	// A claim names the version by which it is made.
	Settings(ctx context.Context, database int) (task.Settings, error)

	// TakeTokens takes up to want tokens of a tenant with a dispatch rate from the bucket
	// that all databases and dispatchers share, after it has given back unused ones.
	TakeTokens(ctx context.Context, tenant int32, want, unused int) (task.Tokens, error)

	// AcquireCapLease takes the lease of a capped kind and counts its open runs in all
	// databases; epoch is 0 while another dispatcher has it. Claims of an older lease fail
	// from then on. After an error the lease may be taken: ReleaseCapLease ends it.
	AcquireCapLease(ctx context.Context, of task.TenantKind) (epoch int64, open int, err error)
	ReleaseCapLease(ctx context.Context, of task.TenantKind, epoch int64) error

	// GiveUp makes runs dead that can never be published and takes parts off, in
	// one transaction that asserts ownership.
	GiveUp(ctx context.Context, database int, owned []task.Ownership, pubs []task.Publication, reason task.DeadReason, message string, parts []task.OutboxPart) error

	// Release clears the owner's name and address, not the epoch: best effort.
	Release(ctx context.Context, database int, owned []task.Ownership) error
}

// Publisher puts deliveries on Kafka.
type Publisher interface {
	// Publish sends each publication once and tells settle what became of it:
	// nil only when all in-sync replicas have acknowledged it. An error says
	// nothing about whether it was stored, except one that implements
	// [Unpublishable]. settle is called for every index exactly once, for groups
	// with the same outcome, possibly from several goroutines, and not any more
	// when Publish has returned.
	Publish(ctx context.Context, pubs []task.Publication, settle func(index []int, err error))
}

// Unpublishable is implemented by errors of records that can never be published.
type Unpublishable interface {
	error
	// Unpublishable is true for a record that no retry can help.
	Unpublishable() bool
}

// Config says how a dispatcher works. The zero value of each field but Owner
// stands for the default.
type Config struct {
	// Owner is what the owner rows say of this process.
	Owner task.Owner

	// ClaimShare is the one knob between lateness and CPU: how much of the time
	// the claims of all databases together may take. 1 by default; 2 claims twice
	// as often, between MinTick and MaxTick.
	ClaimShare float64
	// ClaimAhead is how far beyond the database's clock claims go: what becomes due
	// within it is claimed and delayed in memory until it is due. A database is
	// claimed from again when half of that has passed. 0 to 2 s; 0 by default:
	// only what is due is claimed.
	ClaimAhead time.Duration
	// MinTick and MaxTick bound the distance of two claims of one database that
	// were not full. 5 ms and 100 ms.
	MinTick, MaxTick time.Duration
	// PeekEvery is how often a database that has fired lately is looked at, when
	// nothing is known to be due; 250 ms. MaxSleep is the same for idle ones; 1 s.
	PeekEvery, MaxSleep time.Duration
	// SweepEvery is the distance of claims without a lower bound; 5 s. It is six
	// times that where nothing has happened for a minute.
	SweepEvery time.Duration
	// Grace is how far behind the last claim the lower bound stays: the adders'
	// statement timeout and a second; 6 s.
	Grace time.Duration
	// MaxRows bounds the rows of one claim; 5,000, and an eighth of MaxRecords.
	MaxRows int
	// ClaimConcurrency bounds transactions under way, over all databases; 4.
	ClaimConcurrency int
	// StoreTimeout bounds each transaction; 10 s.
	StoreTimeout time.Duration

	// MaxRecords and MaxBytes bound what waits for its confirmation, or is delayed
	// until it is due, over all databases; 50,000 and 64 MiB. One batch may go
	// beyond.
	MaxRecords, MaxBytes int
	// CallRecords and CallBytes bound one call of the publisher; 5,000, 8 MiB.
	CallRecords, CallBytes int
	// PublishEvery is the distance of two calls while they are small; 5 ms. It
	// grows up to eight times when calls take long, and to twice for the
	// foreground while a tenant is backlogged. After a pause the first one goes at once.
	PublishEvery time.Duration
	// PublishConcurrency bounds the calls for healthy tenants, and again those
	// for failing ones; 4.
	PublishConcurrency int
	// PublishTimeout bounds one call; 15 s.
	PublishTimeout time.Duration
	// BreakerAfter is how many calls in a row must fail for a tenant before its
	// rows are deferred; 5.
	BreakerAfter int

	// AcknowledgeAfter is how long a published part waits for a claim to acknowledge
	// it before that gets a transaction of its own; 1 s at most, 500 ms.
	AcknowledgeAfter time.Duration
	// ReleaseTimeout bounds the wait for acknowledgements on a hand-over; 3 s.
	ReleaseTimeout time.Duration

	// Lost is told of shards that this process no longer has, without being
	// asked to let go of them. It is called without locks and may call Acquire
	// from another goroutine.
	Lost func(shards []task.Shard)
	// Failpoint is for tests: it is called at each [Point], with the database
	// or -1. It may block. If it returns an error the dispatcher ends there and
	// then as if killed, and Run returns the error.
	Failpoint func(ctx context.Context, at Point, database int) error
}

// Point is a place where a process may die.
type Point string

// The points between the steps of the protocol.
const (
	AfterCommit       Point = "after_commit"   // of a claim, before anything is published
	BeforePublish     Point = "before_publish" // a call of the publisher begins
	AfterPublish      Point = "after_publish"  // it has ended, and is not yet counted
	BeforeAcknowledge Point = "before_acknowledge"
)

// withDefaults returns c with its zero fields filled in.
func (c Config) withDefaults() Config {
	or(&c.ClaimShare, 1)
	or(&c.MinTick, 5*time.Millisecond)
	or(&c.MaxTick, max(100*time.Millisecond, c.MinTick))
	or(&c.PeekEvery, 250*time.Millisecond)
	or(&c.MaxSleep, max(time.Second, c.PeekEvery))
	or(&c.SweepEvery, 5*time.Second)
	or(&c.Grace, 6*time.Second)
	or(&c.MaxRows, 5000)
	or(&c.ClaimConcurrency, 4)
	or(&c.StoreTimeout, 10*time.Second)
	or(&c.MaxRecords, 50_000)
	or(&c.MaxBytes, 64<<20)
	or(&c.CallRecords, 5000)
	or(&c.CallBytes, 8<<20)
	or(&c.PublishEvery, 5*time.Millisecond)
	or(&c.PublishConcurrency, 4)
	or(&c.PublishTimeout, 15*time.Second)
	or(&c.BreakerAfter, 5)
	or(&c.AcknowledgeAfter, 500*time.Millisecond)
	or(&c.ReleaseTimeout, 3*time.Second)
	c.MaxRows = min(c.MaxRows, max(c.MaxRecords/8, 1))
	if c.Lost == nil {
		c.Lost = func([]task.Shard) {}
	}
	return c
}

// maxAhead bounds ClaimAhead: so long a crash may hold up what is due.
const maxAhead = 2 * time.Second

func or[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate returns all faults of the configuration, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(c.Owner.Name != "", "owner name is missing")
	check(c.ClaimShare > 0 && c.ClaimShare <= 16, "claim_share %v is not between 0 and 16", c.ClaimShare)
	check(c.ClaimAhead >= 0 && c.ClaimAhead <= maxAhead, "claim_ahead %s is not between 0 and %s", c.ClaimAhead, maxAhead)
	check(c.MinTick >= time.Millisecond, "min_tick %s is below 1ms", c.MinTick)
	check(c.MaxTick >= c.MinTick, "max_tick %s is below min_tick %s", c.MaxTick, c.MinTick)
	check(c.PeekEvery >= c.MinTick, "peek_every %s is below min_tick %s", c.PeekEvery, c.MinTick)
	check(c.MaxSleep >= c.PeekEvery, "max_sleep %s is below peek_every %s", c.MaxSleep, c.PeekEvery)
	check(c.SweepEvery >= c.MaxTick, "sweep_every %s is below max_tick %s", c.SweepEvery, c.MaxTick)
	check(c.Grace >= 0, "grace %s is negative", c.Grace)
	check(c.AcknowledgeAfter > 0 && c.AcknowledgeAfter <= time.Second, "acknowledge_after %s is not between 0 and 1s", c.AcknowledgeAfter)
	for _, n := range []struct {
		name  string
		value int
	}{
		{"max_rows", c.MaxRows}, {"claim_concurrency", c.ClaimConcurrency}, {"max_records", c.MaxRecords},
		{"max_bytes", c.MaxBytes}, {"call_records", c.CallRecords}, {"call_bytes", c.CallBytes},
		{"publish_concurrency", c.PublishConcurrency}, {"breaker_after", c.BreakerAfter},
	} {
		check(n.value > 0, "%s %d is not positive", n.name, n.value)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"store_timeout", c.StoreTimeout}, {"publish_timeout", c.PublishTimeout}, {"release_timeout", c.ReleaseTimeout}, {"publish_every", c.PublishEvery}} {
		check(d.value > 0, "%s %s is not positive", d.name, d.value)
	}
	return errors.Join(faults...)
}
