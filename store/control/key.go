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
	// [task.Never]: the key is reserved. Its login may not exist yet, so nobody gets it.
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

// Reserved reports whether the rotation that made the key has not ended yet.
func (k *Key) Reserved() bool { return k.Start == task.Never }

// RotateKey gives a tenant a new key and returns the tenant. Its other keys end after overlap,
// or before. The new key starts [KeyLead] from now, or after half of the overlap if that is
// sooner. Errors: [task.NotFound]; [task.FailedPrecondition] while [MaxKeys] are valid; those of
// the provisioner; [task.Unavailable] as for [Store.CreateTenant].
//
// The secret is stored first, as a reserved key. Then the provisioner makes its login, and then
// the key starts. So calls at the same time, and one that follows a call which was cut short, use
// one secret: whichever of them sets the login's password last, it is the stored one.
// Together they make one key, and the shortest of their overlaps counts.
func (s *Store) RotateKey(ctx context.Context, name string, overlap time.Duration) (Tenant, error) {
	t, err := s.changeKeys(ctx, name, func(keys []Key, now task.Instant) ([]Key, error) {
		return reserveKey(keys, now, overlap)
	})
	if err != nil {
		return Tenant{}, err
	}
	added := t.Keys[len(t.Keys)-1]
	if s.provisioner != nil { // the login of the key must exist before a listener gets the key
		if err := s.provisioner.ProvisionKey(ctx, t, added); err != nil {
			return Tenant{}, err
		}
	}
	t, err = s.changeKeys(ctx, name, func(keys []Key, now task.Instant) ([]Key, error) {
		return startKey(keys, added.ID, now, overlap)
	})
	if err != nil {
		return Tenant{}, err
	}
	return t, s.copyKeys(ctx, t)
}

// reserveKey returns the keys with a reserved one at the end.
func reserveKey(keys []Key, now task.Instant, overlap time.Duration) ([]Key, error) {
	if n := len(keys); n > 0 && keys[n-1].Reserved() {
		return keys, nil
	}
	if valid := endKeys(slices.Clone(keys), now, overlap); valid >= MaxKeys {
		return nil, task.Errorf(task.ReasonTooManyKeys, "the tenant has %d keys; the next can be made when one has ended", valid)
	}
	added := newKey(nextKey(keys))
	added.Start = task.Never
	return append(keys, added), nil
}

// startKey returns the keys after the reserved one with an id has started, and the others end. If
// another call was faster, the key starts and the others end at the earlier instant.
func startKey(keys []Key, id int32, now task.Instant, overlap time.Duration) ([]Key, error) {
	i := slices.IndexFunc(keys, func(k Key) bool { return k.ID == id })
	if i < 0 {
		return nil, away(nil, "another call has changed the keys of the tenant")
	}
	keys[i].Start = min(keys[i].Start, now.Add(min(KeyLead, overlap/2)))
	endKeys(keys[:i], now, overlap)
	return keys, nil
}

// endKeys makes keys end after overlap, or before, and returns how many are valid until then.
func endKeys(keys []Key, now task.Instant, overlap time.Duration) (valid int) {
	end := max(1, now.Add(overlap))
	for i := range keys {
		if keys[i].End == 0 || end < keys[i].End {
			keys[i].End = end
		}
		if !keys[i].Ended(now) {
			valid++
		}
	}
	return valid
}

func nextKey(keys []Key) int32 {
	if len(keys) == 0 {
		return 1
	}
	return keys[len(keys)-1].ID + 1
}

// changeKeys replaces the keys of a tenant in database 0 by what change returns, which gets the
// time of that database.
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
			return noTenant(name)
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
	return t, err
}

// copyKeys copies a tenant with changed keys to the other databases.
func (s *Store) copyKeys(ctx context.Context, t Tenant) error {
	return s.copyOut(ctx, "the keys of the tenant are changed", func(ctx context.Context, d int, tx pgx.Tx) error {
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
	t, err := s.changeKeys(ctx, tenant, func(keys []Key, _ task.Instant) ([]Key, error) {
		return slices.DeleteFunc(keys, is), nil
	})
	if err != nil {
		return err
	}
	return s.copyKeys(ctx, t)
}

// Versions are the versions of the settings of tenants, in one database.
type Versions struct {
	// Of has them by tenant; one that does not exist is missing.
	Of map[int32]int64
	// Decided says that they are those of the database that decides about changes, and not of a copy,
	// which may be behind.
	Decided bool
}

// TenantVersions returns the versions of the settings of those tenants that exist.
func (s *Store) TenantVersions(ctx context.Context, ids []int32) (Versions, error) {
	ask := func(ctx context.Context, pool *pgxpool.Pool) (Versions, error) {
		asked := time.Now()
		rows, err := sql.TenantVersions.Query(ctx, pool, ids)
		if err != nil {
			return Versions{}, err
		}
		v := Versions{Of: make(map[int32]int64, len(ids))}
		var id int32
		var version int64
		var now task.Instant
		_, err = pgx.ForEachRow(rows, []any{&id, &version, &now}, func() error { v.Of[id] = version; return nil })
		s.clock.set(now, asked)
		return v, err
	}
	if v, err := askOne(ctx, s, 0, ask); err == nil {
		v.Decided = true
		return v, nil
	}
	return read(ctx, s, ask)
}
