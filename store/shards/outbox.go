package shards

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// The outbox holds, packed into one row for each claiming transaction, the runs that
// were claimed and are not known to be published. The new owner of a shard publishes
// the remaining entries. Format of entries: one byte 1, then for each run five unsigned
// varints: shard, tenant, task id, seq, attempt. The other values of a record are in the
// run's row. If the run is closed, it needs no publication. The first byte of a newer
// format is larger. unreadable.go handles rows that this program cannot read.

const outboxVersion = 1

// outboxEntry is one claimed delivery.
type outboxEntry struct {
	tenant  int32
	id      task.ID
	seq     int64
	attempt int32
}

func encodeEntries(pubs []task.Publication) []byte {
	out := make([]byte, 1, 1+16*len(pubs))
	out[0] = outboxVersion
	for i := range pubs {
		p := &pubs[i]
		for _, v := range [...]uint64{uint64(p.Task.Shard()), uint64(p.Tenant), uint64(p.Task), uint64(p.Seq), uint64(p.Attempt)} {
			out = binary.AppendUvarint(out, v)
		}
	}
	return out
}

// Errors of a row that cannot be read: it is damaged, or a newer program wrote it.
var (
	errOutboxFormat = errors.New("outbox entries are damaged")
	errOutboxNewer  = errors.New("outbox entries have a newer format than this program knows")
)

func decodeEntries(b []byte) ([]outboxEntry, error) {
	switch {
	case len(b) == 0 || b[0] == 0:
		return nil, fmt.Errorf("%w: no format", errOutboxFormat)
	case b[0] > outboxVersion:
		return nil, fmt.Errorf("%w: %d instead of %d", errOutboxNewer, b[0], outboxVersion)
	}
	b = b[1:]
	var out []outboxEntry
	for len(b) > 0 {
		var v [5]uint64
		for i := range v {
			x, n := binary.Uvarint(b)
			if n <= 0 {
				return nil, fmt.Errorf("%w: truncated", errOutboxFormat)
			}
			v[i], b = x, b[n:]
		}
		e := outboxEntry{tenant: int32(v[1]), id: task.ID(v[2]), seq: int64(v[3]), attempt: int32(v[4])}
		if !e.id.Valid() || uint64(e.id.Shard()) != v[0] || v[1] > 1<<31-1 || e.seq < 1 || v[4] < 1 || v[4] > 1<<31-1 {
			return nil, fmt.Errorf("%w: values out of range", errOutboxFormat)
		}
		out = append(out, e)
	}
	return out, nil
}

// shardsOf returns the distinct shards of publications, in order.
func shardsOf(pubs []task.Publication) []int16 {
	var out []int16
	for i := range pubs {
		out = append(out, int16(pubs[i].Task.Shard()))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// partArgs converts parts into two parallel arrays.
func partArgs(parts []task.OutboxPart) (rows []int64, shards []int16) {
	for _, p := range parts {
		for _, s := range p.Shards {
			rows = append(rows, p.Row)
			shards = append(shards, int16(s))
		}
	}
	return rows, shards
}

// queueAcknowledge adds the statements that acknowledge parts to a batch and returns their
// number.
func queueAcknowledge(b *pgx.Batch, parts []task.OutboxPart) int {
	if len(parts) == 0 {
		return 0
	}
	rows, shards := partArgs(parts)
	sql.OutboxDeleteWhole.Queue(b, rows, shards)
	sql.OutboxAcknowledge.Queue(b, rows, shards)
	sql.OutboxDeleteEmpty.Queue(b, rows)
	return 3
}

// AcknowledgeOutbox removes published parts of the outbox in a transaction of its own. If
// shards were lost it removes nothing and returns them.
func (s *Store) AcknowledgeOutbox(ctx context.Context, d int, owned []task.Ownership, parts []task.OutboxPart) (lost []task.Shard, err error) {
	return s.db.InOwnedTx(ctx, d, "acknowledge outbox", owned, func(tx pgx.Tx) error { return acknowledgeParts(ctx, tx, parts) })
}

// acknowledgeParts acknowledges parts with the last statements of a step.
func acknowledgeParts(ctx context.Context, tx pgx.Tx, parts []task.OutboxPart) error {
	b := &pgx.Batch{}
	if queueAcknowledge(b, parts) == 0 {
		return nil
	}
	return kernel.SendLast(ctx, tx, b)
}

// An outboxRow is a row of the outbox as a new owner reads it.
type outboxRow struct {
	id      int64
	shards  []task.Shard // of the row and of the owner
	created task.Instant
	entries []outboxEntry
	fault   error // why the entries cannot be read, or nil
}

const (
	// outboxRead is the most rows of the outbox that are read at once.
	outboxRead = 1000
	// entryBytes is about the size of an entry.
	entryBytes = 8
)

// Unpublished returns the outbox entries of owned shards, from the rows after the given
// one: about as many as runs, and at least one row. next is the row after which the next call
// continues, or 0 if there are no more. Call it after [Store.Acquire]
// has returned, when every transaction of an older owner has ended. Entries whose run is
// no longer open are left out; the batch of their row still has the parts of the shards.
// In place of the entries of a row that it cannot read, it returns all open runs that the
// row may have listed.
func (s *Store) Unpublished(ctx context.Context, d int, owned []task.Ownership, after int64, runs int) (batches []task.OutboxBatch, next int64, err error) {
	found, next, err := s.readOutbox(ctx, d, owned, after, runs*entryBytes)
	if err != nil {
		return nil, 0, fmt.Errorf("read outbox: %w", err)
	}
	out := make([]task.OutboxBatch, len(found))
	newest := newestUnreadable(found)
	for i := range found {
		r := &found[i]
		out[i].Part = task.OutboxPart{Row: r.id, Shards: r.shards}
		if r.fault != nil {
			err = s.unreadable(ctx, d, r, newest, &out[i])
		} else {
			out[i].Publications, err = s.republish(ctx, d, r.entries)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read outbox: row %d: %w", r.id, err)
		}
	}
	return out, next, nil
}

// readOutbox reads the next rows, up to the one with which their entries have that many bytes. If PostgreSQL
// has lost the entries of one of them, which it does not name, readOutbox reads one row.
func (s *Store) readOutbox(ctx context.Context, d int, owned []task.Ownership, after int64, most int) (found []outboxRow, next int64, err error) {
	found, next, err = s.outboxRows(ctx, d, owned, after, outboxRead, most, nil)
	if kernel.DataCorrupted(err) {
		found, next, err = s.outboxRows(ctx, d, owned, after, 1, most, nil)
	}
	if kernel.DataCorrupted(err) {
		found, next, err = s.outboxRows(ctx, d, owned, after, 1, most, err)
	}
	return found, next, err
}

// outboxRows reads the next rows. With lost, which says why the entries cannot be read, it reads all else.
func (s *Store) outboxRows(ctx context.Context, d int, owned []task.Ownership, after int64, count, most int, lost error) (found []outboxRow, next int64, err error) {
	shards, _, _ := kernel.OwnedArgs(owned)
	rows, err := sql.OutboxRead.Query(ctx, s.db.Pool(d), shards, after, count, most, lost == nil)
	if err != nil {
		return nil, 0, err
	}
	bytes := 0
	found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r outboxRow, err error) {
		var of []int16
		var packed []byte
		if err := row.Scan(&r.id, &of, &r.created, &packed); err != nil {
			return r, err
		}
		bytes += len(packed)
		r.shards = intersect(of, shards)
		if lost != nil {
			r.fault = fmt.Errorf("%w: %w", errOutboxFormat, lost)
			return r, nil
		}
		r.fault = kernel.Recovered(func() (err error) {
			r.entries, err = decodeEntries(packed)
			return err
		})
		r.entries = slices.DeleteFunc(r.entries, func(e outboxEntry) bool { return !slices.Contains(r.shards, e.id.Shard()) })
		return r, nil
	})
	if len(found) == count || len(found) > 0 && bytes >= most {
		next = found[len(found)-1].id
	}
	return found, next, err
}

