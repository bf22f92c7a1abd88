package server

import (
	"context"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/metadata"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// scopes has the scope that each method needs. A method without one cannot be
// registered.
var scopes = map[string]Scope{
	perceptorv1.TaskService_AddTask_FullMethodName:             TenantScope,
	perceptorv1.TaskService_AddTasks_FullMethodName:            TenantScope,
	perceptorv1.TaskService_GetTask_FullMethodName:             TenantScope,
	perceptorv1.TaskService_ListTasks_FullMethodName:           TenantScope,
	perceptorv1.TaskService_CancelTask_FullMethodName:          TenantScope,
	perceptorv1.TaskService_PauseTask_FullMethodName:           TenantScope,
	perceptorv1.TaskService_ResumeTask_FullMethodName:          TenantScope,
	perceptorv1.TaskService_CountTasks_FullMethodName:          TenantScope,
	perceptorv1.TaskService_ListRunEvents_FullMethodName:       TenantScope,
	perceptorv1.RunService_StartRuns_FullMethodName:            TenantScope,
	perceptorv1.RunService_ReportResults_FullMethodName:        TenantScope,
	perceptorv1.RunService_HeartbeatRuns_FullMethodName:        TenantScope,
	perceptorv1.RunService_HandBackRuns_FullMethodName:         TenantScope,
	perceptorv1.RunService_GetDelivery_FullMethodName:          TenantScope,
	perceptorv1.AdminService_DeleteTenant_FullMethodName:       AdminScope,
	perceptorv1.TaskService_PurgeTask_FullMethodName:           TenantScope,
	perceptorv1.BulkService_CreateBulkOperation_FullMethodName: TenantScope,
	perceptorv1.BulkService_GetBulkOperation_FullMethodName:    TenantScope,
	perceptorv1.BulkService_ListBulkOperations_FullMethodName:  TenantScope,
	perceptorv1.BulkService_AbortBulkOperation_FullMethodName:  TenantScope,
	perceptorv1.BulkService_PauseBulkOperation_FullMethodName:  TenantScope,
	perceptorv1.BulkService_ResumeBulkOperation_FullMethodName: TenantScope,
	perceptorv1.DeadLetterService_ListDeadRuns_FullMethodName:  TenantScope,
	perceptorv1.DeadLetterService_GetDeadRun_FullMethodName:    TenantScope,
	perceptorv1.DeadLetterService_ReplayDeadRun_FullMethodName: TenantScope,
	perceptorv1.DeadLetterService_PurgeDeadRun_FullMethodName:  TenantScope,
	perceptorv1.TaskService_UpdateTask_FullMethodName:          TenantScope,
	perceptorv1.TaskService_TriggerTask_FullMethodName:         TenantScope,
	perceptorv1.TaskService_ExplainTask_FullMethodName:         TenantScope,
	perceptorv1.RunService_CheckRuns_FullMethodName:            TenantScope,

	perceptorv1.AdminService_CreateTenant_FullMethodName: AdminScope,
	perceptorv1.AdminService_GetTenant_FullMethodName:    AdminScope,
	perceptorv1.AdminService_ListTenants_FullMethodName:  AdminScope,
	perceptorv1.AdminService_UpdateTenant_FullMethodName: AdminScope,
	perceptorv1.TaskService_PauseKind_FullMethodName:     TenantScope,
	perceptorv1.TaskService_ResumeKind_FullMethodName:    TenantScope,
	perceptorv1.AdminService_PauseTenant_FullMethodName:  AdminScope,
	perceptorv1.AdminService_ResumeTenant_FullMethodName: AdminScope,
	perceptorv1.AdminService_CreateToken_FullMethodName:  AdminScope,
	perceptorv1.AdminService_ListTokens_FullMethodName:   AdminScope,
	perceptorv1.AdminService_RevokeToken_FullMethodName:  AdminScope,

	perceptorv1.TaskService_PreviewSchedule_FullMethodName: TenantScope,

	perceptorv1.AssignmentService_GetAssignment_FullMethodName:  AdminScope,
	perceptorv1.AssignmentService_UpdateStrategy_FullMethodName: AdminScope,

	perceptorv1.ClockService_GetClock_FullMethodName:     AdminScope,
	perceptorv1.ClockService_AdvanceClock_FullMethodName: AdminScope,
	perceptorv1.ClockService_SetClock_FullMethodName:     AdminScope,
}

const (
	maxSecretBytes = 256
	// How long answers of the Authenticator are cached, counted from before it
	// was asked.
	rememberKnown   = 5 * time.Second
	rememberUnknown = time.Second
	maxRemembered   = 10_000
	authTimeout     = 5 * time.Second
)

type identityKey struct{}

// identityOf returns the identity that the gate has stored in the context.
func identityOf(ctx context.Context) *Identity {
	return ctx.Value(identityKey{}).(*Identity)
}

// tenantOf returns the calling tenant.
func tenantOf(ctx context.Context) *Tenant { return &identityOf(ctx).Tenant }

// secretFrom returns the bearer secret of a call, or "" if there is none of the
// right form.
func secretFrom(headers []string) string {
	if len(headers) != 1 {
		return ""
	}
	scheme, secret, ok := strings.Cut(headers[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || len(secret) > maxSecretBytes {
		return ""
	}
	for i := range len(secret) {
		if secret[i] <= ' ' || secret[i] > '~' {
			return ""
		}
	}
	return secret
}

// bearers caches the answers of an Authenticator. It stores secrets as hashes
// only.
type bearers struct {
	source  Authenticator
	flights singleflight.Group
	known   remembered
	unknown remembered
}

func newBearers(source Authenticator) *bearers {
	return &bearers{source: source}
}

// identify returns the identity for the authorization headers of a call, or the
// status to answer with.
func (b *bearers) identify(ctx context.Context, headers []string) (*Identity, error) {
	secret := secretFrom(headers)
	if secret == "" {
		return nil, errUnauthenticated
	}
	key := sha256.Sum256([]byte(secret))
	now := time.Now()
	if id, ok := b.known.get(key, now); ok {
		return id, nil
	}
	if _, ok := b.unknown.get(key, now); ok {
		return nil, errUnauthenticated
	}
	return b.ask(ctx, key, secret)
}

// ask asks the Authenticator once for all concurrent calls with the same
// secret.
func (b *bearers) ask(ctx context.Context, key [32]byte, secret string) (*Identity, error) {
	answer := b.flights.DoChan(string(key[:]), func() (any, error) {
		asked := time.Now()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), authTimeout)
		defer cancel()
		id, err := b.source.Authenticate(ctx, secret)
		switch {
		case err == nil:
			b.known.put(key, &id, asked.Add(rememberKnown))
			return &id, nil
		case task.CodeOf(err) == task.NotFound:
			b.unknown.put(key, nil, asked.Add(rememberUnknown))
			return nil, errUnauthenticated
		}
		return nil, err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case a := <-answer:
		if a.Err != nil {
			return nil, a.Err
		}
		return a.Val.(*Identity), nil
	}
}

// authorization returns the authorization headers of an incoming call.
func authorization(ctx context.Context) []string {
	md, _ := metadata.FromIncomingContext(ctx)
	return md.Get("authorization")
}

// remembered is a bounded map with entries that expire. The zero value is
// empty.
type remembered struct {
	mu      sync.Mutex
	entries map[[32]byte]cachedIdentity
}

type cachedIdentity struct {
	identity *Identity
	until    time.Time
}

func (r *remembered) get(key [32]byte, now time.Time) (*Identity, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.entries[key]
	return m.identity, ok && now.Before(m.until)
}

func (r *remembered) put(key [32]byte, id *Identity, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entries == nil {
		r.entries = map[[32]byte]cachedIdentity{}
	}
	if _, known := r.entries[key]; !known && len(r.entries) >= maxRemembered {
		r.makeRoom(time.Now())
	}
	r.entries[key] = cachedIdentity{id, until}
}

// makeRoom removes the expired ones of a few entries, and at least one entry.
func (r *remembered) makeRoom(now time.Time) {
	looked := 0
	for k, m := range r.entries {
		if looked == 0 || !now.Before(m.until) {
			delete(r.entries, k)
		}
		if looked++; looked == 16 {
			return
		}
	}
}
