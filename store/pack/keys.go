package pack

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/perceptor/perceptor/task"
)

// policy holds the values that many tasks share. A pack lists each combination once.
type policy struct {
	typ                              task.Type
	stop                             bool
	interval, ack, giveUp, retention time.Duration
	maxAttempts                      int32
	initialBackoff, maxBackoff       time.Duration
	multiplier, jitter               float64
}

func policyOf(r *task.Row) policy {
	return policy{
		typ: r.Type, stop: r.StopOnFailure, interval: r.Interval, ack: r.AckTimeout, giveUp: r.GiveUpAfter,
		retention: r.Retention, maxAttempts: r.Retry.MaxAttempts, initialBackoff: r.Retry.InitialBackoff,
		maxBackoff: r.Retry.MaxBackoff, multiplier: r.Retry.Multiplier, jitter: r.Retry.Jitter,
	}
}

// fill sets the fields of r that a policy holds.
func (p *policy) fill(r *task.Row) {
	r.Type, r.StopOnFailure, r.Interval = p.typ, p.stop, p.interval
	r.AckTimeout, r.GiveUpAfter, r.Retention = p.ack, p.giveUp, p.retention
	r.Retry = task.RetryPolicy{
		MaxAttempts: p.maxAttempts, InitialBackoff: p.initialBackoff, Multiplier: p.multiplier,
		MaxBackoff: p.maxBackoff, Jitter: p.jitter,
	}
}

// numbers returns the policy as it is stored, in the units of the near tier.
func (p *policy) numbers() [11]int64 {
	stop := int64(0)
	if p.stop {
		stop = 1
	}
	return [...]int64{
		int64(p.typ), stop, p.interval.Milliseconds(), p.ack.Milliseconds(), p.giveUp.Milliseconds(),
		p.retention.Milliseconds(), int64(p.maxAttempts), p.initialBackoff.Milliseconds(), p.maxBackoff.Milliseconds(),
		int64(math.Round(p.multiplier * 100)), int64(math.Round(p.jitter * 100)),
	}
}

