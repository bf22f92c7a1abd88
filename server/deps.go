package server

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Tasks stores tasks. All methods may be called concurrently. Where an id is
// unknown to the tenant they return a [task.NotFound] error.
type Tasks interface {
	// Add stores the specs of one request. It returns one item for each, in
	// their order; an error means that the outcome of all is unknown or nothing
	// was stored. [task.AlreadyExists]: the RequestID was used with another Hash.
	Add(ctx context.Context, r task.AddRequest) (task.AddResult, error)
	// Get returns a task, living or retained.
	Get(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error)
	// List returns the page of tasks after a cursor.
	List(ctx context.Context, q task.ListQuery) (task.ListPage, error)
	// ListCost returns about how many living tasks a listing looks at, by its range of
	// due instants and its state alone, of a tenant with so many.
	ListCost(ctx context.Context, q *task.ListQuery, living int64) (int64, error)
	// Cancel ends a task and returns it; a finished one stays as it is.
	Cancel(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error)
	// Pause and Resume set the flag and return the task; a finished task is a
	// [task.FailedPrecondition].
	Pause(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error)
	Resume(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error)
	// Update gives a task other terms and returns it. [task.Aborted]: it has another
	// version than the edit asks for; [task.FailedPrecondition]: it has ended, or
	// its state forbids the edit.
	Update(ctx context.Context, tenant int32, id task.ID, e task.Edit) (*task.Snapshot, error)
	// Trigger opens a run now and returns its number; replayed: the requestID, if it
	// is not empty, had opened it before. [task.FailedPrecondition]: it may have none.
	Trigger(ctx context.Context, tenant int32, id task.ID, requestID string) (seq int64, replayed bool, err error)
	// PurgeTask forgets a finished task; a living one is a [task.FailedPrecondition].
	PurgeTask(ctx context.Context, tenant int32, id task.ID) error
	// Explain says what holds a task back, and returns up to n of its next instants.
	// An unknown task is a reason, and no error.
	Explain(ctx context.Context, tenant int32, id task.ID, n int) (task.Explanation, error)
	// Now returns the clock by which tasks are judged.
	Now(ctx context.Context) (task.Instant, error)
	// Counts returns the exact counts of a tenant's tasks by type.
	Counts(ctx context.Context, tenant int32) ([]task.TypeCounts, error)
	// History returns up to limit events of a task after a cursor, newest first;
	// none of an unknown task.
	History(ctx context.Context, tenant int32, id task.ID, after task.HistoryCursor, limit int) ([]task.RunEvent, error)
}

// Runs takes what listeners say about runs. Every method answers each entry, in
// the order given; an error means that the outcome of all entries is unknown.
// Entries are well formed. All methods may be called concurrently.
type Runs interface {
	Start(ctx context.Context, tenant int32, h task.Holder, as []task.Seen) ([]task.Reply, error)
	// Check says which attempts shall still be handled. It changes nothing.
	Check(ctx context.Context, tenant int32, as []task.Seen) ([]task.Reply, error)
	Heartbeat(ctx context.Context, tenant int32, h task.Holder, as []task.Attempt) ([]task.Reply, error)
	HandBack(ctx context.Context, tenant int32, h task.Holder, as []task.Attempt) ([]task.Reply, error)
	// Report takes results. paramsBytes is the tenant's limit for the params
	// that a patch leads to; breaking it is answered with [task.Invalid].
	Report(ctx context.Context, tenant int32, paramsBytes int, rs []task.Report) ([]task.Reply, error)
}

// Admin stores tenants and tokens. All methods may be called concurrently.
type Admin interface {
	// CreateTenant stores a tenant and makes its topic. ID, Topic and CreatedAt
	// are the store's to fill in. [task.AlreadyExists]: the name is taken.
	CreateTenant(ctx context.Context, t Tenant) (Tenant, error)
	// Tenant returns a tenant by name, or [task.NotFound].
	Tenant(ctx context.Context, name string) (Tenant, error)
	// Tenants returns up to limit tenants whose name is after the given one, by
	// name.
	Tenants(ctx context.Context, after string, limit int) ([]Tenant, error)
	// UpdateTenant changes settings of a tenant and returns it, or [task.NotFound].
	// When it returns no claim is made by the old settings any more.
	UpdateTenant(ctx context.Context, name string, c TenantChange) (Tenant, error)
	// DeleteTenant begins to delete a tenant, or tells how far that has come;
	// [task.NotFound]: there is none.
	DeleteTenant(ctx context.Context, name string) (*task.BulkOperation, error)
	// CreateToken stores a token and returns it with its secret. ID and
	// CreatedAt are the store's to fill in. [task.NotFound]: no such tenant;
	// [task.InvalidArgument]: the expiry has passed.
	CreateToken(ctx context.Context, t Token) (created Token, secret string, err error)
	// Tokens returns up to limit tokens whose id is after the given one, by id;
	// only those of a tenant unless that is empty.
	Tokens(ctx context.Context, tenant, after string, limit int) ([]Token, error)
	// RevokeToken ends a token and returns it; a revoked one stays as it is.
	RevokeToken(ctx context.Context, id string) (Token, error)
}

