package control

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control/sql"
	"github.com/perceptor/perceptor/task"
)

const (
	// readTimeout bounds a query of one database.
	readTimeout = time.Second
	// writeTimeout bounds a change of one database.
	writeTimeout = 3 * time.Second
	// syncEvery is the time between two Syncs of [Store.Run].
	syncEvery = 30 * time.Second
	// purgeRounds is how many Syncs of [Store.Run] lie between two purges of tokens: an hour.
	purgeRounds = 120
	// syncPage is the number of rows that a Sync reads at once.
	syncPage = 1000
)

// Scopes says which calls a token allows: a bit for each scope, 1 << its number in the API.
// The numbers are stored; this package gives them no meaning.
type Scopes int32

// Scopes of the tokens that programs of the installation create for themselves.
const (
	TenantScope Scopes = 1 << 1 // the tasks and runs of one tenant
	AdminScope  Scopes = 1 << 2 // the installation
)

// Tenant is a customer of the system.
type Tenant struct {
	ID int32
	// UID is a UUID. Tokens belong to it, so that no token is another tenant's, even if
	// databases that have lost commits gave two tenants the same ID.
	UID  string
	Name string
	// ParamsBytes is the limit on the params of a task.
	ParamsBytes int
	// Retention applies to tasks that do not set their own.
	Retention time.Duration
	// History says which events of runs are recorded.
	History task.HistoryLevel
	// Rates are the tenant's limits and weight.
	Rates task.Rates
	// Keys are the tenant's keys, by id; [Store.CreateTenant] draws the first.
	Keys      []Key
	CreatedAt task.Instant
	// Version numbers the changes of the settings, from 1. It leaps when the database that
	// decides may have lost changes.
	Version int64
}

// TenantChange has the new values of a tenant's settings. nil leaves a setting unchanged.
type TenantChange struct {
	ParamsBytes *int
	Retention   *time.Duration
	History     *task.HistoryLevel
	Rates       task.RatesChange
}

// Token is a credential without its secret.
type Token struct {
	ID     string
	Scopes Scopes
	// Tenant is the name of the tenant to which the scopes apply; "": the installation.
	Tenant      string
	Description string
	// ExpiresAt and RevokedAt are [task.Never] if the token does not expire or is not
	// revoked. A RevokedAt in the future is the end of the overlap of a rotation.
	ExpiresAt task.Instant
	CreatedAt task.Instant
	RevokedAt task.Instant
	// LastUsedAt is up to a minute old. [task.Never]: it was not used, or the use is lost.
	LastUsedAt task.Instant
}

// Identity is the holder of a secret.
type Identity struct {
	TokenID string
	Scopes  Scopes
	// Tenant is the zero value if the scopes are those of the installation.
	Tenant Tenant
	// Left is the time until the token ends; 0: it does not end.
	Left time.Duration
}

// Store accesses the copies in the 16 databases. It is safe for concurrent use. Its errors
// are of type [task.Error].
type Store struct {
	cluster *store.Cluster
	log     *slog.Logger
	// suspect databases have failed since they were last compared with the others.
	suspect [task.Databases]atomic.Bool
	// trusted is the incarnation in which a database was last compared with the others, or
	// in which it was read first.
	trusted [task.Databases]atomic.Int64
	// provisioner may be nil.
	provisioner Provisioner
	// deleter may be nil.
	deleter func(ctx context.Context, tenant int32) error
	// conflicts counts the differences that [Store.Sync] could not explain by a missed change.
	conflicts atomic.Int64
	// ids are the ids of all tokens; see Exists.
	ids   atomic.Pointer[map[string]struct{}]
	uses  uses
	clock clock
}

// New returns the store of a cluster. log nil: [slog.Default].
func New(cluster *store.Cluster, log *slog.Logger) *Store {
	if log == nil {
		log = slog.Default()
	}
	return &Store{cluster: cluster, log: log}
}

// Now returns what the clock of the databases shows, by which keys start and end. Until a database has told it with
// a tenant, it is the clock of the process.
func (s *Store) Now() task.Instant { return s.clock.now() }

// ErrTaken is returned by [Provisioner.ProvisionNew].
var ErrTaken = errors.New("exists already")

// A Provisioner creates and removes what tenants need outside of the databases. Its methods
// may be called again after a failure, and concurrently.
type Provisioner interface {
	// ProvisionNew creates what a tenant needs whose ID nobody has had. It returns [ErrTaken] if something
	// exists under the names of the tenant, which is then that of somebody else. After any error it has removed what it has
	// made, as far as it can.
	ProvisionNew(ctx context.Context, t Tenant) error
	// Provision creates what the tenant and its keys need, unless it exists.
	Provision(ctx context.Context, t Tenant) error
	// ProvisionKey creates what a new key of a tenant needs that has been provisioned, unless it exists.
	ProvisionKey(ctx context.Context, t Tenant, k Key) error
	// Revoke removes what one key of the tenant needed.
	Revoke(ctx context.Context, t Tenant, k Key) error
	// Remove removes everything of the tenant.
	Remove(ctx context.Context, t Tenant) error
}

