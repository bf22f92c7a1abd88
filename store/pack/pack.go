// Package pack turns many far tasks into two blobs and back, and knows the
// buckets of due time that packs belong to. It does no I/O; package store/shards
// keeps the blobs.
//
// # Why two blobs
//
// The keys hold everything that finds, lists and moves a task; the params are
// what its handler will be given. Most reads need the keys alone, and the keys
// are a third of the bytes.
//
// # Format, version 1
//
// A blob is
//
//	1 byte   'K' for keys, 'P' for params
//	1 byte   version: 1
//	1 byte   flags: 1 the content is compressed
//	4 bytes  CRC-32C (Castagnoli) of all other bytes, little endian
//	if compressed: the length of the content (uvarint), and one zstd frame
//	else: the content
//
// The content of the keys is
//
//	uvarint  n, the number of tasks: 1 .. 4096
//	uvarint  number of kinds; each: length (uvarint), bytes
//	uvarint  number of policies; each: 11 uvarints (see policy.numbers)
//	         the columns in the order of tenantColumn .. policyColumn
//	uvarint  number of further sections, which follow in the order of their numbers
//
// Section 1 follows if any task has sealed terms:
//
//	uvarint  1
//	uvarint  number of sealed terms (task.Seal); each: length (uvarint), bytes
//	column   which of them each task has: 0 none, else its place, from 1
//
// Section 2 follows if any task is paused. Such a task is due never; the column of due_at
// has its scheduled_at.
//
//	uvarint  2
//	column   1 for a paused task, else 0
//
// and that of the params
//
//	uvarint  n
//	4 bytes  CRC-32C of the ids, 8 bytes each, little endian: they belong together
//	column   the lengths
//	         the params one after another
//	uvarint  number of further sections: 0
//
// A column is written for all rows at once (see appendColumn). A value that all
// rows share costs two or three bytes a pack, so a column for a rare thing is
// free. Durations are milliseconds, multiplier and jitter hundredths, as in the
// near tier.
//
// # Reading what is not ours to trust
//
// A blob that was cut or changed must not become a wrong task. The checksum is
// compared before anything is read, every length before anything is allocated,
// and a flag or a section that this program does not know is refused: it may
// change what the rest means. All of that matches [ErrDamaged].
//
// A blob of a newer version is not damaged: it matches [ErrNewer], and a program of
// that version can read it. Every version begins with the magic byte and the version.
// A new flag or section needs a new version. A program must not write a version that
// the release before it cannot read.
package pack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/perceptor/perceptor/task"
)

// MaxTasks is the most tasks that one pack holds.
const MaxTasks = 4096

// MaxParams is the most bytes of params, all tasks together, in one pack.
const MaxParams = 16 << 20

// ErrDamaged is matched by every error that says that a blob was cut or changed, so
// that no program can read it.
var ErrDamaged = errors.New("damaged pack")

// ErrNewer is matched by every error that says that a blob is of a newer version than
// this program knows. Nothing else is known about the blob.
var ErrNewer = errors.New("pack of a newer version")

// Pack holds the two blobs of some tasks, and what a row of far_level0 or
// far_pack says about them.
type Pack struct {
	Keys, Params         []byte
	N                    int
	MinTenant, MaxTenant int32
	MinID, MaxID         task.ID
}

// Fit returns how many of the leading rows fit into one pack of at most most
// tasks: at least 1, unless rows is empty.
func Fit(rows []*task.Row, most int) int {
	most = min(len(rows), most, MaxTasks)
	total := 0
	for i := range most {
		total += len(rows[i].Params)
		if i > 0 && total > MaxParams {
			return i
		}
	}
	return most
}

