package control

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/control/sql"
)

// maxIDs bounds the cached ids of tokens. In an installation with more tokens none is cached.
const maxIDs = 200_000

// Exists reports whether a token with the id of a secret existed when [Store.Run] last read
// the ids, at most 30 s ago. It makes no call, and does not say whether the secret is right.
func (s *Store) Exists(secret string) bool {
	ids := s.ids.Load()
	if ids == nil {
		return false
	}
	_, ok := (*ids)[idOf(secret)]
	return ok
}

// readIDs caches the ids of all tokens.
func (s *Store) readIDs(ctx context.Context) error {
	list, err := read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
		rows, err := sql.TokenIDs.Query(ctx, pool, maxIDs+1)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[string])
	})
	if err != nil {
		return err
	}
	ids := map[string]struct{}{}
	if len(list) <= maxIDs {
		for _, id := range list {
			ids[id] = struct{}{}
		}
	}
	s.ids.Store(&ids)
	return nil
}
