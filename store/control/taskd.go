package control

import (
	"context"
	"errors"
	"time"

	"github.com/perceptor/perceptor/store/control/sql"
)

// taskdDatabases have the heartbeats of taskd processes. With two servers or more they are on
// different ones.
var taskdDatabases = [...]int{0, 8}

// Alive records that the taskd process with the name is alive. It returns the number of
// processes, including this one, that were alive within the given time. If the databases
// differ, the highest number counts. The error is of those that do not answer; live is 0 if
// none does.
func (s *Store) Alive(ctx context.Context, name string, within time.Duration) (live int, err error) {
	var failed []error
	for _, d := range taskdDatabases {
		n, err := s.aliveIn(ctx, d, name, within)
		failed = append(failed, err)
		live = max(live, n)
	}
	return live, errors.Join(failed...)
}

func (s *Store) aliveIn(ctx context.Context, d int, name string, within time.Duration) (live int, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err = domainError(sql.TaskdSeen.QueryRow(ctx, s.cluster.Pool(d), name, within.Milliseconds()).Scan(&live))
	return live, err
}

// Leave removes the heartbeats of a taskd process that ends.
func (s *Store) Leave(ctx context.Context, name string) error {
	var failed []error
	for _, d := range taskdDatabases {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		_, err := sql.TaskdGone.Exec(ctx, s.cluster.Pool(d), name)
		cancel()
		failed = append(failed, domainError(err))
	}
	return errors.Join(failed...)
}
