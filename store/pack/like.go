package pack

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/perceptor/perceptor/task"
)

// # Like tasks
//
// The tasks of an import differ in few fields, and there are many of them. As rows, most of the
// time would go into writing and reading hundreds of equal bytes a task. [Like] has the fields that differ in
// columns, and for the others one template for many tasks. Its packs are those that [Encode] would
// make of the rows: a test compares them byte by byte.

// Template is what like tasks have in common.
type Template struct {
	kind     string
	policy   policy
	sealed   string // empty: none
	end      task.Instant
	maxCount int64
	version  int32
}

// NewTemplate returns a template with the fields of a row that tasks have in common. The row must be
// that of a task that could be packed, but for its id and its instants.
func NewTemplate(r *task.Row) Template {
	terms := r.Terms
	terms.Retry, terms.StopOnFailure = plain.Retry, plain.StopOnFailure // the policy has them
	return Template{
		kind: r.Kind, policy: policyOf(r), sealed: string(task.Seal(&terms, &r.Origin)), end: r.End, maxCount: r.MaxCount, version: r.Version,
	}
}

// Like are new tasks of one tenant that were created at one instant. All slices have one value for each task.
type Like struct {
	Tenant    int32
	CreatedAt task.Instant
	Templates []Template
	// Template is the index of the template.
	Template []int32
	IDs      []task.ID
	// Begin is begin_time, First the first instant, at which the task is due.
	Begin, First []task.Instant
	Params       [][]byte
}

// Fit is [Fit] for the tasks with some indexes, with a limit of bytes of params.
func (l *Like) Fit(at []uint64, mask uint64, most, bytes int) int {
	most = min(len(at), most, MaxTasks)
	total := 0
	for i, x := range at[:most] {
		if total += len(l.Params[x&mask]); i > 0 && total > min(bytes, MaxParams) {
			return i
		}
	}
	return most
}

// likeNumbers are the numbers of a template in the dictionaries of a pack.
type likeNumbers struct {
	pack                 int64 // of which they are; 0: none
	kind, policy, sealed int64
}