// scratch is what an encoder needs beside its output.
type scratch struct {
	table   table
	content []byte
	// templates has the numbers of templates in the pack-th pack that was encoded.
	templates []likeNumbers
	pack      int64
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Encode packs 1 to [MaxTasks] rows in the order given, with at most [MaxParams]
// bytes of params (see [Fit]). Each must be SCHEDULED, without an open run, and
// no row of a run. fast compresses the keys less, for packs that do
// not live long. It may be called concurrently, and keeps nothing of rows.
func Encode(rows []*task.Row, fast bool) (Pack, error) {
	if len(rows) < 1 || len(rows) > MaxTasks {
		return Pack{}, fmt.Errorf("pack: %d tasks; 1 to %d are allowed", len(rows), MaxTasks)
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.table.reset(len(rows))
	p := span(rows)
	var err error
	if s.content, err = appendKeys(s.content[:0], rows, &s.table); err != nil {
		return Pack{}, err
	}
	if p.Keys, err = seal(keysMagic, s.content, fast); err != nil {
		return Pack{}, err
	}
	if s.content, err = appendParams(s.content[:0], rows, &s.table); err != nil {
		return Pack{}, err
	}
	// What is alike in params is alike from one to the next: the fastest level
	// finds it too, and is no worse.
	if p.Params, err = seal(paramsMagic, s.content, true); err != nil {
		return Pack{}, err
	}
	return p, nil
}

func span(rows []*task.Row) Pack {
	r := rows[0]
	p := Pack{N: len(rows), MinTenant: r.Tenant, MaxTenant: r.Tenant, MinID: r.ID, MaxID: r.ID}
	for _, r := range rows {
		p.MinTenant, p.MaxTenant = min(p.MinTenant, r.Tenant), max(p.MaxTenant, r.Tenant)
		p.MinID, p.MaxID = min(p.MinID, r.ID), max(p.MaxID, r.ID)
	}
	return p
}

// appendParams writes the content of the params blob.
func appendParams(dst []byte, rows []*task.Row, t *table) ([]byte, error) {
	lengths := t.cells[:len(rows)]
	total := 0
	for i, r := range rows {
		lengths[i] = int64(len(r.Params))
		total += len(r.Params)
	}
	if total > MaxParams {
		return nil, fmt.Errorf("pack: %d bytes of params; at most %d are allowed", total, MaxParams)
	}
	dst = binary.AppendUvarint(dst, uint64(len(rows)))
	dst = binary.LittleEndian.AppendUint32(dst, rowSum(rows))
	dst = appendColumn(dst, offsets, lengths)
	for _, r := range rows {
		dst = append(dst, r.Params...)
	}
	return binary.AppendUvarint(dst, 0), nil // no further sections
}

// rowSum is [idSum] of rows.
func rowSum(rows []*task.Row) uint32 {
	return idSum(len(rows), func(i int) task.ID { return rows[i].ID })
}

// idSum is a checksum of the ids of n tasks: it tells whose params a blob holds.
func idSum(n int, id func(i int) task.ID) uint32 {
	var sum uint32
	var b [512]byte
	part := b[:0]
	for i := range n {
		part = binary.LittleEndian.AppendUint64(part, uint64(id(i)))
		if len(part) == cap(part) || i == n-1 {
			sum, part = crc32.Update(sum, castagnoli, part), b[:0]
		}
	}
	return sum
}

// Decode returns the rows of a pack in the order in which they were packed. All
// of them, and their params, lie in shared memory that lives as long as any of
// them is used; they may be changed, but Params only as a whole. An error
// matches [ErrDamaged] or [ErrNewer].
func Decode(keys, params []byte) ([]*task.Row, error) {
	rows, err := DecodeKeys(keys)
	if err != nil {
		return nil, err
	}
	return rows, FillParams(rows, params, nil)
}

// room is memory for what nothing refers to once the rows have been built.
type room struct {
	content []byte
	cells   []int64
}

// keptContent is the largest content whose memory is used again. Packs of small params have a
// quarter of a megabyte.
const keptContent = 1 << 20

var rooms = sync.Pool{New: func() any { return &room{cells: make([]int64, columns*MaxTasks)} }}

// DecodeKeys is [Decode] without the params, which stay nil.
func DecodeKeys(keys []byte) (rows []*task.Row, err error) {
	err = withKeys(keys, func(d *decoded) (err error) {
		rows, err = d.rows()
		return err
	})
	return rows, err
}

// withKeys decodes the columns of keys for f, which must not keep them.
func withKeys(keys []byte, f func(*decoded) error) (err error) {
	defer recovered(&err)
	room := rooms.Get().(*room)
	defer rooms.Put(room)
	content, err := room.open(keysMagic, keys)
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	d, err := readKeys(content, room.cells)
	if err == nil {
		err = f(d)
	}
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	return nil
}

// open returns the content of a blob, which lies in the room if the blob is compressed.
func (m *room) open(magic byte, blob []byte) ([]byte, error) {
	content, err := open(magic, blob, m.content)
	if err == nil && blob[2]&compressed != 0 && cap(content) <= keptContent {
		m.content = content
	}
	return content, err
}

// FillParams sets the params of those rows that want chooses by their index, or
// of all if want is nil. rows must be all rows of the pack, in its order. What
// want has chosen is copied; else the rows share memory. An error matches
// [ErrDamaged] or [ErrNewer].
func FillParams(rows []*task.Row, params []byte, want func(i int) bool) (err error) {
	defer recovered(&err)
	content, err := open(paramsMagic, params, nil)
	if err != nil {
		return fmt.Errorf("params: %w", err)
	}
	if want == nil && params[2]&compressed == 0 {
		content = bytes.Clone(content) // it is the caller's blob
	}
	return readParams(content, len(rows), rowSum(rows), func(i int, b []byte) {
		switch {
		case want == nil:
			rows[i].Params = b
		case want(i):
			rows[i].Params = append([]byte{}, b...)
		}
	})
}

// readParams calls each with the params of each of n tasks whose ids have the sum. They lie
// in content.
func readParams(content []byte, n int, sum uint32, each func(i int, params []byte)) error {
	r := &reader{rest: content}
	if have := r.count("tasks", MaxTasks); have != n && r.err == nil {
		r.fail("has %d tasks, and the keys have %d", have, n)
	}
	if of := r.bytes(4); r.err == nil && binary.LittleEndian.Uint32(of) != sum {
		r.fail("belongs to other tasks than the keys")
	}
	lengths := r.column(n)
	for i := 0; i < n && r.err == nil; i++ {
		length := lengths.at(i)
		if length < 0 || length > MaxParams {
			r.fail("has a task with %d bytes of params", length)
			break
		}
		if b := r.bytes(int(length)); r.err == nil {
			each(i, b)
		}
	}
	if err := r.end(); err != nil {
		return fmt.Errorf("params: %w", err)
	}
	return nil
}
