package server

import (
	"context"
	"net/http"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Tasks stores tasks. All methods may be called concurrently. They return a
// [task.NotFound] error if the tenant has no task with the given id.
type Tasks interface {
	// Add stores the specs of one request and returns one item for each, in
	// their order. After an error either nothing was stored or the outcome is
	// unknown for all. [task.AlreadyExists]: the RequestID was used with
	// another Hash.
	Add(ctx context.Context, r task.AddRequest) (task.AddResult, error)
	// Get returns an unfinished task, or a finished one within its retention.
	Get(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error)
	// TaskOfKey returns the id of the task with an idempotency_key.
	TaskOfKey(ctx context.Context, tenant int32, key string) (task.ID, error)
	// List returns the page of tasks after a cursor.
	List(ctx context.Context, q task.ListQuery) (task.ListPage, error)
	// ListCost estimates the number of unfinished tasks that a listing reads,
	// from its range of due instants and its state; living is the tenant's
	// number of unfinished tasks.
	ListCost(ctx context.Context, q *task.ListQuery, living int64) (int64, error)
	// Cancel ends a task and returns it. Cancelling a finished task has no
	// effect.
	Cancel(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error)
	// Pause and Resume set the flag and return the task.
	// [task.FailedPrecondition]: the task is finished.
	Pause(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error)
	Resume(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error)
	// Update changes the terms of a task and returns it. [task.Aborted]: the
	// task does not have the version that the edit requires.
	// [task.FailedPrecondition]: the task has ended, or its state forbids the
	// edit.
	Update(ctx context.Context, tenant int32, id task.ID, e task.Edit) (*task.Snapshot, error)
	// Trigger opens a run now and returns its number. replayed reports that an
	// earlier call with the same requestID had opened it.
	// [task.FailedPrecondition]: the task may have no further run.
	Trigger(ctx context.Context, tenant int32, id task.ID, requestID string) (seq int64, replayed bool, err error)
	// PurgeTask deletes a finished task. [task.FailedPrecondition]: it is not
	// finished.
	PurgeTask(ctx context.Context, tenant int32, id task.ID) error
	// Explain returns the reasons why a task does not fire, and up to n of its
	// next instants. An unknown task is a reason, not an error.
	Explain(ctx context.Context, tenant int32, id task.ID, n int) (task.Explanation, error)
	// Now returns the time of the clock that tasks follow.
	Now(ctx context.Context) (task.Instant, error)
	// Counts returns the exact counts of a tenant's tasks by type.
	Counts(ctx context.Context, tenant int32) ([]task.TypeCounts, error)
	// History returns up to limit events of a task after a cursor, newest
	// first; none for an unknown task.
	History(ctx context.Context, tenant int32, id task.ID, after task.HistoryCursor, limit int) ([]task.RunEvent, error)
}

// Exports reads all that a tenant has of something, in pages: it passes each one to visit, and
// stops at visit's first error. Between two pages it holds nothing in the databases. All
// methods may be called concurrently.
type Exports interface {
	// Export passes the tasks that a query selects, each once.
	Export(ctx context.Context, q *task.ExportQuery, visit func(*task.ExportPage) error) error
	// ExportDead passes the tenant's dead runs after a position.
	ExportDead(ctx context.Context, tenant int32, f *task.DeadFilter, after task.RunCursor, visit func([]*task.DeadLetter, task.RunCursor) error) error
	// ExportEvents passes the events of the tenant's runs after a position.
	ExportEvents(ctx context.Context, tenant int32, after task.RunCursor, visit func([]task.RunEvent, task.RunCursor) error) error
}

// Runs processes the reports of listeners. Every method answers each entry, in
// the given order. After an error the outcome of all entries is unknown.
// Entries are well formed. All methods may be called concurrently.
type Runs interface {
	Start(ctx context.Context, tenant int32, h task.Holder, as []task.Seen) ([]task.Reply, error)
	// Check says which attempts should still be handled. It changes nothing.
	Check(ctx context.Context, tenant int32, as []task.Seen) ([]task.Reply, error)
	Heartbeat(ctx context.Context, tenant int32, h task.Holder, as []task.Attempt) ([]task.Reply, error)
	// HandBack also gets the timelines of the attempts, nil if one is not known, for the
	// history.
	HandBack(ctx context.Context, tenant int32, h task.Holder, as []task.Attempt, timelines []*task.Timeline) ([]task.Reply, error)
	// Report stores results. paramsBytes is the tenant's limit for params after
	// a patch; an entry that exceeds it is answered with [task.Invalid].
	Report(ctx context.Context, tenant int32, paramsBytes int, rs []task.Report) ([]task.Reply, error)
}

// Admin stores tenants and tokens. All methods may be called concurrently.
type Admin interface {
	// CreateTenant stores a tenant and creates its topic. The store sets ID,
	// Topic and CreatedAt. [task.AlreadyExists]: the name is in use.
	CreateTenant(ctx context.Context, t Tenant) (Tenant, error)
	// Tenant returns a tenant by name, or [task.NotFound].
	Tenant(ctx context.Context, name string) (Tenant, error)
	// Tenants returns up to limit tenants whose names follow after, by name.
	Tenants(ctx context.Context, after string, limit int) ([]Tenant, error)
	// UpdateTenant changes settings of a tenant and returns it, or
	// [task.NotFound]. After it has returned no claim uses the old settings.
	UpdateTenant(ctx context.Context, name string, c TenantChange) (Tenant, error)
	// DeleteTenant starts to delete a tenant, or returns the progress.
	// [task.NotFound]: there is no such tenant.
	DeleteTenant(ctx context.Context, name string) (*task.BulkOperation, error)
	// CreateToken stores a token and returns it with its secret. The store sets
	// ID and CreatedAt, and ExpiresAt if it is [task.Never] and tokens have a
	// maximum lifetime. [task.NotFound]: there is no such tenant.
	// [task.InvalidArgument]: the expiry is in the past or too far ahead.
	CreateToken(ctx context.Context, t Token) (created Token, secret string, err error)
	// Tokens returns up to limit tokens whose ids follow after, by id. If
	// tenant is not empty, it returns only tokens of that tenant.
	Tokens(ctx context.Context, tenant, after string, limit int) ([]Token, error)
	// RotateToken creates a token like another one, which is revoked after the
	// overlap. [task.NotFound]: the tenant has no such token.
	// [task.FailedPrecondition]: it has ended.
	RotateToken(ctx context.Context, r Rotation) (successor, replaced Token, secret string, err error)
	// RotateKey gives a tenant a new key. The others that have no end yet end after
	// overlap. It returns the valid keys, or [task.NotFound].
	// [task.FailedPrecondition]: the tenant has too many.
	RotateKey(ctx context.Context, name string, overlap time.Duration) ([]TenantKey, error)
	// RevokeToken revokes a token and returns it. Revoking it again has no
	// effect. [task.NotFound]: there is no such token, or it is not one of the
	// tenant; tenant 0 stands for all tokens.
	RevokeToken(ctx context.Context, id string, tenant int32) (Token, error)
}

// Assignment says which dispatcher owns which shard, and changes the strategy
// by which shards are distributed. All methods may be called concurrently.
// [task.NotFound]: no dispatcher has ever registered. [task.InvalidArgument]:
// the new strategy is invalid, or the stored one cannot be read.
// [task.Unavailable]: the coordinator does not answer.
type Assignment interface {
	Assignment(ctx context.Context) (*perceptorv1.Assignment, error)
	// UpdateStrategy returns the stored strategy.
	UpdateStrategy(ctx context.Context, r *perceptorv1.UpdateStrategyRequest) (*perceptorv1.Strategy, error)
}

// Epochs ends what owners of shards believe. It may be called concurrently.
type Epochs interface {
	// RaiseEpochs raises the epoch of every item of a database, and returns the new ones.
	RaiseEpochs(ctx context.Context, database int) ([]task.Ownership, error)
}

// Authenticator identifies the owner of a secret. It returns [task.NotFound]
// for a secret that is unknown, expired or revoked. If the error has a method
// Refusal() string, that says in one word why, for metrics. It may be called
// concurrently.
type Authenticator interface {
	Authenticate(ctx context.Context, secret string) (Identity, error)
}

// Identity identifies the caller. The gate sets it; it is immutable.
type Identity struct {
	// TokenID is the public name of the credentials, for logs: the id of a token,
	// "oidc:" and a subject, or "cert:" and the name in a certificate.
	TokenID string
	Scopes  Scopes
	// Tenant is the tenant to which the scopes apply. Its ID is 0 if they apply to
	// the installation.
	Tenant Tenant
	// Left is the time until the credentials end; 0: they do not end.
	Left time.Duration
	// inspects says that Tenant is not the caller's own.
	inspects bool
}

// Tenant is a customer of the system.
type Tenant struct {
	ID   int32
	Name string
	// ParamsBytes is the limit on the params of a task.
	ParamsBytes int
	// Retention applies to tasks that have none of their own.
	Retention time.Duration
	// History selects the events of runs that are recorded.
	History task.HistoryLevel
	// Rates are the limits of the tenant.
	Rates task.Rates
	Topic string
	// Keys sign the tenant's records, by their number. Only GetDelivery shows the
	// secrets.
	Keys      []TenantKey
	CreatedAt task.Instant
}

// TenantKey signs records of a tenant.
type TenantKey struct {
	ID     int32
	Secret []byte
	// Login is the login to Kafka that belongs to the key. Its fields are empty if
	// tenants have none.
	Login Login
	// StartsAt is when it begins to be used, and ExpiresAt when it becomes invalid;
	// [task.Never]: that is not decided.
	StartsAt, ExpiresAt task.Instant
}

// Login is a login to Kafka.
type Login struct{ Mechanism, Username, Password string }

// TenantChange has the new values of a tenant's settings; nil: unchanged.
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
	// Tenant is the tenant's name; "": the scopes apply to the installation.
	Tenant      string
	Description string
	// The instants are [task.Never] if there is no such instant. RevokedAt may lie
	// in the future: a successor replaces the token then.
	ExpiresAt  task.Instant
	CreatedAt  task.Instant
	RevokedAt  task.Instant
	LastUsedAt task.Instant
}

