package backlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	tenants        = 1000
	kindsPerTenant = 8
	zipfExponent   = 0.9
	// otherTenants is the base of the ids of all tenants but the largest one, which is the
	// tenant of the stack.
	otherTenants = 1_000_000
)

// Mix describes the generated tasks.
type Mix struct {
	// Tenant is the id of the largest tenant.
	Tenant int32
	// From and To bound the due instants. To is excluded.
	From, To task.Instant
	// ParamsBytes is the approximate size of the params of a task. The smallest is about 70.
	ParamsBytes int
	// Seed makes the tasks repeatable.
	Seed uint64
}

// Maker generates the tasks of chunks. It is not safe for concurrent use.
type Maker interface {
	// Chunk returns n tasks without ids. Except for created_at, they depend only on the
	// number of the chunk. The next call overwrites them.
	Chunk(number, n int, now task.Instant) []task.Row
}

// generator is the [Maker] of a [Mix].
type generator struct {
	Mix
	rng       *rand.Rand
	tenants   []int32 // indexed by 14 random bits; the frequencies follow Zipf's law
	kinds     map[int32][]string
	templates []template
	rows      []task.Row
	params    []byte
}

// template is the wire form of params with the offsets of their random digits.
type template struct {
	wire   []byte
	digits []int // offsets in wire
}

// NewMaker returns a maker for the tasks of a mix.
func NewMaker(m Mix) (Maker, error) {
	g := &generator{Mix: m, tenants: zipf(m.Tenant), kinds: map[int32][]string{}}
	for _, t := range g.tenants {
		if g.kinds[t] == nil {
			for k := range kindsPerTenant {
				g.kinds[t] = append(g.kinds[t], fmt.Sprintf("%s-%d", [...]string{"payment.reminder", "order.timeout", "coupon.expiry", "retry"}[k%4], k))
			}
		}
	}
	for _, action := range []string{"payment.reminder", "order.close", "coupon.expire", "notify.user"} {
		t, err := newTemplate(action, m.ParamsBytes)
		if err != nil {
			return nil, err
		}
		g.templates = append(g.templates, t)
	}
	return g, nil
}

// zipf returns the tenant for each of 16384 equally likely numbers.
func zipf(largest int32) []int32 {
	var weights [tenants]float64
	total := 0.0
	for i := range weights {
		weights[i] = math.Pow(float64(i+1), -zipfExponent)
		total += weights[i]
	}
	out := make([]int32, 0, 1<<14)
	up := 0.0
	for i, w := range weights {
		tenant := otherTenants + int32(i)
		if i == 0 {
			tenant = largest
		}
		up += w / total
		for float64(len(out)) < up*(1<<14)-0.5 {
			out = append(out, tenant)
		}
	}
	for len(out) < 1<<14 {
		out = append(out, otherTenants+tenants-1)
	}
	return out
}

const digitMark = "0000000000000000000"

// newTemplate returns a template of about n bytes with 19 digits, for 63 random bits.
func newTemplate(action string, n int) (template, error) {
	entries := map[string]string{"order_id": "ord-" + digitMark[:12], "user_id": "u" + digitMark[:7], "action": action}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{Entries: entries})
	if err != nil {
		return template{}, err
	}
	if missing := n - len(wire) - 10; missing > 0 {
		entries["note"] = strings.Repeat("please pay soon, or call us; ", missing/29+1)[:missing]
		if wire, err = (proto.MarshalOptions{Deterministic: true}).Marshal(&perceptorv1.Params{Entries: entries}); err != nil {
			return template{}, err
		}
	}
	t := template{wire: wire}
	for _, mark := range []string{"ord-" + digitMark[:12], "u" + digitMark[:7]} {
		at := bytes.Index(wire, []byte(mark))
		for i := range mark {
			if mark[i] == '0' {
				t.digits = append(t.digits, at+i)
			}
		}
	}
	return t, nil
}

