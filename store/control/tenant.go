package control

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/control/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// CreateTenant stores a tenant; ID, UID, Keys, CreatedAt and Version are filled in, and
// History when it is 0. The provisioner is called first: what a tenant without a row leaves
// elsewhere does no harm, a tenant that lacks something does. Errors: those of the
// provisioner; [task.AlreadyExists] when the name is taken; [task.Unavailable] when database
// 0 is away (nothing is stored) or others are (see the package comment; the message tells the
// two apart).
func (s *Store) CreateTenant(ctx context.Context, t Tenant) (Tenant, error) {
	if t.History == 0 {
		t.History = task.HistorySlow
	}
	t.Keys = []Key{newKey(1)}
	known := s.copiesOf(ctx, t.Name)
	if s.provisioner != nil {
		if err := s.provisionNew(ctx, &t, &known); err != nil {
			return Tenant{}, err
		}
	}
	err := s.decide(ctx, func(ctx context.Context, tx pgx.Tx) error { return insertTenant(ctx, tx, &t, &known) })
	if err != nil {
		if s.provisioner != nil && task.CodeOf(err) == task.AlreadyExists {
			s.removeLeft(ctx, t)
		}
		return Tenant{}, err
	}
	return t, s.copyOut(ctx, "the tenant is created", func(ctx context.Context, d int, tx pgx.Tx) error {
		return putTenants(ctx, d, tx, []Tenant{t})
	})
}

// maxTaken bounds the ids that a new tenant passes over because somebody else has topics of them.
const maxTaken = 100

// provisionNew reserves the id of a new tenant and calls the provisioner. An id that has
// been in use elsewhere must not be given again, so it is reserved durably first.
func (s *Store) provisionNew(ctx context.Context, t *Tenant, known *copies) error {
	return s.provisionFree(ctx, t, func(ctx context.Context, t *Tenant) error {
		return s.decide(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
			if err := known.putBack(ctx, tx); err != nil {
				return err
			}
			t.ID, t.UID, err = reserve(ctx, tx, known.topID)
			return err
		})
	})
}

// provisionFree calls reserve for an id, and the provisioner, until the id is not taken. One that is taken was
// never one of this installation: another one names its topics in the same way, or an earlier one
// has left some. To share a topic would mix the runs of both, and whoever deletes the tenant would delete the other's.
func (s *Store) provisionFree(ctx context.Context, t *Tenant, reserve func(context.Context, *Tenant) error) (err error) {
	if s.provisioner == nil {
		return reserve(ctx, t)
	}
	for range maxTaken {
		if err := reserve(ctx, t); err != nil {
			return err
		}
		if err = s.provisioner.ProvisionNew(ctx, *t); !errors.Is(err, ErrTaken) {
			return err
		}
		s.log.WarnContext(ctx, "what a new tenant would have in Kafka exists; it gets another number: does another installation have the same kafka.topic_prefix?",
			"tenant", t.Name, "err", err)
	}
	return task.Errorf(task.ReasonKafkaUnavailable,
		"the Kafka topics of %d numbers for a tenant of this name exist already: another installation has the same kafka.topic_prefix, or has left them; choose another prefix",
		maxTaken).CausedBy(err)
}

// removeLeft removes what a tenant that was not created leaves elsewhere. After a failure an
// unused topic stays.
func (s *Store) removeLeft(ctx context.Context, t Tenant) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if err := s.provisioner.Remove(ctx, t); err != nil {
		s.log.WarnContext(ctx, "the topic of a tenant that was not created cannot be removed", "tenant", t.Name, "err", err)
	}
}

// reserve draws an id, which is greater than topID, and a uid.
func reserve(ctx context.Context, tx pgx.Tx, topID int32) (id int32, uid string, err error) {
	if _, err := sql.LockTenants.Exec(ctx, tx, "tenant"); err != nil {
		return 0, "", err
	}
	err = sql.ReserveTenant.QueryRow(ctx, tx, topID).Scan(&id, &uid)
	return id, uid, err
}

