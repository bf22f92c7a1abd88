package kernel

import "github.com/perceptor/perceptor/task"

// # Terms
//
// The terms that SQL statements compare have their own columns. The fragment term_columns
// lists them, and this file lists them in Go in the same order. All other terms are
// sealed in the column terms, so a new term needs no change here.

// termScan receives the columns of term_columns.
type termScan struct {
	begin                   int64
	end, interval, maxCount *int64
	ackTimeout              int32
	giveUp, retention       int64
	kind                    string
	sealed                  []byte
}

func (s *termScan) targets() []any {
	return []any{&s.begin, &s.end, &s.interval, &s.maxCount, &s.ackTimeout, &s.giveUp, &s.retention, &s.kind, &s.sealed}
}

// terms returns the scanned terms and origin.
func (s *termScan) terms() (task.Terms, task.Origin) {
	t, o := task.Unseal(s.sealed)
	t.Begin, t.End, t.Kind = task.Instant(s.begin), InstantOr(s.end, task.Never), s.kind
	t.AckTimeout, t.GiveUpAfter, t.Retention = Millis(s.ackTimeout), Millis(s.giveUp), Millis(s.retention)
	if s.interval != nil {
		t.Interval = Millis(*s.interval)
	}
	if s.maxCount != nil {
		t.MaxCount = *s.maxCount
	}
	return t, o
}

// TermArgs returns the terms of a row as arguments of the fragment term_values.
func TermArgs(r *task.Row) []any {
	return []any{
		int64(r.Begin), Nullable(r.End), OrNull(r.Interval.Milliseconds()), OrNull(r.MaxCount), int32(r.AckTimeout.Milliseconds()),
		r.GiveUpAfter.Milliseconds(), r.Retention.Milliseconds(), r.Kind, task.Seal(&r.Terms, &r.Origin),
	}
}

// termColumns holds the terms of many rows, column by column.
type termColumns struct {
	begins                    []int64
	ends, intervals, maxCount []*int64
	ackTimeouts               []int32
	giveUps, retentions       []int64
	kinds                     []string
	sealed                    [][]byte
}

func (c *termColumns) add(r *task.Row) {
	c.begins = append(c.begins, int64(r.Begin))
	c.ends = append(c.ends, Nullable(r.End))
	c.intervals = append(c.intervals, OrNull(r.Interval.Milliseconds()))
	c.maxCount = append(c.maxCount, OrNull(r.MaxCount))
	c.ackTimeouts = append(c.ackTimeouts, int32(r.AckTimeout.Milliseconds()))
	c.giveUps = append(c.giveUps, r.GiveUpAfter.Milliseconds())
	c.retentions = append(c.retentions, r.Retention.Milliseconds())
	c.kinds = append(c.kinds, r.Kind)
	c.sealed = append(c.sealed, task.Seal(&r.Terms, &r.Origin))
}

// args returns the columns as arguments of the fragment term_arrays.
func (c *termColumns) args() []any {
	return []any{c.begins, c.ends, c.intervals, c.maxCount, c.ackTimeouts, c.giveUps, c.retentions, c.kinds, c.sealed}
}

// The columns of term_columns for COPY.
const (
	copyTermColumns = `begin_at, end_at, interval_ms, max_count, ack_timeout_ms, give_up_after_ms, retention_ms, kind, terms`
	copyTermFields  = 9
)

// copyTerms appends the terms of a row in the binary format of COPY.
func copyTerms(b []byte, r *task.Row) []byte {
	b = copy8(b, int64(r.Begin))
	b = copyOr(b, int64(r.End), r.End != task.Never)
	b = copyOr(b, r.Interval.Milliseconds(), r.Interval != 0)
	b = copyOr(b, r.MaxCount, r.MaxCount != 0)
	b = copy4(b, int32(r.AckTimeout.Milliseconds()))
	b = copy8(b, r.GiveUpAfter.Milliseconds())
	b = copy8(b, r.Retention.Milliseconds())
	b = copyBytes(b, r.Kind)
	if sealed := task.Seal(&r.Terms, &r.Origin); sealed != nil {
		return copyBytes(b, sealed)
	}
	return append(b, 0xff, 0xff, 0xff, 0xff)
}