// Rotation says how to replace a token.
type Rotation struct {
	ID string
	// Tenant must be the token's, unless it is 0.
	Tenant int32
	// Overlap is how long the replaced token still works.
	Overlap time.Duration
	// ExpiresAt is the expiry of the successor, or [task.Never] for the default.
	ExpiresAt task.Instant
}

// Delivery describes where listeners read a tenant's runs.
type Delivery struct {
	Topic   string
	Group   string
	Brokers []string
	// Keys are those of the tenant.
	Keys []TenantKey
}

// Deps are the dependencies of a [Server]. All are required unless stated
// otherwise.
type Deps struct {
	Tasks Tasks
	Runs  Runs
	Dead  DeadLetters
	Bulk  Bulk
	// Imports may be nil: the service of imports does not exist.
	Imports Imports
	Admin   Admin
	// Calendars may be nil: no task can name calendars.
	Calendars Calendars
	Auth      Authenticator
	// Delivery returns where the runs of a tenant are published. It must not
	// block.
	Delivery func(Tenant) Delivery
	// Now returns what the clock of the databases shows, by which keys of tenants start and end. It must
	// not block. nil: the clock of the process.
	Now func() task.Instant
	// Quotas may be nil: no quota is enforced.
	Quotas Quotas
	// Processes returns the number of processes that share the rates of tenants.
	// It must not block. nil: this is the only one.
	Processes func() int
	// Lateness returns how late all dispatchers publish what is due. It must not block. nil: adds
	// do not yield to claims.
	Lateness func() task.Lateness
	// Assignment may be nil: this installation has no coordinator, or this
	// process does not know it.
	Assignment Assignment
	Epochs     Epochs
	// Clock may be nil: the installation uses the real clock.
	Clock Clock
	// Certificates may be nil: no certificate is bound to an identity.
	Certificates Certificates
	// Revocations may be nil: a revocation takes effect within 5 s.
	Revocations Revocations
	// Inspections may be nil: uses of [InspectScope] are only logged.
	Inspections Inspections
	// Audit may be nil: nothing is recorded.
	Audit Audit
	// Monitoring may be nil: no figures are stored.
	Monitoring Monitoring
	// Exports may be nil: nothing can be exported.
	Exports Exports
	// Console may be nil: there is none. It returns the handler of the paths under
	// [ConsolePath]. The connection calls the API in process, through the gate: a
	// call needs the credentials of the user in its outgoing metadata, and the
	// context of the HTTP request for which it is made.
	Console func(api grpc.ClientConnInterface) http.Handler
}