// SetProvisioner sets what creates and removes the tenants' share of other systems. It must
// be called before any other method.
func (s *Store) SetProvisioner(p Provisioner) { s.provisioner = p }

// SetDeleter sets what removes the data of a tenant that is being deleted, or begins to. [Store.Run] calls it again and
// again until the tenant is gone. It must be called before any other method.
func (s *Store) SetDeleter(f func(ctx context.Context, tenant int32) error) { s.deleter = f }

// read asks one database after another, suspects last, until one answers.
func read[T any](ctx context.Context, s *Store, ask func(context.Context, *pgxpool.Pool) (T, error)) (T, error) {
	var answer T
	var failed []error
	for _, suspects := range []bool{false, true} {
		for d := range task.Databases {
			if s.isSuspect(d) != suspects {
				continue
			}
			var err error
			answer, err = askOne(ctx, s, d, ask)
			if !suspects && s.isSuspect(d) { // the connection has found that it may have lost commits
				continue
			}
			if err == nil || !isAway(err) {
				return answer, err
			}
			if ctx.Err() != nil {
				return answer, away(ctx.Err(), "reading tenants and tokens took too long")
			}
			s.suspect[d].Store(true)
			failed = append(failed, err)
		}
	}
	return answer, away(errors.Join(failed...), "no database answers")
}

func askOne[T any](ctx context.Context, s *Store, d int, ask func(context.Context, *pgxpool.Pool) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	answer, err := ask(ctx, s.cluster.Pool(d))
	return answer, domainError(err)
}

// isSuspect reports whether a database may lack changes that the others have.
func (s *Store) isSuspect(d int) bool {
	now := s.cluster.Incarnation(d)
	s.trusted[d].CompareAndSwap(0, now)
	return s.suspect[d].Load() || s.trusted[d].Load() != now
}

// decide runs a change in database 0, which decides. If that may have lost commits, it
// first gets them back from the copies.
func (s *Store) decide(ctx context.Context, change func(context.Context, pgx.Tx) error) error {
	compared := func(ctx context.Context, tx pgx.Tx) error {
		if err := mustBeCompared(ctx, tx); err != nil {
			return err
		}
		return change(ctx, tx)
	}
	err := s.change(ctx, 0, compared)
	if !errors.Is(err, errNotCompared) {
		return err
	}
	if err := s.Sync(ctx); err != nil {
		s.log.WarnContext(ctx, "tenants and tokens of a database that was restored cannot be compared with all copies", "err", err)
	}
	return s.change(ctx, 0, compared)
}

// errNotCompared says that database 0 may lack changes which its copies have.
var errNotCompared = task.Errorf(task.ReasonDatabaseUnavailable,
	"database 0 was restored or has failed over, and some databases with copies of its tenants do not answer; try again")

func mustBeCompared(ctx context.Context, tx pgx.Tx) error {
	var compared bool
	var incarnation int64
	err := sql.Compared.QueryRow(ctx, tx).Scan(&compared, &incarnation)
	if err == nil && !compared {
		return errNotCompared
	}
	return err
}

// Conflicts returns how many differences between databases Sync has found that no missed
// change explains. They come from databases that have lost commits.
func (s *Store) Conflicts() int64 { return s.conflicts.Load() }

// change runs a change in one database, as one transaction.
func (s *Store) change(ctx context.Context, d int, change func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := domainError(pgx.BeginFunc(ctx, s.cluster.Pool(d), func(tx pgx.Tx) error { return change(ctx, tx) }))
	if err != nil && isAway(err) {
		s.suspect[d].Store(true)
	}
	return err
}

// copyOut copies a change that database 0 has stored to all others. It continues after the
// caller has left, so that no change stays incomplete.
func (s *Store) copyOut(ctx context.Context, what string, put func(ctx context.Context, d int, tx pgx.Tx) error) error {
	ctx = context.WithoutCancel(ctx)
	err := s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		if d == 0 {
			return nil
		}
		return s.change(ctx, d, func(ctx context.Context, tx pgx.Tx) error { return put(ctx, d, tx) })
	})
	if err != nil {
		// Some calls would do something else if they were repeated, so this one does not ask for that.
		return task.Errorf(task.ReasonDatabaseUnavailable, "%s, but not in all databases yet; it completes without another call when they recover", what).CausedBy(err)
	}
	return nil
}
