package control

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/control/sql"
)

const (
	// maxUses bounds the uses in memory. The use of a further token is not recorded until
	// its next one.
	maxUses = 10_000
	// revokedWindow is how long [Store.Revoked] returns a token: longer than any cache of
	// identities.
	revokedWindow = 15 * time.Second
	maxRevoked    = 10_000
)

// uses are the last uses of tokens that are not stored yet. They are written together, once
// per Sync, to database 0 only. The zero value is empty.
type uses struct {
	mu sync.Mutex
	at map[string]time.Time
}

// note records that a token was used.
func (u *uses) note(id string, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.at == nil {
		u.at = map[string]time.Time{}
	}
	if _, known := u.at[id]; known || len(u.at) < maxUses {
		u.at[id] = at
	}
}

// take returns the uses and forgets them.
func (u *uses) take() map[string]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	at := u.at
	u.at = nil
	return at
}

// recordUses stores the uses in database 0. What it cannot store is lost: it is a note for
// people, and the next use is another one.
func (s *Store) recordUses(ctx context.Context) error {
	taken := s.uses.take()
	if len(taken) == 0 {
		return nil
	}
	ids := slices.Collect(maps.Keys(taken))
	ages := make([]int64, len(ids))
	for i, id := range ids {
		ages[i] = time.Since(taken[id]).Milliseconds()
	}
	return s.change(ctx, 0, func(ctx context.Context, tx pgx.Tx) error {
		_, err := sql.RecordUses.Exec(ctx, tx, ids, ages)
		return err
	})
}

// purgeTokens deletes the tokens that expired long ago, in all databases.
func (s *Store) purgeTokens(ctx context.Context) error {
	return s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		return s.change(ctx, d, func(ctx context.Context, tx pgx.Tx) error {
			_, err := sql.PurgeTokens.Exec(ctx, tx, expiredKept.Milliseconds())
			return err
		})
	})
}

// Revoked returns the tokens whose revocation took effect within the last 15 s. A process
// that calls it often learns of every revocation, whichever process made it. all: there are
// more than it returns, so any token may be revoked.
func (s *Store) Revoked(ctx context.Context) (ids []string, all bool, err error) {
	ids, err = read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
		rows, err := sql.RecentlyRevoked.Query(ctx, pool, revokedWindow.Milliseconds(), maxRevoked)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[string])
	})
	return ids, len(ids) == maxRevoked, err
}
