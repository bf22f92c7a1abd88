package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Limits of chunks.
const (
	// MaxChunkLines is the largest number of lines of a chunk, so that each of them may have a template of its own.
	MaxChunkLines = MaxTemplates
	// DefaultChunkLines is a good number of lines of a chunk.
	DefaultChunkLines = MaxChunkLines
	// MaxChunkBytes is the size of an encoded chunk from which on it takes no further line. A line
	// has less than 2 MiB, so a chunk stays below the limit of the API, 32 MiB.
	MaxChunkBytes = 24 << 20
	// MaxTemplates is the largest number of templates of a chunk.
	MaxTemplates = 1 << 16
	// maxKnown bounds the templates that a builder remembers from one chunk to the next, maxRemembered the size of their
	// terms.
	maxKnown      = 1 << 13
	maxRemembered = 512
)

// Builder packs lines into the columns of chunks. A chunk is full by its number of lines or its
// size, so it depends on nothing but the lines. A Builder must not be used concurrently.
type Builder struct {
	// Observe is called with each added line, and the task that stands for its terms. May be nil.
	Observe func(*perceptorv1.Task, *Line)

	lines    int
	number   int64
	encoder  *zstd.Encoder
	known    map[string]*template // by terms
	chunk    perceptorv1.ImportChunk
	index    map[string]uint32 // of templates of the chunk, by terms
	same     map[string]uint32 // and by their encoded form
	begin    task.Instant      // of the last line
	anyBegin bool
	anyKey   bool
	// anyPayload says that some template has a payload, which the column of params cannot have.
	anyPayload bool
	states     states
	runs       []run
	columns    *Columns // of the table of the first line
	size       int
	sum        uint64
	wire       []byte // scratch
}

// template is what terms stand for.
type template struct {
	task *perceptorv1.Task
	wire string // encoded; equal templates have equal ones
}

// NewBuilder returns a builder of chunks of at most some number of lines.
func NewBuilder(lines int) (*Builder, error) {
	if lines < 1 || lines > MaxChunkLines {
		return nil, fmt.Errorf("a chunk of %d lines is not possible: 1 to %d are", lines, MaxChunkLines)
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		return nil, err
	}
	b := &Builder{lines: lines, encoder: encoder, known: map[string]*template{}, index: map[string]uint32{}, same: map[string]uint32{}}
	b.reset()
	return b, nil
}

// reset begins the next chunk, in the memory of the last one.
func (b *Builder) reset() {
	c := &b.chunk
	c.Templates, c.Template, c.BeginMs = c.Templates[:0], c.Template[:0], c.BeginMs[:0]
	c.ParamsSize, c.Params, c.KeySize, c.Keys, c.States = c.ParamsSize[:0], c.Params[:0], c.KeySize[:0], c.Keys[:0], nil
	clear(b.index)
	clear(b.same)
	if len(b.known) > maxKnown {
		clear(b.known)
	}
	b.begin, b.anyBegin, b.anyKey, b.anyPayload, b.size, b.sum = 0, false, false, false, 0, 0
	b.states.reset()
	b.runs = nil
	b.number++
}

// Len returns the number of lines of the current chunk, Number its number.
func (b *Builder) Len() int { return len(b.chunk.Template) }

// Number returns the number of the current chunk, from 1.
func (b *Builder) Number() int64 { return b.number }

// Full reports whether the chunk must be taken before the next line is added.
func (b *Builder) Full() bool { return b.Len() >= b.lines || b.size >= MaxChunkBytes }

// Add appends a line of a source to the current chunk. The error is a [*Fault] if the line's
// terms cannot be read; then the line is not added.
func (b *Builder) Add(s Source, l *Line) error {
	i, ok := b.index[string(l.Terms)]
	if !ok {
		var err error
		if i, err = b.template(s, l); err != nil {
			return err
		}
	}
	if b.Len() == 0 {
		b.columns = columnsOf(s)
	}
	b.position(l.Position)
	c := &b.chunk
	c.Template = append(c.Template, i)
	c.BeginMs = append(c.BeginMs, int64(l.Begin-b.begin))
	b.begin, b.anyBegin = l.Begin, b.anyBegin || l.Begin != NoBegin
	c.ParamsSize = append(c.ParamsSize, uint32(len(l.Params))) //nolint:gosec // a line is short
	c.Params = append(c.Params, l.Params...)
	c.KeySize = append(c.KeySize, uint32(len(l.Key))) //nolint:gosec // a line is short
	c.Keys = append(c.Keys, l.Key...)
	b.anyKey = b.anyKey || len(l.Key) > 0
	b.states.add(l.State)
	const framing = 24 // of a line, at most
	b.size += framing + len(l.Params) + len(l.Key)
	b.sum += b.sumOf(l)
	if b.Observe != nil {
		b.Observe(c.Templates[i], l)
	}
	return nil
}

// columnsOf returns the columns of a source that is a table, or nil.
func columnsOf(s Source) *Columns {
	switch x := s.(type) {
	case *fileSource:
		return columnsOf(x.now)
	case *csvSource:
		return x.Columns
	case *parquetSource:
		return x.Columns
	case *sqlSource:
		return x.Columns
	}
	return nil
}

// sumOf returns the hash of a line.
func (b *Builder) sumOf(l *Line) uint64 {
	if l.Sum != 0 {
		return l.Sum
	}
	w := binary.AppendVarint(b.wire[:0], int64(l.Begin))
	for _, part := range [][]byte{l.Key, l.Params, l.Terms} {
		w = append(binary.AppendUvarint(w, uint64(len(part))), part...)
	}
	b.wire = w
	return xxhash.Sum64(w)
}