// insertTenant stores a new tenant in database 0. It reserves an id if t has none.
func insertTenant(ctx context.Context, tx pgx.Tx, t *Tenant, known *copies) error {
	if _, err := sql.LockTenants.Exec(ctx, tx, "tenant"); err != nil {
		return err
	}
	if err := known.putBack(ctx, tx); err != nil {
		return err
	}
	if err := raiseSettings(ctx, tx, 0); err != nil {
		return err
	}
	id, uid := t.ID, t.UID
	if id == 0 {
		var err error
		if id, uid, err = reserve(ctx, tx, known.topID); err != nil {
			return err
		}
	}
	err := sql.NewTenant.QueryRow(ctx, tx, id, uid, t.Name, t.ParamsBytes, t.Retention.Milliseconds(), int16(t.History), ratesJSON(&t.Rates), toJSON(t.Keys)).
		Scan(&t.CreatedAt, &t.Version)
	if err == nil {
		t.ID, t.UID = id, uid
	}
	return err
}

// UpdateTenant changes settings of a tenant and returns it. A change that changes nothing writes
// nothing, and does not wait for claims. Errors: as
// [Store.CreateTenant], and [task.NotFound], also for a tenant that is being deleted.
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
	known := s.copiesOf(ctx, name)
	if c.Rates.Deleting == nil {
		if err := known.deleting(); err != nil {
			return Tenant{}, err
		}
	}
	if known.unchanged(&c) {
		return *known.newest, nil
	}
	err = s.decide(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := known.putBack(ctx, tx); err != nil {
			return err
		}
		if err := raiseSettings(ctx, tx, 0); err != nil {
			return err
		}
		rates, err := changedRates(ctx, tx, name, &c.Rates)
		if err != nil {
			return err
		}
		rows, err := sql.ChangeTenant.Query(ctx, tx, name, params, retention, (*int16)(c.History), rates, nil)
		if err != nil {
			return err
		}
		t, err = pgx.CollectExactlyOneRow(rows, scanTenant)
		if errors.Is(err, pgx.ErrNoRows) {
			return noTenant(name)
		}
		return err
	})
	if err != nil {
		return Tenant{}, err
	}
	what := "the tenant is changed"
	if c.Rates.Deleting != nil {
		what = "the tenant is being deleted"
	}
	return t, s.copyOut(ctx, what, func(ctx context.Context, d int, tx pgx.Tx) error {
		return putTenants(ctx, d, tx, []Tenant{t})
	})
}

// HistoryPolicies returns the policies of the tenants that do not have the default.
func (s *Store) HistoryPolicies(ctx context.Context) (map[int32]task.HistoryPolicy, error) {
	return read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) (map[int32]task.HistoryPolicy, error) {
		rows, err := sql.HistoryPolicies.Query(ctx, pool, int16(task.HistorySlow))
		if err != nil {
			return nil, err
		}
		policies := map[int32]task.HistoryPolicy{}
		var id, sample int32
		var level int16
		var slow int64
		_, err = pgx.ForEachRow(rows, []any{&id, &level, &slow, &sample}, func() error {
			policies[id] = task.HistoryPolicy{Level: task.HistoryLevel(level), SlowAfter: time.Duration(slow) * time.Millisecond, Sample: sample}
			return nil
		})
		return policies, err
	})
}

// Tenant returns a tenant by name, or [task.NotFound].
func (s *Store) Tenant(ctx context.Context, name string) (Tenant, error) {
	return s.oneTenant(ctx, sql.TenantByName, name)
}

// TenantByID returns a tenant by its number, or [task.NotFound].
func (s *Store) TenantByID(ctx context.Context, id int32) (Tenant, error) {
	return s.oneTenant(ctx, sql.TenantByID, id)
}

// Deleted reports whether the tenant with the number is known to be deleted. A tenant that is
// only not found may be missing from a restored database.
func (s *Store) Deleted(ctx context.Context, id int32) (bool, error) {
	return read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) (deleted bool, err error) {
		err = sql.TenantDeleted.QueryRow(ctx, pool, id).Scan(&deleted)
		return deleted, err
	})
}

