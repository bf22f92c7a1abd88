package control

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/task"
)

// CreateTenant stores a tenant; ID and CreatedAt are filled in. Errors:
// [task.AlreadyExists] when the name is taken; [task.Unavailable] when database
// 0 is away (nothing is stored) or others are (see the package comment; the
// message tells the two apart).
func (s *Store) CreateTenant(ctx context.Context, t Tenant) (Tenant, error) {
	err := s.decide(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, statements.Get("LockTenants"), "tenant"); err != nil {
			return err
		}
		return tx.QueryRow(ctx, statements.Get("NewTenant"), t.Name, t.ParamsBytes, t.Retention.Milliseconds()).
			Scan(&t.ID, &t.CreatedAt)
	})
	if err != nil {
		return Tenant{}, err
	}
	return t, s.copyOut(ctx, "the tenant is created", func(ctx context.Context, tx pgx.Tx) error {
		return putTenants(ctx, tx, []Tenant{t})
	})
}

// Tenant returns a tenant by name, or [task.NotFound].
func (s *Store) Tenant(ctx context.Context, name string) (Tenant, error) {
	return s.oneTenant(ctx, "TenantByName", name)
}

// TenantByID returns a tenant by its number, or [task.NotFound].
func (s *Store) TenantByID(ctx context.Context, id int32) (Tenant, error) {
	return s.oneTenant(ctx, "TenantByID", id)
}

func (s *Store) oneTenant(ctx context.Context, statement string, key any) (Tenant, error) {
	return read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) (Tenant, error) {
		rows, err := pool.Query(ctx, statements.Get(statement), key)
		if err != nil {
			return Tenant{}, err
		}
		t, err := pgx.CollectExactlyOneRow(rows, scanTenant)
		if errors.Is(err, pgx.ErrNoRows) {
			return t, notFound("tenant")
		}
		return t, err
	})
}

// Tenants returns up to limit tenants whose name is after the given one, by name
// in the order of bytes.
func (s *Store) Tenants(ctx context.Context, after string, limit int) ([]Tenant, error) {
	return read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) ([]Tenant, error) {
		rows, err := pool.Query(ctx, statements.Get("TenantsAfter"), after, limit)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, scanTenant)
	})
}

func scanTenant(row pgx.CollectableRow) (Tenant, error) {
	var t Tenant
	var retention int64
	err := row.Scan(&t.ID, &t.Name, &t.ParamsBytes, &retention, &t.CreatedAt)
	t.Retention = time.Duration(retention) * time.Millisecond
	return t, err
}

// putTenants inserts those that are not there.
func putTenants(ctx context.Context, tx pgx.Tx, tenants []Tenant) error {
	n := len(tenants)
	ids, names, params := make([]int32, n), make([]string, n), make([]int32, n)
	retentions, created := make([]int64, n), make([]int64, n)
	for i, t := range tenants {
		ids[i], names[i], params[i] = t.ID, t.Name, int32(t.ParamsBytes)
		retentions[i], created[i] = t.Retention.Milliseconds(), int64(t.CreatedAt)
	}
	_, err := tx.Exec(ctx, statements.Get("PutTenants"), ids, names, params, retentions, created)
	return err
}

// instant maps NULL to [task.Never].
func instant(ms *int64) task.Instant {
	if ms == nil {
		return task.Never
	}
	return task.Instant(*ms)
}

// nullable is the inverse of instant.
func nullable(i task.Instant) *int64 {
	if i == task.Never {
		return nil
	}
	ms := int64(i)
	return &ms
}
