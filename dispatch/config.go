package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Store is the part of the shards' storage that a dispatcher uses. Every method is one whole
// step. Calls for one database come one at a time, except Acquire, Unpublished, the Peek
// after it, and Release. Calls for different databases run concurrently.
type Store interface {
	// Acquire raises the epochs of the shards, all of one database, and waits
	// for transactions of older owners.
	Acquire(ctx context.Context, database int, shards []task.Shard, owner task.Owner) ([]task.Ownership, error)

	// Unpublished returns the outbox entries of owned shards, read by a statement that
	// starts after Acquire has committed. It omits entries whose run is no longer open, but
	// their part lists the shards all the same. It reads the rows after the given one: about
	// as many as have that number of runs, and at least one. next is the row after which to
	// continue, or 0 if there are no more.
	Unpublished(ctx context.Context, database int, owned []task.Ownership, after int64, runs int) (batches []task.OutboxBatch, next int64, err error)

	// Claim is one transaction: assert ownership, acknowledge published outbox parts, claim,
	// write the outbox row, commit. An error that matches [task.ErrOutcomeUnknown] means
	// that the commit may have happened, or may still happen.
	Claim(ctx context.Context, req task.ClaimRequest) (task.Claim, error)

	// AcknowledgeOutbox removes published parts in a transaction of its own. If any shard is
	// lost, it removes no part. Repeating the call does no harm.
	AcknowledgeOutbox(ctx context.Context, database int, owned []task.Ownership, parts []task.OutboxPart) (lost []task.Shard, err error)

	// Peek counts the rows that are due soon, and finds the rows that are due first.
	Peek(ctx context.Context, database int, req task.PeekRequest) (task.Peek, error)

	// Settings returns the settings of tenants with limits or weights. A claim names their
	// version.
	Settings(ctx context.Context, database int) (task.Settings, error)

	// TakeTokens takes tokens of tenants with a dispatch rate, all of one home database, from
	// the buckets that all databases and dispatchers share, after it has returned unused ones.
	// The grants are in the order of the requests.
	TakeTokens(ctx context.Context, home int, requests []task.TokenRequest) ([]task.Tokens, error)

	// AcquireCapLease acquires the lease of a kind with a cap and counts the kind's open runs
	// in all databases. The epoch is 0 while another dispatcher has the lease. Claims under
	// an older lease fail from then on. After an error the lease may have been acquired;
	// ReleaseCapLease ends it. share says that each database can have its part of the cap.
	AcquireCapLease(ctx context.Context, of task.TenantKind, limit int) (task.CapLease, error)
	ReleaseCapLease(ctx context.Context, of task.TenantKind, epoch int64, share bool) error

	// LendCapPart moves half of what one database has left of its part of the cap to another
	// database, and returns how much that is.
	LendCapPart(ctx context.Context, of task.TenantKind, from, to int) (n int, err error)

	// GiveUp makes unpublishable runs dead and acknowledges parts, in one transaction that
	// asserts ownership. If any shard is lost, it does nothing and returns the lost shards.
	GiveUp(ctx context.Context, database int, owned []task.Ownership, pubs []task.Publication, reason task.DeadReason, message string, parts []task.OutboxPart) (lost []task.Shard, err error)

	// NoteTopicFailures tells callers who ask why a task has not fired that the topics of
	// these tenants, in ascending order, fail now.
	NoteTopicFailures(ctx context.Context, database int, tenants []int32) error

	// Release clears the owner's name and address, but not the epoch. It is best effort.
	Release(ctx context.Context, database int, owned []task.Ownership) error
}

// Publisher puts deliveries on Kafka.
type Publisher interface {
	// Publish sends each publication once and reports its outcome to settle: nil only if all
	// in-sync replicas have acknowledged it. After an error the record may be stored or not,
	// unless the error implements [Unpublishable] or [Obsolete]. Publish calls settle for every index
	// exactly once, for groups with the same outcome, possibly from several goroutines, and
	// never after it has returned.
	Publish(ctx context.Context, pubs []task.Publication, settle func(index []int, err error))

	// Ping returns nil if at least one broker answers. It is called while records are not
	// acknowledged, to learn whether only their topics fail.
	Ping(ctx context.Context) error
}

// Unpublishable is implemented by errors of records that can never be published.
type Unpublishable interface {
	error
	// Unpublishable reports whether no retry can publish the record.
	Unpublishable() bool
}

// Obsolete is implemented by errors of records that need not be published any more, because
// their tenant was deleted.
type Obsolete interface {
	error
	// Obsolete reports whether the record is to be dropped.
	Obsolete() bool
}