func (s *Store) oneTenant(ctx context.Context, statement *statement.Statement, key any) (Tenant, error) {
	return read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) (Tenant, error) {
		asked := time.Now()
		rows, err := statement.Query(ctx, pool, key)
		if err != nil {
			return Tenant{}, err
		}
		var now task.Instant
		t, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (Tenant, error) { return scanTenantBefore(row, &now) })
		if errors.Is(err, pgx.ErrNoRows) {
			return t, noTenant(key)
		}
		s.clock.set(now, asked)
		return t, err
	})
}

// Tenants returns up to limit tenants whose name is after the given one, by name
// in the order of bytes.
func (s *Store) Tenants(ctx context.Context, after string, limit int) ([]Tenant, error) {
	return read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) ([]Tenant, error) {
		rows, err := sql.TenantsAfter.Query(ctx, pool, after, limit)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, scanTenant)
	})
}

func scanTenant(row pgx.CollectableRow) (Tenant, error) { return scanTenantBefore(row) }

// scanTenantBefore scans the columns of a tenant, and those after them.
func scanTenantBefore(row pgx.CollectableRow, after ...any) (Tenant, error) {
	var t Tenant
	var retention int64
	err := row.Scan(append([]any{&t.ID, &t.UID, &t.Name, &t.ParamsBytes, &retention, &t.CreatedAt, (*int16)(&t.History), &t.Rates, &t.Keys, &t.Version}, after...)...)
	t.Retention = time.Duration(retention) * time.Millisecond
	return t, err
}

// settingsLock is the number of the advisory lock of tenants' settings; package
// shards shares it in claims.
const settingsLock = 7031

// raiseSettings waits for the running claims of database d, delays further claims until the
// transaction ends, and makes them read the settings again.
func raiseSettings(ctx context.Context, tx pgx.Tx, d int) error {
	if _, err := sql.LockSettings.Exec(ctx, tx, int32(settingsLock), int32(d)); err != nil {
		return err
	}
	_, err := sql.RaiseSettings.Exec(ctx, tx)
	return err
}

// changedRates returns a tenant's rates with the change, or nil if nothing changes.
func changedRates(ctx context.Context, tx pgx.Tx, name string, c *task.RatesChange) (*string, error) {
	if c.None() {
		return nil, nil
	}
	var r task.Rates
	err := sql.RatesForChange.QueryRow(ctx, tx, name).Scan(&r)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, noTenant(name)
	}
	if err != nil {
		return nil, err
	}
	c.Apply(&r)
	if n := len(r.PausedKinds); n > task.MaxKindRules {
		return nil, task.Errorf(task.ReasonTooManyPausedKinds, "%d kinds would be paused; at most %d may be", n, task.MaxKindRules)
	}
	text := ratesJSON(&r)
	return &text, nil
}

func ratesJSON(r *task.Rates) string { return toJSON(r) }

// toJSON encodes a value of numbers, strings and bytes.
func toJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // numbers, strings and bytes
	}
	return string(text)
}

// putTenants inserts missing tenants, and newer settings of others, into database d.
func putTenants(ctx context.Context, d int, tx pgx.Tx, tenants []Tenant) error {
	if len(tenants) == 0 {
		return nil
	}
	if err := raiseSettings(ctx, tx, d); err != nil {
		return err
	}
	n := len(tenants)
	ids, uids, names, params := make([]int32, n), make([]string, n), make([]string, n), make([]int32, n)
	retentions, created := make([]int64, n), make([]int64, n)
	histories, rates, keys, versions := make([]int16, n), make([]string, n), make([]string, n), make([]int64, n)
	for i, t := range tenants {
		ids[i], uids[i], names[i], params[i] = t.ID, t.UID, t.Name, int32(t.ParamsBytes)
		retentions[i], created[i] = t.Retention.Milliseconds(), int64(t.CreatedAt)
		histories[i], rates[i], keys[i], versions[i] = int16(t.History), ratesJSON(&t.Rates), toJSON(t.Keys), t.Version
	}
	_, err := sql.PutTenants.Exec(ctx, tx, ids, uids, names, params, retentions, created, histories, rates, keys, versions)
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
