package kernel

import (
	"bytes"
	"context"
	"encoding/binary"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

// KeyRow is the key row of a single new task.
type KeyRow struct {
	Shard  int16
	Tenant int32
	// Text is the key with its prefix.
	Text string
	ID   task.ID
	// Hash identifies the body.
	Hash *[16]byte
	// ExpiresAt is when the purge first looks for the task.
	ExpiresAt task.Instant
}

// keyFields is the number of columns that CopyKeys writes.
const keyFields = 8

// CopyKeys writes key rows of tasks that must be new. COPY writes a page of rows as one record of
// the log, and takes half of the time of an insert that passes over what exists. If a key
// exists, CopyKeys fails with the violation of task_key_pkey.
func CopyKeys(ctx context.Context, tx pgx.Tx, rows []KeyRow) error {
	size := 19 + 2
	for i := range rows {
		size += 100 + len(rows[i].Text)
	}
	buf := make([]byte, 0, size)
	buf = append(buf, "PGCOPY\n\xff\r\n\x00"...)
	buf = append(buf, 0, 0, 0, 0, 0, 0, 0, 0) // flags, length of the extension
	for i := range rows {
		k := &rows[i]
		buf = binary.BigEndian.AppendUint16(buf, keyFields)
		buf = copy4(copy2(buf, k.Shard), k.Tenant)
		buf = copy4(copy8(copyBytes(buf, k.Text), int64(k.ID)), 1)
		buf = copy8(copyBytes(buf, k.Hash[:]), int64(k.ExpiresAt))
		buf = append(buf, 0, 0, 0, 1, bit(true))
	}
	buf = append(buf, 0xff, 0xff) // the end marker
	const columns = "(shard, tenant_id, key, first_id, n, body_hash, expires_at, of_task)"
	_, err := tx.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(buf), "COPY task_key "+columns+" FROM STDIN (FORMAT binary)")
	return err
}