func intersect(a, b []int16) []task.Shard {
	var out []task.Shard
	for _, x := range a {
		if slices.Contains(b, x) {
			out = append(out, task.Shard(x))
		}
	}
	return out
}

// republish builds the publications of entries from the rows of their runs.
func (s *Store) republish(ctx context.Context, d int, entries []outboxEntry) ([]task.Publication, error) {
	var out []task.Publication
	for chunk := range slices.Chunk(entries, 2000) {
		var keys []kernel.Key
		for _, e := range chunk {
			keys = append(keys, kernel.KeyOf(e.tenant, e.id, 0), kernel.KeyOf(e.tenant, e.id, e.seq))
		}
		rows, err := readRows(ctx, s.db.Pool(d), keys)
		if err != nil {
			return nil, err
		}
		for _, e := range chunk {
			row := rows[kernel.KeyOf(e.tenant, e.id, e.seq)]
			if row == nil {
				row = rows[kernel.KeyOf(e.tenant, e.id, 0)]
			}
			if row == nil {
				continue
			}
			if p := row.Publication(e.seq, e.attempt); p != nil {
				out = append(out, *p)
			}
		}
	}
	return out, nil
}

// readRows returns the rows of keys that exist, without locking them.
func readRows(ctx context.Context, q kernel.Querier, keys []kernel.Key) (map[kernel.Key]*task.Row, error) {
	rows, err := sql.MachineRead.Query(ctx, q, kernel.KeyArgs(kernel.UniqueKeys(keys))...)
	if err != nil {
		return nil, err
	}
	list, err := kernel.CollectRows(rows)
	if err != nil {
		return nil, err
	}
	out := make(map[kernel.Key]*task.Row, len(list))
	for _, r := range list {
		out[kernel.RowKey(r)] = r
	}
	return out, nil
}

// OutboxStats describes the outbox of database d.
func (s *Store) OutboxStats(ctx context.Context, d int) (o task.OutboxStats, err error) {
	err = scanOutbox(sql.OutboxStats.QueryRow(ctx, s.db.Pool(d), []byte{outboxVersion}), &o)
	return o, err
}

func scanOutbox(row pgx.Row, o *task.OutboxStats) error {
	return row.Scan(&o.Rows, &o.Waiting, &o.Quarantined, &o.Oldest, &o.Now)
}

// QueueStats is [Store.OutboxStats] and [Store.QuarantinedRows] in one round trip.
func (s *Store) QueueStats(ctx context.Context, d int) (o task.OutboxStats, quarantinedRows int, err error) {
	b := &pgx.Batch{}
	sql.OutboxStats.Queue(b, []byte{outboxVersion}).QueryRow(func(row pgx.Row) error { return scanOutbox(row, &o) })
	sql.RowsQuarantined.Queue(b, quarantineCounted.Milliseconds()).QueryRow(func(row pgx.Row) error { return row.Scan(&quarantinedRows) })
	err = s.db.Pool(d).SendBatch(ctx, b).Close()
	return o, quarantinedRows, err
}