// Encode is [Encode] for the tasks whose indexes are in the bits of mask of some numbers, in their order.
func (l *Like) Encode(at []uint64, mask uint64, fast bool) (Pack, error) {
	n := len(at)
	if n < 1 || n > MaxTasks {
		return Pack{}, fmt.Errorf("pack: %d tasks; 1 to %d are allowed", n, MaxTasks)
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.table.reset(n)
	p := Pack{N: n, MinTenant: l.Tenant, MaxTenant: l.Tenant}
	p.MinID = l.IDs[at[0]&mask]
	p.MaxID = p.MinID
	for _, x := range at {
		id := l.IDs[x&mask]
		p.MinID, p.MaxID = min(p.MinID, id), max(p.MaxID, id)
	}
	var err error
	if s.content, err = l.appendKeys(s.content[:0], s, at, mask); err != nil {
		return Pack{}, err
	}
	if p.Keys, err = seal(keysMagic, s.content, fast); err != nil {
		return Pack{}, err
	}
	if s.content, err = l.appendParams(s.content[:0], &s.table, at, mask); err != nil {
		return Pack{}, err
	}
	if p.Params, err = seal(paramsMagic, s.content, true); err != nil {
		return Pack{}, err
	}
	return p, nil
}

// appendKeys writes the content of the keys blob.
func (l *Like) appendKeys(dst []byte, s *scratch, at []uint64, mask uint64) ([]byte, error) {
	if l.CreatedAt < 0 {
		return nil, fmt.Errorf("pack: tasks that were created before 1970")
	}
	t := &s.table
	mixed, err := l.fill(s, at, mask)
	if err != nil {
		return nil, err
	}
	if dst, err = t.appendDictionaries(dst); err != nil {
		return nil, err
	}
	ofTemplates := appendSame
	if mixed {
		ofTemplates = appendColumn
	}
	for c := range baseColumns {
		appendAs := appendSame
		switch c {
		case numberColumn, shardColumn, dueColumn, beginColumn, anchorColumn:
			appendAs = appendColumn
		case endColumn, maxCountColumn, kindColumn, policyColumn:
			appendAs = ofTemplates
		}
		dst = appendAs(dst, forms[c], t.column(c))
	}
	if !mixed {
		sealed := t.column(sealedColumn)
		for i := range sealed {
			sealed[i] = sealed[0]
		}
	}
	return t.appendSections(dst), nil
}

// fill fills the columns that differ. Of the others it sets the first value. mixed says that the
// tasks have several templates.
func (l *Like) fill(s *scratch, at []uint64, mask uint64) (mixed bool, err error) {
	t := &s.table
	for c := range columns {
		t.column(c)[0] = 0
	}
	first := l.Template[at[0]&mask]
	for _, x := range at {
		if l.Template[x&mask] != first {
			mixed = true
			break
		}
	}
	numbers, shards, dues := t.column(numberColumn), t.column(shardColumn), t.column(dueColumn)
	begins, anchors := t.column(beginColumn), t.column(anchorColumn)
	for i, x := range at {
		x &= mask
		id, begin, due := l.IDs[x], l.Begin[x], l.First[x]
		if !id.Valid() || begin < 0 || due < 0 || due == task.Never {
			return false, fmt.Errorf("pack: task %s, which begins at %d and is due at %d, cannot be packed", id, begin, due)
		}
		numbers[i], shards[i], dues[i] = int64(id)/task.Shards, int64(id)%task.Shards, int64(due)
		begins[i], anchors[i] = int64(begin-due), int64(due-begin)
	}
	t.column(tenantColumn)[0], t.column(createdColumn)[0] = int64(l.Tenant), int64(l.CreatedAt)
	t.column(versionColumn)[0] = int64(l.Templates[first].version)
	s.numberTemplates(len(l.Templates))
	ends, counts, kinds := t.column(endColumn), t.column(maxCountColumn), t.column(kindColumn)
	policies, sealed := t.column(policyColumn), t.column(sealedColumn)
	for i, x := range at {
		x &= mask
		m := &l.Templates[l.Template[x]]
		no := s.numbersOf(l.Template[x], m)
		kinds[i], policies[i], sealed[i], counts[i], ends[i] = no.kind, no.policy, no.sealed, m.maxCount, 0
		if m.end != task.Never {
			ends[i] = zigzag(int64(m.end-l.Begin[x])) + 1
			mixed = true // the end is stored by its distance from the begin
		}
		if !mixed {
			break // all others are the same
		}
	}
	return mixed, nil
}

// numberTemplates begins a pack: no template has numbers in it.
func (s *scratch) numberTemplates(n int) {
	if len(s.templates) < n {
		s.templates = make([]likeNumbers, n)
	}
	s.pack++
}

// numbersOf returns the numbers of a template in the dictionaries of the pack.
func (s *scratch) numbersOf(template int32, m *Template) *likeNumbers {
	no := &s.templates[template]
	if no.pack == s.pack {
		return no
	}
	t := &s.table
	*no = likeNumbers{pack: s.pack, kind: t.kinds.number(m.kind), policy: t.policies.number(m.policy)}
	if m.sealed != "" {
		no.sealed = t.sealed.number(m.sealed) + 1
	}
	return no
}

// appendSame is appendColumn for a column in which all values are the first one.
func appendSame(dst []byte, form byte, values []int64) []byte {
	return binary.AppendVarint(append(dst, form), values[0])
}

// appendParams writes the content of the params blob.
func (l *Like) appendParams(dst []byte, t *table, at []uint64, mask uint64) ([]byte, error) {
	lengths := t.cells[:len(at)]
	total := 0
	var sum uint32
	var ids [512]byte
	part := ids[:0]
	for i, x := range at {
		x &= mask
		lengths[i] = int64(len(l.Params[x]))
		total += len(l.Params[x])
		if part = binary.LittleEndian.AppendUint64(part, uint64(l.IDs[x])); len(part) == len(ids) {
			sum, part = crc32.Update(sum, castagnoli, part), ids[:0]
		}
	}
	sum = crc32.Update(sum, castagnoli, part)
	if total > MaxParams {
		return nil, fmt.Errorf("pack: %d bytes of params; at most %d are allowed", total, MaxParams)
	}
	dst = binary.AppendUvarint(dst, uint64(len(at)))
	dst = binary.LittleEndian.AppendUint32(dst, sum)
	dst = appendColumn(dst, offsets, lengths)
	for _, x := range at {
		dst = append(dst, l.Params[x&mask]...)
	}
	return binary.AppendUvarint(dst, 0), nil // no further sections
}