// draw appends params with random digits to g.params and returns them.
func (g *generator) draw(random uint64) []byte {
	t := &g.templates[random%uint64(len(g.templates))]
	at := len(g.params)
	g.params = append(g.params, t.wire...)
	p := g.params[at:len(g.params):len(g.params)]
	bits := g.rng.Uint64()
	for _, i := range t.digits {
		p[i] = '0' + byte(bits%10)
		bits /= 10
	}
	return p
}

// Chunk implements [Maker].
func (g *generator) Chunk(number, n int, now task.Instant) []task.Row {
	g.rng = rand.New(rand.NewPCG(g.Seed, uint64(number)))
	if cap(g.rows) < n {
		g.rows = make([]task.Row, n)
		g.params = make([]byte, 0, n*len(g.templates[0].wire)*9/8)
	}
	g.rows, g.params = g.rows[:n], g.params[:0]
	for i := range g.rows {
		g.make(&g.rows[i], now)
	}
	return g.rows
}

func (g *generator) make(r *task.Row, now task.Instant) {
	random := g.rng.Uint64()
	tenant := g.tenants[random&(1<<14-1)]
	kind := int(random >> 14 % kindsPerTenant)
	due := g.From + task.Instant(g.rng.Uint64N(uint64(g.To-g.From)))
	*r = task.Row{
		Tenant: tenant, Type: task.OneShot, State: task.Scheduled, DueAt: due, ScheduledAt: due, Anchor: due, Version: 1,
		Terms: task.Terms{
			Kind: g.kinds[tenant][kind], Begin: due, End: task.Never, MaxCount: 1,
			Retry: task.RetryPolicy{
				MaxAttempts: task.DefaultMaxAttempts, InitialBackoff: task.DefaultInitialBackoff, Multiplier: task.DefaultMultiplier,
				MaxBackoff: task.DefaultMaxBackoff, Jitter: task.DefaultJitter,
			},
			AckTimeout: time.Duration(1+kind/4) * time.Minute, GiveUpAfter: task.DefaultGiveUpAfter, Retention: task.DefaultRetention,
		},
		Params: g.draw(random >> 20), CreatedAt: now,
	}
	share := random >> 40 % 100
	if share >= 85 {
		r.Type, r.MaxCount = task.NonBlocking, 0
		r.Interval = time.Duration(1+random>>50%24) * time.Hour
	}
	if share >= 95 {
		r.Type = task.Blocking
	}
}

// Sum is a number of tasks with the sum of their hashes. The sum does not depend on the
// order of the tasks.
type Sum struct {
	Count int64
	Hash  uint64
}

// Add adds a task.
func (s *Sum) Add(r *task.Row) {
	s.Count++
	s.Hash += hashOf(r)
}

// Plus returns the sum of the tasks of s and o.
func (s Sum) Plus(o Sum) Sum { return Sum{s.Count + o.Count, s.Hash + o.Hash} }

// Minus returns the sum of the tasks of s without those of o.
func (s Sum) Minus(o Sum) Sum { return Sum{s.Count - o.Count, s.Hash - o.Hash} }

// String returns the count and the checksum.
func (s Sum) String() string { return fmt.Sprintf("%d tasks, checksum %016x", s.Count, s.Hash) }

// hashOf returns the hash of a task's id, scheduled instant, kind and params.
func hashOf(r *task.Row) uint64 {
	h := mix(uint64(r.ID)^0x9e3779b97f4a7c15, uint64(r.ScheduledAt)^0xbf58476d1ce4e5b9)
	return hash(hash(h, r.Kind), r.Params)
}

// hash mixes b into h by multiplication, eight bytes at a time.
func hash[T string | []byte](h uint64, b T) uint64 {
	n := uint64(len(b))
	for ; len(b) >= 8; b = b[8:] {
		h = mix(h^word(b), 0xa0761d6478bd642f)
	}
	var last [8]byte
	copy(last[:], b)
	return mix(h^binary.LittleEndian.Uint64(last[:]), 0xe7037ed1a0b428db^n)
}

func word[T string | []byte](b T) uint64 {
	_ = b[7]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
