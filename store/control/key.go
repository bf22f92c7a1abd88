package control

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/control/sql"
	"github.com/perceptor/perceptor/task"
)

// Key is a secret that a tenant's listeners and the dispatchers share. Records are signed
// with it, and it is the tenant's login to Kafka.
type Key struct {
	// ID numbers the keys of a tenant from 1. It is never used again.
	ID int32 `json:"id"`
	// Secret is 32 random bytes.
	Secret []byte `json:"secret"`
	// Start is when dispatchers begin to sign with the key. Listeners know it before.
	Start task.Instant `json:"start"`
	// End is when the key becomes invalid. 0: not yet decided.
	End task.Instant `json:"end,omitempty"`
}

const (
	keyBytes = 32
	// MaxKeys bounds the keys of a tenant that are valid at the same time.
	MaxKeys = 8
	// KeyLead is how long before its start a new key is known, so that listeners have it
	// before the first record that it signs.
	KeyLead = time.Minute
)

func newKey(id int32) Key {
	k := Key{ID: id, Secret: make([]byte, keyBytes)}
	rand.Read(k.Secret) //nolint:errcheck // never fails
	return k
}

// Ended reports whether the key is invalid at an instant.
func (k *Key) Ended(now task.Instant) bool { return k.End != 0 && k.End <= now }

// RotateKey gives a tenant a new key and returns the tenant. Its other keys end after overlap,
// or before. The new key starts [KeyLead] from now, or after half of the overlap if that is
// sooner. Errors: [task.NotFound]; [task.FailedPrecondition] while [MaxKeys] are valid; those of
// the provisioner; [task.Unavailable] as for [Store.CreateTenant].
func (s *Store) RotateKey(ctx context.Context, name string, overlap time.Duration) (Tenant, error) {
	t, err := s.Tenant(ctx, name)
	if err != nil {
		return Tenant{}, err
	}
	added := newKey(nextKey(t.Keys))
	if s.provisioner != nil { // the login of the key must exist before a listener gets the key
		next := t
		next.Keys = []Key{added}
		if err := s.provisioner.Provision(ctx, next); err != nil {
			return Tenant{}, err
		}
	}
	return s.changeKeys(ctx, name, func(keys []Key, now task.Instant) ([]Key, error) {
		if added.ID != nextKey(keys) {
			return nil, away(nil, "another call has changed the keys of the tenant")
		}
		added.Start = now.Add(min(KeyLead, overlap/2))
		end, valid := max(1, now.Add(overlap)), 0
		for i := range keys {
			if keys[i].End == 0 || end < keys[i].End {
				keys[i].End = end
			}
			if !keys[i].Ended(now) {
				valid++
			}
		}
		if valid >= MaxKeys {
			return nil, task.Errorf(task.ReasonTooManyKeys, "the tenant has %d keys; the next can be made when one has ended", valid)
		}
		return append(keys, added), nil
	})
}

func nextKey(keys []Key) int32 {
	if len(keys) == 0 {
		return 1
	}
	return keys[len(keys)-1].ID + 1
}

// changeKeys replaces the keys of a tenant by what change returns, which gets the time of
// database 0.
func (s *Store) changeKeys(ctx context.Context, name string, change func([]Key, task.Instant) ([]Key, error)) (t Tenant, err error) {
	known := s.copiesOf(ctx, name)
	err = s.decide(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := known.putBack(ctx, tx); err != nil {
			return err
		}
		var keys []Key
		var now task.Instant
		err := sql.KeysForChange.QueryRow(ctx, tx, name).Scan(&keys, &now)
		if errors.Is(err, pgx.ErrNoRows) {
			return noTenant()
		}
		if err != nil {
			return err
		}
		if keys, err = change(keys, now); err != nil {
			return err
		}
		text := toJSON(keys)
		rows, err := sql.ChangeTenant.Query(ctx, tx, name, nil, nil, nil, nil, &text)
		if err != nil {
			return err
		}
		t, err = pgx.CollectExactlyOneRow(rows, scanTenant)
		return err
	})
	if err != nil {
		return Tenant{}, err
	}
	return t, s.copyOut(ctx, "the keys of the tenant are changed", func(ctx context.Context, d int, tx pgx.Tx) error {
		return putTenants(ctx, d, tx, []Tenant{t})
	})
}

// dropEndedKeys removes keys that have ended: first what the provisioner made for them, then
// the keys, so a crash in between leaves nothing behind.
func (s *Store) dropEndedKeys(ctx context.Context) error {
	type ended struct {
		Tenant string
		Key    int32
	}
	all, err := read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) ([]ended, error) {
		rows, err := sql.EndedKeys.Query(ctx, pool)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowToStructByPos[ended])
	})
	for _, k := range all {
		err = errors.Join(err, s.dropKey(ctx, k.Tenant, k.Key))
	}
	return err
}

func (s *Store) dropKey(ctx context.Context, tenant string, id int32) error {
	is := func(k Key) bool { return k.ID == id }
	if s.provisioner != nil {
		t, err := s.Tenant(ctx, tenant)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(t.Keys, is); i >= 0 {
			if err := s.provisioner.Revoke(ctx, t, t.Keys[i]); err != nil {
				return err
			}
		}
	}
	_, err := s.changeKeys(ctx, tenant, func(keys []Key, _ task.Instant) ([]Key, error) {
		return slices.DeleteFunc(keys, is), nil
	})
	return err
}

// TenantVersions returns the versions of the settings of those tenants that exist.
func (s *Store) TenantVersions(ctx context.Context, ids []int32) (map[int32]int64, error) {
	return read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) (map[int32]int64, error) {
		rows, err := sql.TenantVersions.Query(ctx, pool, ids)
		if err != nil {
			return nil, err
		}
		versions := make(map[int32]int64, len(ids))
		var id int32
		var version int64
		_, err = pgx.ForEachRow(rows, []any{&id, &version}, func() error { versions[id] = version; return nil })
		return versions, err
	})
}
