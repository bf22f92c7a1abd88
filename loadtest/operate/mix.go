package operate

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/loadtest/backlog"
	"github.com/perceptor/perceptor/task"
)

// The kinds of every tenant. Each kind of the large tenant has a tenth of all tasks.
const (
	kindPause = iota // paused and resumed
	kindMove         // rescheduled
	kindCancel
	kindAbort // paused by operations that are aborted
	kindPlain // not changed
	kinds
)

var kindNames = [kinds]string{"operate.pause", "operate.move", "operate.cancel", "operate.abort", "operate.plain"}

// The tags. One task of a hundred has rareTag, one of ten has commonTag.
const (
	rareTag   = "campaign-7"
	commonTag = "vip"
)

// The shares of the tenants in all tasks. Other tenants have the rest.
const (
	largeShare  = 0.5
	mediumShare = 0.2
	smallShare  = 0.005
)

// nearMargin is the distance of near due instants from the horizon.
const nearMargin = 30 * time.Second

// span is the range of due instants [from, to).
type span struct{ from, to task.Instant }

// part returns part i of n equal parts.
func (s span) part(i, n task.Instant) span {
	width := (s.to - s.from) / n
	return span{s.from + i*width, s.from + (i+1)*width}
}

func (s span) holds(at task.Instant) bool { return s.from <= at && at < s.to }

type tenants struct{ large, medium, small int32 }

type mix struct {
	tenants
	near, far   span
	nearShare   float64
	others      int
	paramsBytes int
	seed        uint64
}

// newMix returns the mix of a run that begins now.
func newMix(o *Options, t tenants, now task.Instant) mix {
	return mix{
		tenants: t, nearShare: o.Near, others: o.Others, paramsBytes: o.ParamsBytes, seed: o.Seed,
		near: span{now.Add(o.quiet()), now.Add(o.horizon() - nearMargin)},
		far:  span{now.Add(o.horizon() + o.quiet()), now.Add(time.Duration(o.Days) * 24 * time.Hour)},
	}
}

// maker generates a mix from a backlog's tasks. It keeps their types, intervals and params.
type maker struct {
	mix
	backlog.Maker
	round uint64 // of loading; each round makes other tasks
	tags  [4][]string
}

// otherTenants is the id of the first of the other tenants.
const otherTenants = 1_000_000

func (m mix) maker(round int) (backlog.Maker, error) {
	under, err := backlog.NewMaker(backlog.Mix{
		Tenant: m.large, From: m.far.from, To: m.far.to, ParamsBytes: m.paramsBytes, Seed: m.seed + uint64(round),
	})
	return &maker{
		mix: m, Maker: under, round: uint64(round),
		tags: [4][]string{nil, {rareTag}, {commonTag}, task.SortTags([]string{rareTag, commonTag})},
	}, err
}

// Chunk implements [backlog.Maker].
func (m *maker) Chunk(number, n int, now task.Instant) []task.Row {
	rows := m.Maker.Chunk(number, n, now)
	rng := rand.New(rand.NewPCG(m.seed, m.round<<32|uint64(number)))
	for i := range rows {
		m.shape(&rows[i], rng)
	}
	return rows
}

func (m *maker) shape(r *task.Row, rng *rand.Rand) {
	r.Tenant = m.tenant(rng)
	bits := rng.Uint64()
	r.Kind = kindNames[bits%kinds]
	tags := 0
	if bits>>16%100 == 0 {
		tags |= 1
	}
	if bits>>32%10 == 0 {
		tags |= 2
	}
	r.Tags, r.Retention = m.tags[tags], 24*time.Hour
	if rng.Float64() < m.nearShare {
		due := m.near.from + task.Instant(rng.Int64N(int64(m.near.to-m.near.from)))
		r.DueAt, r.ScheduledAt, r.Anchor, r.Begin = due, due, due, due
	}
}

func (m *maker) tenant(rng *rand.Rand) int32 {
	switch x := rng.Float64(); {
	case x < largeShare:
		return m.large
	case x < largeShare+smallShare:
		return m.small
	case x < largeShare+smallShare+mediumShare || m.others == 0:
		return m.medium
	}
	return otherTenants + int32(rng.IntN(m.others))
}

// wanted counts the tasks that a list must return. Empty fields match all tasks.
type wanted struct {
	tenant int32
	kind   string
	tag    string
	due    span
	n      atomic.Int64
}

// count counts a task if the list must return it.
func (w *wanted) count(r *task.Row) {
	switch {
	case r.Tenant != w.tenant, w.kind != "" && r.Kind != w.kind, w.due != span{} && !w.due.holds(r.DueAt):
	case w.tag != "" && !slices.Contains(r.Tags, w.tag):
	default:
		w.n.Add(1)
	}
}

// shift is the time by which tasks are rescheduled.
const shift = time.Hour

// The groups are the kinds of the large tenant and a group of all other tasks.
const (
	others = kinds
	groups = kinds + 1
)

// entry sums up the tasks of a group. It does not depend on their order.
type entry struct {
	Count int64
	// Hash is the sum of the hashes of the tasks. A hash covers the scheduled instant and
	// everything that no operation changes.
	Hash uint64
	// Paused counts the paused tasks. Odd counts the tasks that are not SCHEDULED, or whose
	// due instant does not fit their scheduled instant.
	Paused, Odd int64
}

// String describes the entry.
func (e entry) String() string {
	text := fmt.Sprintf("%d tasks (checksum %016x), %d paused", e.Count, e.Hash, e.Paused)
	if e.Odd > 0 {
		text += fmt.Sprintf(", %d with a wrong state or due instant", e.Odd)
	}
	return text
}

// book sums up all tasks, except those of the steady tenant and of tenants that existed
// before the run. The run creates the large tenant first, so these have lower ids. add may
// be called concurrently.
type book struct {
	large, steady int32
	mu            sync.Mutex
	groups        [groups]entry
}

// page sums up the tasks that one goroutine counts.
type page [groups]entry

// groupOf returns the group of a task, or -1 for an unknown kind of the large tenant.
func (b *book) groupOf(r *task.Row) int {
	if r.Tenant == b.large {
		return slices.Index(kindNames[:], r.Kind)
	}
	return others
}

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

// hashOf returns the hash of a task with at as its scheduled instant.
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

// books sum up the tasks that must be stored, after loading and after each operation.
type books struct {
	book
	// moved is the entry of kindMove after it is rescheduled.
	moved entry
}

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

func (b *books) change(group int, what func(*entry)) { what(&b.groups[group]) }

// compare describes each group that differs.
func compare(want, got *[groups]entry) (faults []string) {
	for g := range want {
		if want[g] != got[g] {
			name := "all other tasks"
			if g < kinds {
				name = kindNames[g]
			}
			faults = append(faults, fmt.Sprintf("%s: found %s, want %s", name, got[g], want[g]))
		}
	}
	return faults
}
