package control

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/control/sql"
	"github.com/perceptor/perceptor/task"
)

// copies is what the databases that answer know of a tenant before a change of it.
type copies struct {
	// topID is the greatest id of any tenant.
	topID int32
	// newest is the newest copy, or nil if no database has the tenant. lost says that
	// database 0 does not have it.
	newest *Tenant
	lost   bool
	// current is the number of databases that have the newest copy.
	current int
}

// copiesOf asks all databases for a tenant. It leaves out those that do not answer.
func (s *Store) copiesOf(ctx context.Context, name string) (c copies) {
	var mu sync.Mutex
	var decided int64 // the version in database 0
	_ = s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		topID, t, err := copyIn(ctx, s.cluster.Pool(d), name)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		c.topID = max(c.topID, topID)
		if t == nil {
			return nil
		}
		if d == 0 {
			decided = t.Version
		}
		if c.newest == nil || c.newest.Version < t.Version {
			c.newest, c.current = t, 0
		}
		if c.newest.Version == t.Version {
			c.current++
		}
		return nil
	})
	c.lost = c.newest != nil && c.newest.Version > decided
	return c
}

func copyIn(ctx context.Context, pool *pgxpool.Pool, name string) (topID int32, t *Tenant, err error) {
	if err := sql.TopTenant.QueryRow(ctx, pool).Scan(&topID); err != nil {
		return 0, nil, err
	}
	rows, err := sql.TenantByName.Query(ctx, pool, name)
	if err != nil {
		return 0, nil, err
	}
	found, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (Tenant, error) { return scanTenantBefore(row, new(task.Instant)) })
	if errors.Is(err, pgx.ErrNoRows) {
		return topID, nil, nil
	}
	return topID, &found, err
}

// deleting returns an error if the tenant is being deleted: a change would have no effect, and a token
// would be refused. All databases must agree, because a restored one may have an older tenant of the name.
func (c *copies) deleting() error {
	if c.current < task.Databases || !c.newest.Rates.Deleting {
		return nil
	}
	return task.Errorf(task.ReasonTenantNotFound, "tenant %s is being deleted", c.newest.Name)
}

// unchanged reports whether every database has the tenant already as a change wants it.
func (c *copies) unchanged(change *TenantChange) bool {
	t, rest := c.newest, *change
	rest.ParamsBytes, rest.Retention, rest.History, rest.Rates = nil, nil, nil, task.RatesChange{}
	switch {
	case c.current < task.Databases, !reflect.DeepEqual(rest, TenantChange{}):
		return false
	case change.ParamsBytes != nil && *change.ParamsBytes != t.ParamsBytes,
		change.Retention != nil && change.Retention.Milliseconds() != t.Retention.Milliseconds(),
		change.History != nil && *change.History != t.History:
		return false
	}
	before := ratesJSON(&t.Rates)
	var after task.Rates
	if err := json.Unmarshal([]byte(before), &after); err != nil {
		return false
	}
	change.Rates.Apply(&after)
	return ratesJSON(&after) == before
}

// putBack stores what database 0 has lost of the tenant.
func (c *copies) putBack(ctx context.Context, tx pgx.Tx) error {
	if !c.lost {
		return nil
	}
	return putTenants(ctx, 0, tx, []Tenant{*c.newest})
}

// dropRevived removes the deleted tenants that a database has again because it was restored,
// and begins to remove their tasks.
func dropRevived(ctx context.Context, tx pgx.Tx) error {
	rows, err := sql.RevivedTenants.Query(ctx, tx)
	if err != nil {
		return err
	}
	revived, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return err
	}
	for _, id := range revived {
		if _, err := sql.DropTenant.Exec(ctx, tx, id); err != nil {
			return err
		}
		if _, err := sql.DeleteAgain.Exec(ctx, tx, id, int16(task.BulkDeleteTenant)); err != nil {
			return err
		}
	}
	_, err = sql.DropTokens.Exec(ctx, tx)
	return err
}
