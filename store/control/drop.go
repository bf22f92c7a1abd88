package control

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/control/sql"
)

// DropTenant removes a tenant and its tokens from all databases, database 0 last, and
// records in each that its number must not be used again. It may be repeated until all
// databases have answered. Dropping a tenant that does not exist has no effect.
func (s *Store) DropTenant(ctx context.Context, id int32) error {
	drop := func(ctx context.Context, d int, tx pgx.Tx) error {
		if err := raiseSettings(ctx, tx, d); err != nil {
			return err
		}
		_, err := sql.DropTenant.Exec(ctx, tx, id)
		return err
	}
	err := s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		if d == 0 {
			return nil
		}
		return s.change(ctx, d, func(ctx context.Context, tx pgx.Tx) error { return drop(ctx, d, tx) })
	})
	if err != nil {
		return away(err, "the tenant is not removed from all databases yet")
	}
	return s.decide(ctx, func(ctx context.Context, tx pgx.Tx) error { return drop(ctx, 0, tx) })
}