func (p *policy) set(n [11]int64) {
	*p = policy{
		typ: task.Type(n[0]), stop: n[1] == 1, interval: millis(n[2]), ack: millis(n[3]), giveUp: millis(n[4]),
		retention: millis(n[5]), maxAttempts: int32(n[6]), initialBackoff: millis(n[7]), maxBackoff: millis(n[8]),
		multiplier: float64(n[9]) / 100, jitter: float64(n[10]) / 100,
	}
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// mostMillis is the most milliseconds that a time.Duration can hold.
const mostMillis = math.MaxInt64 / int64(time.Millisecond)

// policyLimits are the exclusive upper bounds of a policy's numbers.
var policyLimits = [...]int64{
	4, 2, mostMillis, mostMillis, mostMillis, mostMillis,
	math.MaxInt32, mostMillis, mostMillis, math.MaxInt16, math.MaxInt16,
}

// check returns the index of the first number that is out of its bounds, or -1.
func check(n [11]int64) int {
	for i, v := range n {
		if v < 0 || v >= policyLimits[i] || i == 0 && v == 0 {
			return i
		}
	}
	return -1
}

var policyNames = [11]string{
	"type", "stop_on_failure", "interval", "ack_timeout", "give_up_after", "retention", "max_attempts",
	"initial_backoff", "max_backoff", "multiplier", "jitter",
}

// dictionary numbers values in the order in which they first come.
type dictionary[T comparable] struct {
	index map[T]int64
	list  []T
	last  int64
}

func (d *dictionary[T]) number(v T) int64 {
	if len(d.list) > 0 && d.list[d.last] == v {
		return d.last
	}
	n, ok := d.index[v]
	if !ok {
		if d.index == nil {
			d.index = map[T]int64{}
		}
		n = int64(len(d.list))
		d.index[v] = n
		d.list = append(d.list, v)
	}
	d.last = n
	return n
}

// The columns of the keys, in the order in which they are written.
const (
	tenantColumn = iota
	numberColumn
	shardColumn
	dueColumn
	scheduledColumn  // less due_at
	beginColumn      // less scheduled_at
	anchorColumn     // less begin
	endColumn        // 0: never; else the zigzag distance from begin, and 1
	createdColumn    // less begin would cost more: many are created together
	firstClaimColumn // 0: none
	seqColumn
	maxCountColumn
	missedColumn
	versionColumn
	kindColumn
	policyColumn
	baseColumns

	// In the sections, if there are any.
	sealedColumn = baseColumns     // 0: none; else one more than its number
	pausedColumn = baseColumns + 1 // 1: paused
	columns      = baseColumns + 2
)

var forms = [columns]byte{tenantColumn: deltas, numberColumn: deltas, createdColumn: deltas}

// table is the working memory of an encoder: the rows, column by column.
type table struct {
	cells    []int64
	n        int
	kinds    dictionary[string]
	policies dictionary[policy]
	sealed   dictionary[string]
	paused   bool // some task is
}

// reset makes room for n tasks.
func (t *table) reset(n int) {
	t.kinds, t.policies, t.sealed, t.paused = dictionary[string]{}, dictionary[policy]{}, dictionary[string]{}, false
	t.n = n
	if cap(t.cells) < columns*n {
		t.cells = make([]int64, columns*n)
	}
	t.cells = t.cells[:columns*n]
}

func (t *table) column(c int) []int64 { return t.cells[c*t.n : (c+1)*t.n] }

func (t *table) set(i int, r *task.Row) {
	at := func(c int, v int64) { t.cells[c*t.n+i] = v }
	at(tenantColumn, int64(r.Tenant))
	at(numberColumn, int64(r.ID)/task.Shards)
	at(shardColumn, int64(r.ID)%task.Shards)
	due, paused := r.DueAt, int64(0)
	if r.Paused {
		due, paused, t.paused = r.ScheduledAt, 1, true
	}
	at(dueColumn, int64(due))
	at(scheduledColumn, int64(r.ScheduledAt-due))
	at(pausedColumn, paused)
	at(beginColumn, int64(r.Begin-r.ScheduledAt))
	at(anchorColumn, int64(r.Anchor-r.Begin))
	if r.End == task.Never {
		at(endColumn, 0)
	} else {
		at(endColumn, zigzag(int64(r.End-r.Begin))+1)
	}
	at(createdColumn, int64(r.CreatedAt))
	at(firstClaimColumn, int64(r.FirstClaimAt))
	at(seqColumn, r.Seq)
	at(maxCountColumn, r.MaxCount)
	at(missedColumn, r.Missed)
	at(versionColumn, int64(r.Version))
	at(kindColumn, t.kinds.number(r.Kind))
	at(policyColumn, t.policies.number(policyOf(r)))
	at(sealedColumn, t.sealedOf(r))
}

// plain are the terms without sealed terms.
var plain, _ = task.Unseal(nil)

// sealedOf returns 0 for none, or the number of the row's sealed terms plus one.
func (t *table) sealedOf(r *task.Row) int64 {
	terms := r.Terms
	terms.Retry, terms.StopOnFailure = plain.Retry, plain.StopOnFailure // the policy has them
	blob := task.Seal(&terms, &r.Origin)
	if blob == nil {
		return 0
	}
	return t.sealed.number(string(blob)) + 1
}

// appendKeys writes the content of the keys blob.
func appendKeys(dst []byte, rows []*task.Row, t *table) ([]byte, error) {
	for i, r := range rows {
		if err := fits(r); err != nil {
			return nil, err
		}
		t.set(i, r)
	}
	dst, err := t.appendDictionaries(dst)
	if err != nil {
		return nil, err
	}
	for c := range baseColumns {
		dst = appendColumn(dst, forms[c], t.column(c))
	}
	return t.appendSections(dst), nil
}

// appendDictionaries writes the number of tasks, the kinds and the policies.
func (t *table) appendDictionaries(dst []byte) ([]byte, error) {
	dst = binary.AppendUvarint(dst, uint64(t.n))
	dst = binary.AppendUvarint(dst, uint64(len(t.kinds.list)))
	for _, k := range t.kinds.list {
		dst = binary.AppendUvarint(dst, uint64(len(k)))
		dst = append(dst, k...)
	}
	dst = binary.AppendUvarint(dst, uint64(len(t.policies.list)))
	for _, p := range t.policies.list {
		numbers := p.numbers()
		if bad := check(numbers); bad >= 0 {
			return nil, fmt.Errorf("pack: %s %d of a task is not between 0 and %d", policyNames[bad], numbers[bad], policyLimits[bad]-1)
		}
		for _, v := range numbers {
			dst = binary.AppendUvarint(dst, uint64(v))
		}
	}
	return dst, nil
}

// The numbers of the sections that may follow the columns.
const (
	sealedSection = 1
	pausedSection = 2
)

// appendSections writes the number of further sections, and the sections.
func (t *table) appendSections(dst []byte) []byte {
	sections := uint64(0)
	for _, has := range []bool{len(t.sealed.list) > 0, t.paused} {
		if has {
			sections++
		}
	}
	dst = binary.AppendUvarint(dst, sections)
	if len(t.sealed.list) > 0 {
		dst = binary.AppendUvarint(dst, sealedSection)
		dst = binary.AppendUvarint(dst, uint64(len(t.sealed.list)))
		for _, e := range t.sealed.list {
			dst = append(binary.AppendUvarint(dst, uint64(len(e))), e...)
		}
		dst = appendColumn(dst, offsets, t.column(sealedColumn))
	}
	if t.paused {
		dst = appendColumn(binary.AppendUvarint(dst, pausedSection), offsets, t.column(pausedColumn))
	}
	return dst
}

// fits returns an error that says why a row cannot be in a pack, or nil.
func fits(r *task.Row) error {
	switch {
	case r.State != task.Scheduled || r.Run != 0 || r.Out || r.OpenCount() != 0 || r.Attempt != 0 || r.Failures != 0 || r.Holder != 0:
		return fmt.Errorf("pack: task %s is %s, run %d, %d open: only waiting tasks without open runs are packed", r.ID, r.State, r.Run, r.OpenCount())
	case !r.ID.Valid():
		return fmt.Errorf("pack: %d is not a task id", int64(r.ID))
	case r.DueAt < 0 || (r.DueAt == task.Never) != r.Paused || r.ScheduledAt < 0 || r.ScheduledAt == task.Never || r.Begin < 0 || r.Anchor < 0 || r.End < 0 || r.CreatedAt < 0 || r.FirstClaimAt < 0:
		return fmt.Errorf("pack: task %s has an instant before 1970, or is never due without a pause", r.ID)
	case r.Seq < 0 || r.MaxCount < 0 || r.Missed < 0 || r.Version < 0:
		return fmt.Errorf("pack: task %s has a negative count", r.ID)
	case len(r.Kind) > task.MaxKindBytes:
		return fmt.Errorf("pack: the kind of task %s has %d bytes; at most %d are allowed", r.ID, len(r.Kind), task.MaxKindBytes)
	}
	return nil
}

// decoded holds the content of the keys, column by column, without rows. The columns lie in
// memory that is used again.
type decoded struct {
	n        int
	cols     [columns]column
	kinds    []string
	policies []policy
	sealed   []unsealed
}

// readKeys is the inverse of appendKeys, but for the rows, which build makes.
func readKeys(content []byte, cells []int64) (*decoded, error) {
	r := &reader{rest: content, cells: cells}
	d := &decoded{n: r.count("tasks", MaxTasks)}
	if d.n == 0 {
		r.fail("has no tasks")
	}
	d.kinds = readKinds(r)
	d.policies = readPolicies(r)
	for c := range baseColumns {
		switch {
		case r.err != nil:
		case c == kindColumn:
			d.cols[c] = r.indexes(d.n, "kind", len(d.kinds))
		case c == policyColumn:
			d.cols[c] = r.indexes(d.n, "policy", len(d.policies))
		default:
			d.cols[c] = r.column(d.n)
		}
	}
	d.sealed = readSections(r, d.n, &d.cols)
	return d, r.done()
}

func readKinds(r *reader) []string {
	kinds := make([]string, r.count("kinds", MaxTasks))
	for i := range kinds {
		kinds[i] = string(r.bytes(r.count("bytes in a kind", task.MaxKindBytes)))
	}
	return kinds
}

// unsealed holds the results of [task.Unseal].
type unsealed struct {
	terms  task.Terms
	origin task.Origin
}

// readSections reads the sections behind the columns. It returns the dictionary of
// sealed terms: at index 0 those of most tasks.
func readSections(r *reader, n int, cols *[columns]column) []unsealed {
	list := []unsealed{{terms: plain}}
	last := uint64(0)
	for sections := r.count("further sections", pausedSection); sections > 0 && r.err == nil; sections-- {
		section := r.uvarint()
		switch {
		case section <= last || section > pausedSection:
			r.fail("has a section of number %d after number %d; this program knows numbers up to %d", section, last, pausedSection)
		case section == sealedSection:
			list = readSealed(r, n, cols, list)
		case section == pausedSection:
			cols[pausedColumn] = r.indexes(n, "state of pause", 2)
		}
		last = section
	}
	return list
}

func readSealed(r *reader, n int, cols *[columns]column, list []unsealed) []unsealed {
	for i := r.count("sealed terms", MaxTasks); i > 0 && r.err == nil; i-- {
		var u unsealed
		u.terms, u.origin = task.Unseal(r.bytes(r.count("bytes in sealed terms", task.MaxSealedBytes)))
		list = append(list, u)
	}
	if r.err == nil {
		cols[sealedColumn] = r.indexes(n, "sealed terms", len(list))
	}
	return list
}

func readPolicies(r *reader) []policy {
	policies := make([]policy, r.count("policies", MaxTasks))
	for i := range policies {
		var numbers [11]int64
		for j := range numbers {
			numbers[j] = int64(r.uvarint())
		}
		if bad := check(numbers); bad >= 0 && r.err == nil {
			r.fail("has a policy with %s %d", policyNames[bad], numbers[bad])
		}
		policies[i].set(numbers)
	}
	return policies
}

// rows builds the rows of all tasks. They lie in one piece of memory, which lives as long as
// any of them is used.
func (d *decoded) rows() ([]*task.Row, error) {
	slab := make([]task.Row, d.n)
	rows := make([]*task.Row, d.n)
	for i := range slab {
		rows[i] = &slab[i]
		if err := d.build(i, rows[i]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// tenant returns the tenant of the i-th task.
func (d *decoded) tenant(i int) int32 { return int32(d.cols[tenantColumn].at(i)) }

// id returns the id of the i-th task.
func (d *decoded) id(i int) task.ID {
	return task.ID(d.cols[numberColumn].at(i)*task.Shards + d.cols[shardColumn].at(i))
}

// build puts the columns of the i-th task together in r, which is zero.
func (d *decoded) build(i int, r *task.Row) error {
	cols := &d.cols
	s := &d.sealed[cols[sealedColumn].at(i)]
	r.Terms, r.Origin = s.terms, s.origin
	r.Tenant, r.ID = d.tenant(i), d.id(i)
	r.State = task.Scheduled
	r.DueAt = task.Instant(cols[dueColumn].at(i))
	r.ScheduledAt = r.DueAt + task.Instant(cols[scheduledColumn].at(i))
	if cols[pausedColumn].at(i) == 1 {
		r.Paused, r.DueAt = true, task.Never
	}
	r.Begin = r.ScheduledAt + task.Instant(cols[beginColumn].at(i))
	r.Anchor = r.Begin + task.Instant(cols[anchorColumn].at(i))
	r.End = task.Never
	if end := cols[endColumn].at(i); end != 0 {
		r.End = r.Begin + task.Instant(unzigzag(end-1))
	}
	r.CreatedAt = task.Instant(cols[createdColumn].at(i))
	r.FirstClaimAt = task.Instant(cols[firstClaimColumn].at(i))
	r.Seq = cols[seqColumn].at(i)
	r.MaxCount = cols[maxCountColumn].at(i)
	r.Missed = cols[missedColumn].at(i)
	r.Version = int32(cols[versionColumn].at(i))
	r.Kind = d.kinds[cols[kindColumn].at(i)]
	d.policies[cols[policyColumn].at(i)].fill(r)
	if err := fits(r); err != nil {
		return damaged("holds what cannot be: %v", err)
	}
	return nil
}
