package control

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/task"
)

// CreateTenant stores a tenant; ID, CreatedAt and Version are filled in, and
// History when it is 0. Errors:
// [task.AlreadyExists] when the name is taken; [task.Unavailable] when database
// 0 is away (nothing is stored) or others are (see the package comment; the
// message tells the two apart).
func (s *Store) CreateTenant(ctx context.Context, t Tenant) (Tenant, error) {
	if t.History == 0 {
		t.History = task.HistoryFailures
	}
	err := s.decide(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, statements.Get("LockTenants"), "tenant"); err != nil {
			return err
		}
		return tx.QueryRow(ctx, statements.Get("NewTenant"), t.Name, t.ParamsBytes, t.Retention.Milliseconds(), int16(t.History)).
			Scan(&t.ID, &t.CreatedAt, &t.Version)
	})
	if err != nil {
		return Tenant{}, err
	}
	return t, s.copyOut(ctx, "the tenant is created", func(ctx context.Context, tx pgx.Tx) error {
		return putTenants(ctx, tx, []Tenant{t})
	})
}

// UpdateTenant changes settings of a tenant and returns it. Errors: as
// [Store.CreateTenant], and [task.NotFound].
func (s *Store) UpdateTenant(ctx context.Context, name string, c TenantChange) (t Tenant, err error) {
	var params *int32
	var retention *int64
	if c.ParamsBytes != nil {
		n := int32(*c.ParamsBytes)
		params = &n
	}
	if c.Retention != nil {
		ms := c.Retention.Milliseconds()
		retention = &ms
	}
	err = s.decide(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, statements.Get("ChangeTenant"), name, params, retention, (*int16)(c.History))
		if err != nil {
			return err
		}
		t, err = pgx.CollectExactlyOneRow(rows, scanTenant)
		if errors.Is(err, pgx.ErrNoRows) {
			return notFound("tenant")
		}
		return err
	})
	if err != nil {
		return Tenant{}, err
	}
	return t, s.copyOut(ctx, "the tenant is changed", func(ctx context.Context, tx pgx.Tx) error {
		return putTenants(ctx, tx, []Tenant{t})
	})
}

// HistoryLevels returns the levels of those tenants that have another one than
// the default.
func (s *Store) HistoryLevels(ctx context.Context) (map[int32]task.HistoryLevel, error) {
	return read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) (map[int32]task.HistoryLevel, error) {
		rows, err := pool.Query(ctx, statements.Get("HistoryLevels"), int16(task.HistoryFailures))
		if err != nil {
			return nil, err
		}
		levels := map[int32]task.HistoryLevel{}
		var id int32
		var level int16
		_, err = pgx.ForEachRow(rows, []any{&id, &level}, func() error { levels[id] = task.HistoryLevel(level); return nil })
		return levels, err
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
	err := row.Scan(&t.ID, &t.Name, &t.ParamsBytes, &retention, &t.CreatedAt, (*int16)(&t.History), &t.Version)
	t.Retention = time.Duration(retention) * time.Millisecond
	return t, err
}

// putTenants inserts those that are not there, and newer settings of others.
func putTenants(ctx context.Context, tx pgx.Tx, tenants []Tenant) error {
	n := len(tenants)
	ids, names, params := make([]int32, n), make([]string, n), make([]int32, n)
	retentions, created := make([]int64, n), make([]int64, n)
	histories, versions := make([]int16, n), make([]int32, n)
	for i, t := range tenants {
		ids[i], names[i], params[i] = t.ID, t.Name, int32(t.ParamsBytes)
		retentions[i], created[i] = t.Retention.Milliseconds(), int64(t.CreatedAt)
		histories[i], versions[i] = int16(t.History), t.Version
	}
	_, err := tx.Exec(ctx, statements.Get("PutTenants"), ids, names, params, retentions, created, histories, versions)
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
