package shards

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/perceptor/perceptor/task"
)

// A claim returns many small rows of 19 values, and pgx would decode each value through
// an interface. The columns are always the same, so this file decodes them by hand from
// the binary format.

// claimedTypes are the types of the columns of the fragment claim_returning.
var claimedTypes = [...]uint32{
	pgtype.Int8OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.Int8OID, pgtype.Int8OID, pgtype.Int2OID, pgtype.Int8OID,
	pgtype.Int4OID, pgtype.Int2OID, pgtype.Int8OID, pgtype.Int8OID, pgtype.Int8OID, pgtype.Int8OID, pgtype.Int4OID,
	pgtype.Int4OID, pgtype.BoolOID, pgtype.TextOID, pgtype.ByteaOID, pgtype.ByteaOID,
}

// checkClaimed returns an error for columns that decode would misread.
func checkClaimed(columns []pgconn.FieldDescription) error {
	if n := len(claimedTypes); len(columns) == n+1 && columns[n].DataTypeOID == pgtype.Int8OID {
		columns = columns[:n] // the last one is claimed.read
	}
	if len(columns) != len(claimedTypes) {
		return fmt.Errorf("read claimed rows: %d columns, want %d", len(columns), len(claimedTypes))
	}
	for i := range columns {
		c := &columns[i]
		// Text has the same encoding in both formats.
		if c.DataTypeOID != claimedTypes[i] || (c.Format != pgx.BinaryFormatCode && c.DataTypeOID != pgtype.TextOID) {
			return fmt.Errorf("read claimed rows: column %s has type %d in format %d, want type %d in binary", c.Name, c.DataTypeOID, c.Format, claimedTypes[i])
		}
	}
	return nil
}

// claimReader reads the rows of one claim statement.
type claimReader struct {
	rows    pgx.Rows
	checked bool
	values  [][]byte // values of the row that are not yet decoded
	err     error    // first error in the row
	// The targets of the row's pointers, and the kind of the previous row: consecutive rows
	// of one kind share its string.
	interval, end int64
	kind          string
}

// read decodes the current row into r. Except for its params, r is valid until the next
// row is read.
func (d *claimReader) read(r *claimed) error {
	if !d.checked {
		if err := checkClaimed(d.rows.FieldDescriptions()); err != nil {
			return err
		}
		d.checked = true
	}
	return d.decode(d.rows.RawValues(), r)
}

// decode reads the values in the order of claim_returning, and the number of rows read if there
// is one more value.
func (d *claimReader) decode(values [][]byte, r *claimed) error {
	if n := len(values) - len(claimedTypes); n != 0 && n != 1 {
		return fmt.Errorf("read a claimed row: %d values, want %d", len(values), len(claimedTypes))
	}
	d.values, d.err = values, nil
	r.now, r.tenant, r.id, r.run, r.due = d.int8(), d.int4(), d.int8(), d.int8(), d.int8()
	r.typ, r.seq, r.attempt, r.state = d.int2(), d.int8(), d.int4(), d.int2()
	r.scheduled, r.anchor = d.int8(), d.int8()
	r.interval, r.end = d.nullable(&d.interval), d.nullable(&d.end)
	r.version, r.ackTimeout, r.undecided = d.int4(), d.int4(), d.fixed(1)[0] != 0
	if kind := d.next(); string(kind) != d.kind {
		d.kind = string(kind)
	}
	r.kind, r.params = d.kind, bytes.Clone(d.next())
	terms, origin := task.Unseal(d.next())
	r.origin, r.misfire = origin, terms.MisfirePolicy(task.Type(r.typ))
	if len(d.values) > 0 {
		r.read = d.int8()
	}
	return d.err
}

func (d *claimReader) next() []byte {
	v := d.values[0]
	d.values = d.values[1:]
	return v
}

// fixed returns the next value, which must have n bytes. After an error it returns n zeros.
func (d *claimReader) fixed(n int) []byte {
	v := d.next()
	if len(v) != n {
		if d.err == nil {
			d.err = fmt.Errorf("read a claimed row: value %d has %d bytes, want %d", len(claimedTypes)-len(d.values), len(v), n)
		}
		return make([]byte, n)
	}
	return v
}

func (d *claimReader) int2() int16 { return int16(binary.BigEndian.Uint16(d.fixed(2))) }
func (d *claimReader) int4() int32 { return int32(binary.BigEndian.Uint32(d.fixed(4))) }
func (d *claimReader) int8() int64 { return int64(binary.BigEndian.Uint64(d.fixed(8))) }

// nullable stores the next value at place and returns place, or returns nil for NULL.
func (d *claimReader) nullable(place *int64) *int64 {
	if d.values[0] == nil {
		d.next()
		return nil
	}
	*place = d.int8()
	return place
}
