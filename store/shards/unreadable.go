package shards

import (
	"context"
	"errors"
	"slices"

	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # Rows of the outbox that cannot be read
//
// A row that cannot be read must not keep its shards without an owner, and the runs that
// it lists must not be lost. Only the entries are unreadable: the row still tells its
// shards, and when it was written. Every run that it lists was claimed by then, and is
// open or needs no publication. So the new owner of a shard publishes all open runs of the
// shard that were claimed by then. Some of these runs have been published before: they
// are delivered again with the same run_id and attempt, which is allowed. Runs whose
// lease a listener has are left out.
//
// A damaged row is quarantined: marked with the reason, and kept. Its parts are
// acknowledged like those of any other row, so each shard is published once in this way. Of
// several rows of a shard, the newest stands for all: its open runs are those of the others,
// too.
//
// A row of a newer format is not damaged. It is published in the same way, but its parts
// are not acknowledged: it stays until a program that can read it owns its shards.

// maxAhead is longer than the time by which any claim is ahead of the clock.
const maxAhead = 60_000

// newestUnreadable returns the last unreadable row of each shard.
func newestUnreadable(rows []outboxRow) map[task.Shard]*outboxRow {
	newest := map[task.Shard]*outboxRow{}
	for i := range rows {
		if rows[i].fault == nil {
			continue
		}
		for _, shard := range rows[i].shards {
			if n := newest[shard]; n == nil || rows[i].created >= n.created {
				newest[shard] = &rows[i]
			}
		}
	}
	return newest
}

// unreadable publishes the open runs of a row that this program cannot read.
func (s *Store) unreadable(ctx context.Context, d int, r *outboxRow, newest map[task.Shard]*outboxRow, batch *task.OutboxBatch) error {
	for _, shard := range r.shards {
		if newest[shard] != r {
			continue
		}
		found, err := s.openRuns(ctx, d, shard, r.created+maxAhead, openRunsRead)
		if err != nil {
			return err
		}
		batch.Publications = append(batch.Publications, found...)
	}
	if errors.Is(r.fault, errOutboxNewer) {
		batch.Part.Row = 0 // of no row
		s.db.Log.Warn("outbox row waits for a newer program; its open runs are published", "database", d, "shards", len(r.shards), "runs", len(batch.Publications), "err", r.fault)
		return nil
	}
	if _, err := sql.OutboxQuarantine.Exec(ctx, s.db.Pool(d), r.id, kernel.Truncate(r.fault.Error(), far.MaxReason)); err != nil {
		return err
	}
	s.db.Log.Error("damaged outbox row quarantined; its open runs are published again", "database", d, "shards", len(r.shards), "runs", len(batch.Publications), "err", r.fault)
	return nil
}

// openRunsRead is the most rows that one statement reads in search of open runs.
const openRunsRead = 20_000

// openRuns returns the open runs of a shard that may be unpublished and were claimed at an
// instant up to until. It reads most rows at a time.
func (s *Store) openRuns(ctx context.Context, d int, shard task.Shard, until task.Instant, most int) (out []task.Publication, err error) {
	var last kernel.Key
	for read := most; read == most; {
		var keys []kernel.Key
		if keys, last, read, err = s.openKeys(ctx, d, shard, last, most); err != nil {
			return nil, err
		}
		for chunk := range slices.Chunk(keys, 2000) {
			rows, err := readRows(ctx, s.db.Pool(d), chunk)
			if err != nil {
				return nil, err
			}
			for _, k := range chunk {
				if r := rows[k]; r != nil {
					out = append(out, r.OpenPublications(until)...)
				}
			}
		}
	}
	return out, nil
}

// openKeys returns the keys of the next rows with open runs, the last key that it has
// read, and how many.
func (s *Store) openKeys(ctx context.Context, d int, shard task.Shard, after kernel.Key, most int) (keys []kernel.Key, last kernel.Key, read int, err error) {
	rows, err := sql.OpenRuns.Query(ctx, s.db.Pool(d), int16(shard), after.Tenant, int64(after.ID), after.Run, most)
	if err != nil {
		return nil, after, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var tenant int32
		var id task.ID
		var run int64
		var open bool
		if err := rows.Scan(&tenant, &id, &run, &open, &read); err != nil {
			return nil, after, 0, err
		}
		if last = kernel.KeyOf(tenant, id, run); open {
			keys = append(keys, last)
		}
	}
	return keys, last, read, rows.Err()
}
