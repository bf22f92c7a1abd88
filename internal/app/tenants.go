package app

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/server"
	"github.com/perceptor/perceptor/store/calendars"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

// tenants adapts the store of tenants and tokens to the server.
type tenants struct {
	store  *control.Store
	kafka  *tenancy
	shards *shards.Store
	// tokenLifetime bounds the lifetime of new tokens; 0: no bound.
	tokenLifetime time.Duration
}

var _ server.Admin = (*tenants)(nil)

// CreateTenant refuses a name in use before it calls Kafka.
func (t *tenants) CreateTenant(ctx context.Context, want server.Tenant) (server.Tenant, error) {
	switch known, err := t.store.Tenant(ctx, want.Name); {
	case err == nil && known.Rates.Deleting:
		return server.Tenant{}, task.Errorf(task.ReasonTenantExists, "a tenant of this name is being deleted; create it when that has ended")
	case err == nil:
		return server.Tenant{}, task.Errorf(task.ReasonTenantExists, "a tenant of this name exists")
	case task.CodeOf(err) != task.NotFound:
		return server.Tenant{}, err
	}
	created, err := t.store.CreateTenant(ctx, control.Tenant{
		Name: want.Name, ParamsBytes: want.ParamsBytes, Retention: want.Retention, History: want.History, Rates: want.Rates,
	})
	return t.tenant(created), err
}

func (t *tenants) UpdateTenant(ctx context.Context, name string, c server.TenantChange) (server.Tenant, error) {
	updated, err := t.store.UpdateTenant(ctx, name, control.TenantChange(c))
	return t.tenant(updated), err
}

func (t *tenants) RotateKey(ctx context.Context, name string, overlap time.Duration) ([]server.TenantKey, error) {
	rotated, err := t.store.RotateKey(ctx, name, overlap)
	return t.tenant(rotated).Keys, err
}

// DeleteTenant pauses the tenant and makes its tokens invalid. Then it creates the
// operation that removes its data. If that is not reached, [control.Store.Run] creates it later: see deleter.
func (t *tenants) DeleteTenant(ctx context.Context, name string) (*task.BulkOperation, error) {
	yes := true
	gone, err := t.store.UpdateTenant(ctx, name, control.TenantChange{Rates: task.RatesChange{Paused: &yes, Deleting: &yes}})
	if err != nil {
		return nil, err
	}
	return t.shards.DeleteTenant(ctx, gone.ID)
}

// deleter returns what goes on with the deletion of a tenant that is paused and has no valid token.
func deleter(s *shards.Store) func(context.Context, int32) error {
	return func(ctx context.Context, tenant int32) error {
		_, err := s.DeleteTenant(ctx, tenant)
		return err
	}
}

// dropTenant returns a function that removes the topics, Kafka users, tokens and the row of a
// deleted tenant.
func dropTenant(store *control.Store, kafka *tenancy, days *calendars.Store) func(context.Context, int32) error {
	return func(ctx context.Context, id int32) error {
		t, err := store.TenantByID(ctx, id)
		switch {
		case err == nil:
			err = kafka.Remove(ctx, t)
		case task.CodeOf(err) == task.NotFound:
			err = nil
		}
		if err != nil {
			return err
		}
		if err := days.DropTenant(ctx, id); err != nil {
			return err
		}
		return store.DropTenant(ctx, id)
	}
}

func (t *tenants) Tenant(ctx context.Context, name string) (server.Tenant, error) {
	found, err := t.store.Tenant(ctx, name)
	return t.tenant(found), err
}

func (t *tenants) Tenants(ctx context.Context, after string, limit int) ([]server.Tenant, error) {
	page, err := t.store.Tenants(ctx, after, limit)
	out := make([]server.Tenant, len(page))
	for i, p := range page {
		out[i] = t.tenant(p)
	}
	return out, err
}

func (t *tenants) CreateToken(ctx context.Context, want server.Token) (server.Token, string, error) {
	created, secret, err := t.store.CreateTokenWithin(ctx, control.Token{
		Scopes: control.Scopes(want.Scopes), Tenant: want.Tenant, Description: want.Description, ExpiresAt: want.ExpiresAt,
	}, t.tokenLifetime)
	return token(created), secret, err
}

func (t *tenants) Tokens(ctx context.Context, tenant, after string, limit int) ([]server.Token, error) {
	page, err := t.store.Tokens(ctx, tenant, after, limit)
	out := make([]server.Token, len(page))
	for i, p := range page {
		out[i] = token(p)
	}
	return out, err
}

func (t *tenants) RotateToken(ctx context.Context, r server.Rotation) (successor, replaced server.Token, secret string, err error) {
	made, old, secret, err := t.store.RotateToken(ctx, control.Rotation{
		ID: r.ID, Tenant: r.Tenant, Overlap: r.Overlap, ExpiresAt: r.ExpiresAt, Lifetime: t.tokenLifetime,
	})
	return token(made), token(old), secret, err
}

func (t *tenants) RevokeToken(ctx context.Context, id string, tenant int32) (server.Token, error) {
	revoked, err := t.store.RevokeToken(ctx, id, tenant)
	return token(revoked), err
}

// Authenticate returns the holder of a token's secret.
func (t *tenants) Authenticate(ctx context.Context, secret string) (server.Identity, error) {
	who, err := t.store.Authenticate(ctx, secret)
	if err != nil {
		return server.Identity{}, err
	}
	return t.identity(who.TokenID, server.Scopes(who.Scopes), who.Tenant, who.Left), nil
}

// identity returns the identity of a caller for the scopes of a tenant, or for those of the
// installation if the tenant's ID is 0.
func (t *tenants) identity(name string, scopes server.Scopes, of control.Tenant, left time.Duration) server.Identity {
	id := server.Identity{TokenID: name, Scopes: scopes, Left: left}
	if of.ID != 0 {
		id.Tenant = t.tenant(of)
	}
	return id
}

func (t *tenants) tenant(c control.Tenant) server.Tenant {
	return server.Tenant{
		ID: c.ID, Name: c.Name, ParamsBytes: c.ParamsBytes, Retention: c.Retention, History: c.History, Rates: c.Rates,
		Topic: t.kafka.topics.Name(c.ID, c.Name), Keys: t.kafka.keys(&c), CreatedAt: c.CreatedAt,
	}
}

func token(c control.Token) server.Token {
	return server.Token{
		ID: c.ID, Scopes: server.Scopes(c.Scopes), Tenant: c.Tenant, Description: c.Description,
		ExpiresAt: c.ExpiresAt, CreatedAt: c.CreatedAt, RevokedAt: c.RevokedAt, LastUsedAt: c.LastUsedAt,
	}
}
