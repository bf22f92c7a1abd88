package shards

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// notFound returns the error for unknown tasks and for tasks of other tenants.
func notFound(id task.ID) error {
	return task.Errorf(task.ReasonTaskNotFound, "there is no task %d", id)
}

// Get returns a task, living or retained.
func (s *Store) Get(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	if !id.Valid() {
		return nil, notFound(id)
	}
	t, err := getIn(ctx, s.db.Pool(id.Shard().Database()), tenant, id)
	if err != nil {
		return nil, kernel.Unavailable(kernel.Damaged(id, err))
	}
	return t, nil
}

// getIn is Get through q; in a snapshot a task does not move.
func getIn(ctx context.Context, q kernel.Querier, tenant int32, id task.ID) (*task.Snapshot, error) {
	for range readAgain {
		out, f, err := readTask(ctx, q, tenant, id)
		switch {
		case err != nil:
			return nil, err
		case out != nil:
			return out, nil
		case f == nil:
			return nil, notFound(id)
		}
		gone, err := f.Fill(ctx, q, false)
		if err != nil {
			return nil, err
		}
		if !gone {
			return &task.Snapshot{Row: *f.Row(), FinishedAt: task.Never}, nil
		}
	}
	return nil, task.Errorf(task.ReasonTaskBusy, "task %d is moving between tiers; try again", id)
}

// readAgain is how often a read is repeated because the task moved after it was found in a
// pack and before its params were read.
const readAgain = 8

// readTask finds a task in one snapshot. It returns the task as callers see it, or its
// packed row, or neither.
func readTask(ctx context.Context, q kernel.Querier, tenant int32, id task.ID) (*task.Snapshot, *far.Task, error) {
	rows, err := sql.TaskRead.Query(ctx, q, int16(id.Shard()), tenant, int64(id))
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	var copies []far.Copy
	for rows.Next() {
		var scan kernel.RowScan
		var finished *int64
		var c far.Copy
		if err := rows.Scan(scan.Targets(&finished, &c.Pack, &c.Damaged, &c.Keys)...); err != nil {
			return nil, nil, err
		}
		if c.Pack == 0 {
			return scan.Snapshot(finished), nil, nil
		}
		copies = append(copies, c)
	}
	if err := rows.Err(); err != nil {
		return nil, nil, err
	}
	f, err := far.Find(copies, tenant, id)
	return nil, f, err
}

// Census holds exact numbers of a tenant's tasks and rows, over all databases.
type Census struct {
	Scheduled, Running, RunRows, Finished, Dead int64
}

// Census counts a tenant's tasks and rows in all tiers. It reads every row and the
// keys of every pack, so it is for checks and small installations only. Each database is
// read in one snapshot, one after another, so the sum is not of one instant.
func (s *Store) Census(ctx context.Context, tenant int32) (Census, error) {
	var sum Census
	for d := range task.Databases {
		var c Census
		err := s.db.InSnapshot(ctx, d, func(tx pgx.Tx) error {
			err := sql.Census.QueryRow(ctx, tx, tenant).Scan(&c.Scheduled, &c.Running, &c.RunRows, &c.Finished, &c.Dead)
			if err != nil {
				return err
			}
			return far.Each(ctx, tx, tenant, 0, task.Never, false, func(*task.Row) { c.Scheduled++ })
		})
		if err != nil {
			return Census{}, fmt.Errorf("count rows of database %d: %w", d, err)
		}
		sum.Scheduled += c.Scheduled
		sum.Running += c.Running
		sum.RunRows += c.RunRows
		sum.Finished += c.Finished
		sum.Dead += c.Dead
	}
	return sum, nil
}

// countPacked adds the packed tasks of a tenant (0: of all tenants). All are SCHEDULED.
func countPacked(ctx context.Context, tx pgx.Tx, tenant int32, add func(counters.Key, int64)) error {
	return far.Each(ctx, tx, tenant, 0, task.Never, false, func(r *task.Row) {
		add(counters.Key{Tenant: r.Tenant, Type: r.Type, Cell: task.Cell(r.State)}, 1)
	})
}
