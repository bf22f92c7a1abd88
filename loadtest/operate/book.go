package operate

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// shift is how far tasks are rescheduled.
const shift = time.Hour

// groups are the kinds of the large tenant, and everything else.
const (
	others = kinds
	groups = kinds + 1
)

// entry sums up the tasks of a group. It is the same in any order.
type entry struct {
	Count int64
	// Hash is of what no operation changes, and of the scheduled instant.
	Hash uint64
	// Paused are those with the flag, Odd those whose state or due instant does not
	// fit what they are.
	Paused, Odd int64
}

// String returns the entry for people.
func (e entry) String() string {
	text := fmt.Sprintf("%d tasks (checksum %016x), %d paused", e.Count, e.Hash, e.Paused)
	if e.Odd > 0 {
		text += fmt.Sprintf(", %d whose state or due instant does not fit", e.Odd)
	}
	return text
}

// book sums up all tasks but those of the steady tenant, and of tenants that were there
// before: the large one is the first that is made. add may be called concurrently,
// one page each.
type book struct {
	large, steady int32
	mu            sync.Mutex
	groups        [groups]entry
}

// page is the share of one goroutine.
type page [groups]entry

func (b *book) groupOf(r *task.Row) int {
	if r.Tenant == b.large {
		return slices.Index(kindNames[:], r.Kind)
	}
	return others
}

// count adds a task to a page, as it is.
func (b *book) count(p *page, r *task.Row) {
	if r.Tenant < b.large || r.Tenant == b.steady {
		return
	}
	g := b.groupOf(r)
	if g < 0 {
		g = others
	}
	e := &p[g]
	e.Count++
	e.Hash += hashOf(r, r.ScheduledAt)
	due := r.ScheduledAt
	if r.Paused {
		e.Paused++
		due = task.Never
	}
	if r.State != task.Scheduled || r.DueAt != due {
		e.Odd++
	}
}

func (b *book) add(p *page) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for g := range p {
		e, q := &b.groups[g], &p[g]
		e.Count, e.Hash, e.Paused, e.Odd = e.Count+q.Count, e.Hash+q.Hash, e.Paused+q.Paused, e.Odd+q.Odd
	}
}

var hashSeed = maphash.MakeSeed()

// hashOf is of what a task is, with a scheduled instant.
func hashOf(r *task.Row, at task.Instant) uint64 {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	var b [40]byte
	w := binary.LittleEndian.AppendUint64(b[:0], uint64(r.ID))
	w = binary.LittleEndian.AppendUint64(w, uint64(at))
	w = binary.LittleEndian.AppendUint64(w, uint64(r.Interval))
	w = binary.LittleEndian.AppendUint32(w, uint32(r.Tenant))
	w = append(w, byte(r.Type), byte(len(r.Kind)))
	h.Write(w)                              //nolint:errcheck // never fails
	h.WriteString(r.Kind)                   //nolint:errcheck // never fails
	h.Write(r.Params)                       //nolint:errcheck // never fails
	h.Write(task.Seal(&r.Terms, &r.Origin)) //nolint:errcheck // never fails
	return h.Sum64()
}

// books are what was stored, and what it comes to by operations.
type books struct {
	book
	// moved is the kind that is rescheduled, as it is then.
	moved entry
}

// record records what was stored.
func (b *books) record(rows []task.Row) {
	var p page
	moved := uint64(0)
	for i := range rows {
		r := &rows[i]
		b.count(&p, r)
		if b.groupOf(r) == kindMove {
			moved += hashOf(r, r.ScheduledAt.Add(shift))
		}
	}
	b.add(&p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moved.Hash += moved
	b.moved.Count = b.groups[kindMove].Count
}

// change says what an operation has made of the group.
func (b *books) change(group int, what func(*entry)) { what(&b.groups[group]) }

// compare returns what is not as it should be.
func compare(want, got *[groups]entry) (faults []string) {
	for g := range want {
		if want[g] != got[g] {
			name := "all other tasks"
			if g < kinds {
				name = kindNames[g]
			}
			faults = append(faults, fmt.Sprintf("%s: found %s; want %s", name, got[g], want[g]))
		}
	}
	return faults
}