// Config configures a dispatcher. The zero value of each field except Owner stands for the
// default.
type Config struct {
	// Owner identifies this process in the owner rows.
	Owner task.Owner

	// ClaimShare trades lateness for CPU: it is the share of time that the claims of all
	// databases together may take. The default is 1; with 2, claims come twice as often,
	// within MinTick and MaxTick.
	ClaimShare float64
	// ClaimAhead is how far beyond the database's clock claims reach. Rows that become due
	// within it are claimed, and their records are delayed in memory until they are due. A
	// database is claimed from again when half of ClaimAhead has passed, or up to three quarters
	// while claims take little time. It is between 0 and 2 s. The default is 0: only due rows
	// are claimed.
	ClaimAhead time.Duration
	// MinTick and MaxTick bound the interval between two claims of one database that were
	// not full. The defaults are 5 ms and 100 ms.
	MinTick, MaxTick time.Duration
	// PeekEvery is how often a database that has fired recently is peeked at while no row is
	// known to be due and no hints arrive; the default is 250 ms. MaxSleep is the same for idle
	// databases and while hints arrive, and at least that of databases that have been idle for a
	// minute while hints arrive, which is 5 s; the default is 1 s.
	PeekEvery, MaxSleep time.Duration
	// SweepEvery is the interval between claims without a lower bound; the default is 5 s.
	// It is six times as long in a database that has been idle for a minute.
	SweepEvery time.Duration
	// Grace is how far the lower bound stays behind the last claim: the statement timeout of
	// adds and a second. The default is 6 s.
	Grace time.Duration
	// MaxRows bounds the rows of one claim. The default is 5,000. It is at most an eighth of
	// MaxRecords.
	MaxRows int
	// ClaimConcurrency bounds concurrent transactions, over all databases. The default is 4.
	ClaimConcurrency int
	// StoreTimeout bounds each transaction. The default is 10 s.
	StoreTimeout time.Duration
	// TokenTimeout bounds a request for tokens of tenants with a dispatch rate. While their home database
	// does not answer, the dispatcher grants itself its part of the rates by its own clock. The default is 500 ms.
	TokenTimeout time.Duration

	// MaxRecords and MaxBytes bound the records that wait for their confirmation, or are
	// delayed until they are due, over all databases. The defaults are 50,000 and 64 MiB.
	// Claims of records that are larger than those before may exceed them: the size is known only afterwards.
	MaxRecords, MaxBytes int
	// CallRecords and CallBytes bound one call of the publisher. The defaults are 5,000 and
	// 8 MiB.
	CallRecords, CallBytes int
	// PublishEvery is the interval between two small calls. The default is 5 ms. It grows up
	// to eightfold when calls take long, but only to twice for the foreground while a tenant
	// is backlogged. After a pause the first call begins immediately.
	PublishEvery time.Duration
	// PublishAhead is how long before they are due records that were claimed ahead may be published, if
	// the listeners of their tenants hold them until then. So calls are few, and no run waits for
	// others. It is at most half a second; the default is 0: records are published when they are due.
	PublishAhead time.Duration
	// Holds reports whether all listeners of a tenant hold runs. It is called with a lock and answers from
	// memory. The default is that none do.
	Holds func(tenant int32) bool
	// PublishConcurrency bounds the concurrent calls for healthy tenants, and separately
	// those for failing tenants. The default is 4. A call for tenants in the foreground counts for
	// at most 150 ms; up to 64 more may take longer.
	PublishConcurrency int
	// PublishTimeout bounds one call. The default is 15 s.
	PublishTimeout time.Duration
	// BreakerAfter is how many calls in a row must fail for a tenant before claims defer its
	// rows. The default is 5.
	BreakerAfter int

	// AcknowledgeAfter is how long a published part waits to be acknowledged by a claim.
	// Then it gets a transaction of its own. It is at most 1 s; the default is 500 ms.
	AcknowledgeAfter time.Duration
	// ReleaseTimeout bounds the wait for confirmations on a hand-over. The default is 3 s.
	ReleaseTimeout time.Duration

	// Tracer, if set, makes the traces of deliveries.
	Tracer Tracer
	// Lost is called with shards that this process has lost without a call of Release. It is
	// called without locks and may call Acquire from another goroutine.
	Lost func(shards []task.Shard)
	// Failpoint is for tests. It is called at each [Point], with the database or -1. It may
	// block. If it returns an error, the dispatcher stops as if killed, and Run returns the
	// error.
	Failpoint func(ctx context.Context, at Point, database int) error
}

// Point is a step of the protocol at which a test may stop the dispatcher.
type Point string

// The points between the steps of the protocol.
const (
	AfterCommit       Point = "after_commit"       // a claim has committed, no record of it is published
	BeforePublish     Point = "before_publish"     // a call of the publisher begins
	AfterPublish      Point = "after_publish"      // records are confirmed, but not yet counted
	BeforeAcknowledge Point = "before_acknowledge" // a transaction that acknowledges parts begins
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
	or(&c.TokenTimeout, 500*time.Millisecond)
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
	if c.Holds == nil {
		c.Holds = func(int32) bool { return false }
	}
	if c.Lost == nil {
		c.Lost = func([]task.Shard) {}
	}
	return c
}

// maxAhead bounds ClaimAhead. A crash may delay due runs by that time.
const maxAhead = 2 * time.Second

// maxPublishAhead bounds PublishAhead. Listeners hold no record for longer than a second.
const maxPublishAhead = 500 * time.Millisecond

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
	check(c.PublishAhead >= 0 && c.PublishAhead <= maxPublishAhead, "publish_ahead %s is not between 0 and %s", c.PublishAhead, maxPublishAhead)
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
	}{{"store_timeout", c.StoreTimeout}, {"token_timeout", c.TokenTimeout}, {"publish_timeout", c.PublishTimeout}, {"release_timeout", c.ReleaseTimeout}, {"publish_every", c.PublishEvery}} {
		check(d.value > 0, "%s %s is not positive", d.name, d.value)
	}
	return errors.Join(faults...)
}
