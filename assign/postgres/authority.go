package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/postgres/sql"
)

// Authority returns where members meet, for a [assign.Follower].
func (r *Registry) Authority(ctx context.Context) (a assign.Authority, err error) {
	err = r.outside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var age int64 // ms
		err := sql.Authority.QueryRow(ctx, conn).Scan(&a.Place, &a.Version, &age)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		a.Age = time.Duration(age) * time.Millisecond
		return err
	})
	return a, err
}

// MoveAuthority says that members meet in another place from now on. It returns
// [assign.ErrChanged] if the authority no longer has the given version.
func (r *Registry) MoveAuthority(ctx context.Context, place string, version int64) error {
	return r.outside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		err := sql.MoveAuthority.QueryRow(ctx, conn, place, version).Scan(&version)
		if errors.Is(err, pgx.ErrNoRows) {
			return assign.ErrChanged
		}
		return err
	})
}