// Events are callbacks for metrics and tests. Each may be nil, may be called
// concurrently, and must not block.
type Events struct {
	// Called: a call ended with a code after d. Method is "Service/Method".
	Called func(method string, code codes.Code, d time.Duration)
	// Added: n tasks of a type were stored. Replayed adds are not counted.
	Added func(tenant *Tenant, t task.Type, n int)
	// OverQuota: a call was refused because a quota of the tenant is used up. n
	// is the number of tasks that it would have added, else 1.
	OverQuota func(tenant string, q task.Quota, n int)
	// QuotaAlone: a rate of a tenant could not be read, so this process admits
	// its own share.
	QuotaAlone func(q task.Quota)
	// Limited: a call or a connection was refused because its tenant or its
	// source has used up its share. Limit is the reason of the answer, or
	// CONNECTIONS.
	Limited func(limit string)
	// Refused: n tasks of an add broke a rule.
	Refused func(tenant string, n int)
	// Yielded: an add of n tasks was admitted while due tasks were published late. It has waited
	// for d.
	Yielded func(tenant string, n int, d time.Duration)
	// Imported: the lines of a chunk of an import were stored, or rejected.
	Imported func(tenant string, lines task.ImportSum)
	// ImportPaused: the import of a tenant was told to pause for d.
	ImportPaused func(tenant string, why task.PauseReason, d time.Duration)
	// Replied: n entries of a call about runs got a code. Op is "start",
	// "heartbeat", "report" or "hand_back".
	Replied func(tenant *Tenant, op string, c task.Code, n int)
	// Reported: a result of a task of type t was accepted; t 0: the store did not say. handled is
	// how long the handler took; 0: the listener did not say.
	Reported func(tenant *Tenant, t task.Type, o task.Outcome, handled time.Duration)
	// Unhandled: a run was handed back because its kind has no handler.
	Unhandled func(tenant *Tenant, kind string)
	// LoginRefused: credentials were refused, for a reason of one word.
	LoginRefused func(why string)
}

