package backlog

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/perceptor/perceptor/task"
)

// Sum is a number of tasks with the sum of their hashes: the same for the same
// tasks in any order.
type Sum struct {
	Count int64
	Hash  uint64
}

// Add adds a task.
func (s *Sum) Add(r *task.Row) {
	s.Count++
	s.Hash += hashOf(r)
}

// Plus returns both together.
func (s Sum) Plus(o Sum) Sum { return Sum{s.Count + o.Count, s.Hash + o.Hash} }

// Minus returns s without o.
func (s Sum) Minus(o Sum) Sum { return Sum{s.Count - o.Count, s.Hash - o.Hash} }

// String returns both for people.
func (s Sum) String() string { return fmt.Sprintf("%d tasks, checksum %016x", s.Count, s.Hash) }

// hashOf is what a task adds to a sum: its id, instant, kind and params.
func hashOf(r *task.Row) uint64 {
	h := mix(uint64(r.ID)^0x9e3779b97f4a7c15, uint64(r.ScheduledAt)^0xbf58476d1ce4e5b9)
	return hash(hash(h, r.Kind), r.Params)
}

// hash folds b into h by multiplication, eight bytes at a time.
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