// template returns the index of the template of a line whose terms are new in the chunk.
func (b *Builder) template(s Source, l *Line) (uint32, error) {
	t := b.known[string(l.Terms)]
	if t == nil {
		x, err := s.Template(l)
		if err != nil {
			return 0, located(err, l.Position)
		}
		wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(x)
		if err != nil {
			return 0, located(&Fault{Rule: "has a text that is not valid UTF-8"}, l.Position)
		}
		t = &template{x, string(wire)}
		if len(l.Terms) <= maxRemembered {
			b.known[string(l.Terms)] = t
		}
	}
	b.anyPayload = b.anyPayload || t.task.Payload != nil
	i, ok := b.same[t.wire]
	if !ok {
		i = uint32(len(b.chunk.Templates)) //nolint:gosec // at most one for each line
		b.chunk.Templates = append(b.chunk.Templates, t.task)
		b.size += len(t.wire)
		b.same[t.wire] = i
	}
	b.index[string(l.Terms)] = i
	return i, nil
}

// located gives a fault its position, unless it has one.
func located(err error, at Position) error {
	var f *Fault
	if errors.As(err, &f) && f.Line == 0 {
		f.Position = at
	}
	return err
}

// run is a run of lines of a chunk, from an index on, whose numbers are consecutive.
type run struct {
	from int
	at   Position
}

// position records where the next line of the chunk was read.
func (b *Builder) position(at Position) {
	if n := len(b.runs); n > 0 {
		last := b.runs[n-1]
		if last.at.File == at.File && last.at.Line+int64(b.Len()-last.from) == at.Line {
			return
		}
	}
	b.runs = append(b.runs, run{b.Len(), at})
}

// Skip ends the current chunk without making it, because it is stored. It returns the number of lines and their
// checksum.
func (b *Builder) Skip() (lines int, sum uint64) {
	lines, sum = b.Len(), b.sum
	b.reset()
	return lines, sum
}

// Take ends the current chunk and returns it.
func (b *Builder) Take() (*Chunk, error) {
	if b.anyPayload {
		if err := b.moveParams(); err != nil {
			return nil, err
		}
	}
	c := &b.chunk
	c.Number, c.LineCount, c.Checksum = b.number, int32(b.Len()), b.sum //nolint:gosec // at most MaxChunkLines
	out := &Chunk{Number: b.number, Lines: b.Len(), Sum: b.sum, runs: b.runs, columns: b.columns}
	sent := &perceptorv1.ImportChunk{
		Number: c.Number, LineCount: c.LineCount, Checksum: c.Checksum, Templates: c.Templates, Params: c.Params, States: b.states.columns(),
	}
	if len(c.Templates) > 1 {
		sent.Template = c.Template
	}
	if b.anyBegin {
		sent.BeginMs = c.BeginMs
	}
	if len(c.Params) > 0 {
		sent.ParamsSize = c.ParamsSize
	}
	if b.anyKey {
		sent.KeySize, sent.Keys = c.KeySize, c.Keys
	}
	var err error
	if b.wire, err = (proto.MarshalOptions{}).MarshalAppend(b.wire[:0], sent); err != nil {
		return nil, fmt.Errorf("encode chunk %d: %w", b.number, err)
	}
	out.Wire = b.encoder.EncodeAll(b.wire, nil)
	b.reset()
	return out, nil
}

// moveParams moves the params of all lines from their column into templates, where payloads are. So most lines get a
// template of their own.
func (b *Builder) moveParams() error {
	c, wire := &b.chunk, b.chunk.Params
	own := map[string]uint32{}
	var templates []*perceptorv1.Task
	for i, n := range c.ParamsSize {
		t := proto.CloneOf(c.Templates[c.Template[i]])
		params := &perceptorv1.Params{}
		if err := proto.Unmarshal(wire[:n], params); err != nil {
			return fmt.Errorf("decode the params of a line: %w", err)
		}
		t.Params, wire = params.Entries, wire[n:]
		encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(t)
		if err != nil {
			return fmt.Errorf("encode the template of a line: %w", err)
		}
		at, ok := own[string(encoded)]
		if !ok {
			at = uint32(len(templates)) //nolint:gosec // at most one for each line
			own[string(encoded)], templates = at, append(templates, t)
		}
		c.Template[i] = at
	}
	c.Templates, c.Params, c.ParamsSize = templates, c.Params[:0], c.ParamsSize[:0]
	return nil
}

// states are the columns of the states of lines.
type states struct {
	scheduled, runs, missed, anchor []int64
	paused                          []bool
	any                             bool
}

func (s *states) reset() {
	s.scheduled, s.runs, s.missed, s.anchor, s.paused, s.any = s.scheduled[:0], s.runs[:0], s.missed[:0], s.anchor[:0], s.paused[:0], false
}

func (s *states) add(x State) {
	s.any = s.any || x != State{}
	s.scheduled, s.anchor = append(s.scheduled, int64(x.Scheduled)), append(s.anchor, int64(x.Anchor))
	s.runs, s.missed, s.paused = append(s.runs, x.Runs), append(s.missed, x.Missed), append(s.paused, x.Paused)
}

func (s *states) columns() *perceptorv1.LineStates {
	if !s.any {
		return nil
	}
	return &perceptorv1.LineStates{ScheduledMs: s.scheduled, RunCount: s.runs, MissedCount: s.missed, Paused: s.paused, AnchorMs: s.anchor}
}