// Assignment says which dispatcher owns which shard, and changes what they share
// by. All methods may be called concurrently. [task.NotFound]: no dispatcher has
// ever been there; [task.InvalidArgument]: the strategy would break a rule, or the
// stored one cannot be read; [task.Unavailable]: the coordinator does not answer.
type Assignment interface {
	Assignment(ctx context.Context) (*perceptorv1.Assignment, error)
	// UpdateStrategy answers the strategy as it is stored then.
	UpdateStrategy(ctx context.Context, r *perceptorv1.UpdateStrategyRequest) (*perceptorv1.Strategy, error)
}

// Authenticator finds out whose secret a caller holds. A secret that is unknown,
// expired or revoked is a [task.NotFound] error. It may be called concurrently.
type Authenticator interface {
	Authenticate(ctx context.Context, secret string) (Identity, error)
}

// Scope says which calls a token is good for. The numbers are those of the API.
type Scope int16

// The scopes.
const (
	TenantScope Scope = 1 // TaskService and RunService of one tenant
	AdminScope  Scope = 2 // AdminService
)

// Identity is who calls. It is set by the gate and never changed.
type Identity struct {
	// TokenID is the public name of the token, for logs.
	TokenID string
	Scope   Scope
	// Tenant is set for TenantScope only.
	Tenant Tenant
}

// Tenant is a customer of the system.
type Tenant struct {
	ID   int32
	Name string
	// ParamsBytes is the limit on the params of a task.
	ParamsBytes int
	// Retention is for tasks that do not say their own.
	Retention time.Duration
	// History says what of the history of runs is written down.
	History task.HistoryLevel
	// Rates says how much it may use.
	Rates     task.Rates
	Topic     string
	CreatedAt task.Instant
}

// TenantChange has the new values of a tenant's settings; nil: as it was.
type TenantChange struct {
	ParamsBytes *int
	Retention   *time.Duration
	History     *task.HistoryLevel
	Rates       task.RatesChange
}

// Token is a credential without its secret.
type Token struct {
	ID    string
	Scope Scope
	// Tenant is the tenant's name, for TenantScope.
	Tenant      string
	Description string
	// ExpiresAt and RevokedAt are [task.Never] while there is no such instant.
	ExpiresAt task.Instant
	CreatedAt task.Instant
	RevokedAt task.Instant
}

// Delivery says where listeners find a tenant's runs.
type Delivery struct {
	Topic   string
	Group   string
	Brokers []string
}

// Deps are the parts that a [Server] stands on. All are required.
type Deps struct {
	Tasks Tasks
	Runs  Runs
	Dead  DeadLetters
	Bulk  Bulk
	Admin Admin
	Auth  Authenticator
	// Delivery says where the runs of a tenant are published. It must not block.
	Delivery func(Tenant) Delivery
	// Quotas may be nil: nobody is held to any.
	Quotas Quotas
	// Assignment may be nil: nothing is shared, or nobody knows where.
	Assignment Assignment
	// Clock may be nil: the installation runs by the real clock.
	Clock Clock
}

// Events are called as things happen, for metrics and tests. Each may be nil,
// may be called concurrently, and must not block.
type Events struct {
	// Called: a call ended with a code after d. Method is "Service/Method".
	Called func(method string, code codes.Code, d time.Duration)
	// Added: n tasks of a type were stored now (replayed ones not counted).
	Added func(tenant string, t task.Type, n int)
	// OverQuota: tasks were refused because a quota of the tenant is used up: add_rate
	// or max_backlog.
	OverQuota func(tenant, quota string, tasks int)
	// Refused: n tasks of an add broke a rule.
	Refused func(tenant string, n int)
	// Replied: n entries of a call about runs got a code. Op is "start",
	// "heartbeat", "report" or "hand_back".
	Replied func(tenant, op string, c task.Code, n int)
}

func (e *Events) called(method string, code codes.Code, d time.Duration) {
	if e.Called != nil {
		e.Called(method, code, d)
	}
}

func (e *Events) added(tenant string, t task.Type, n int) {
	if e.Added != nil && n > 0 {
		e.Added(tenant, t, n)
	}
}

func (e *Events) refused(tenant string, n int) {
	if e.Refused != nil && n > 0 {
		e.Refused(tenant, n)
	}
}

func (e *Events) overQuota(tenant, quota string, n int) {
	if e.OverQuota != nil {
		e.OverQuota(tenant, quota, n)
	}
}

func (e *Events) replied(tenant, op string, c task.Code, n int) {
	if e.Replied != nil && n > 0 {
		e.Replied(tenant, op, c, n)
	}
}
