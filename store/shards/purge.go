package shards

import (
	"context"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/task"
)

// purgeAtOnce is about how many rows of each table one purge removes.
const purgeAtOnce = 5000

// Purge removes expired keys, finished tasks and dead runs of database d, a
// bounded number. It returns how many, and whether there may be more. Several may
// do it at once.
func (s *Store) Purge(ctx context.Context, d int) (n int, more bool, err error) {
	n, more, err = s.purgeTaskKeys(ctx, d)
	if err != nil {
		return n, false, fmt.Errorf("purge: %w", err)
	}
	for _, step := range []string{"KeyPurge", "DonePurge", "DeadPurge", "BulkForget"} {
		args := []any{purgeAtOnce}
		if step == "DeadPurge" {
			args = append(args, s.cfg.DeadRetention.Milliseconds())
		}
		var gone int
		if err := s.cluster.Pool(d).QueryRow(ctx, sql.Get(step), args...).Scan(&gone); err != nil {
			return n, false, fmt.Errorf("purge: %w", err)
		}
		n += gone
		more = more || gone >= purgeAtOnce
	}
	var gone int
	if err := s.cluster.Pool(d).QueryRow(ctx, sql.Get("BulkPurge"), task.BulkKept.Milliseconds(), purgeAtOnce).Scan(&gone); err != nil {
		return n, false, fmt.Errorf("purge: %w", err)
	}
	return n + gone, more, nil
}

// OldestSnapshot returns the age of the oldest snapshot that anybody holds on the
// server of database d: vacuum removes nothing that is younger. Sessions of other
// users show only to those who may read all statistics.
func (s *Store) OldestSnapshot(ctx context.Context, d int) (time.Duration, error) {
	var ms int64
	if err := s.cluster.Pool(d).QueryRow(ctx, sql.Get("OldestSnapshot"), 0).Scan(&ms); err != nil {
		return 0, fmt.Errorf("look for old snapshots: %w", err)
	}
	return millis(ms), nil
}