func (e *Events) called(method string, code codes.Code, d time.Duration) {
	if e.Called != nil {
		e.Called(method, code, d)
	}
}

func (e *Events) loginRefused(why string) {
	if e.LoginRefused != nil {
		e.LoginRefused(why)
	}
}

func (e *Events) added(tenant *Tenant, t task.Type, n int) {
	if e.Added != nil && n > 0 {
		e.Added(tenant, t, n)
	}
}

func (e *Events) refused(tenant string, n int) {
	if e.Refused != nil && n > 0 {
		e.Refused(tenant, n)
	}
}

func (e *Events) yielded(tenant string, n int, d time.Duration) {
	if e.Yielded != nil {
		e.Yielded(tenant, n, d)
	}
}

func (e *Events) overQuota(tenant string, q task.Quota, n int) {
	if e.OverQuota != nil {
		e.OverQuota(tenant, q, n)
	}
}

func (e *Events) quotaAlone(q task.Quota) {
	if e.QuotaAlone != nil {
		e.QuotaAlone(q)
	}
}

// limits are the reasons of calls that exceed a share of their tenant or source.
var limits = map[task.ErrorReason]bool{
	task.ReasonServerBusy: true, task.ReasonTenantBusy: true, task.ReasonRequestSlow: true, task.ReasonTooManyChanges: true,
	task.ReasonTooManyBadTokens: true, task.ReasonTooManyUnknownRuns: true, task.ReasonDatabaseBusy: true,
}

// limited counts the answer of a call if it is the refusal of a limit.
func (e *Events) limited(answer error) {
	if answer == nil || e.Limited == nil {
		return
	}
	for _, d := range status.Convert(answer).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && limits[task.ErrorReason(info.Reason)] {
			e.Limited(info.Reason)
		}
	}
}

func (e *Events) limitedBy(limit string) {
	if e.Limited != nil {
		e.Limited(limit)
	}
}

func (e *Events) imported(tenant string, lines task.ImportSum) {
	if e.Imported != nil {
		e.Imported(tenant, lines)
	}
}

func (e *Events) importPaused(tenant string, why task.PauseReason, d time.Duration) {
	if e.ImportPaused != nil && d > 0 {
		e.ImportPaused(tenant, why, d)
	}
}

func (e *Events) replied(tenant *Tenant, op string, c task.Code, n int) {
	if e.Replied != nil && n > 0 {
		e.Replied(tenant, op, c, n)
	}
}

func (e *Events) reported(tenant *Tenant, t task.Type, o task.Outcome, handled time.Duration) {
	if e.Reported != nil {
		e.Reported(tenant, t, o, handled)
	}
}

func (e *Events) unhandled(tenant *Tenant, kind string) {
	if e.Unhandled != nil && kind != "" && task.NameFault(kind, task.MaxKindBytes) == "" {
		e.Unhandled(tenant, kind)
	}
}
