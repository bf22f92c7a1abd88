// Package history keeps what the processes of a load run saw, on disk, until it
// is checked.
//
// Every process writes one directory entry per part: records of fixed size, the
// part chosen by the task's id. [Check] reads part after part, so that a run of
// any length is checked in the memory of a 64th of it. Adds that were not
// acknowledged have no id; they lie in a part of their own, which is held in
// memory.
package history

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

const (
	parts       = 64
	unanswered  = parts // the part of adds without an id
	bufferBytes = 32 << 10
)

// The first byte of a record says what it is.
const (
	tagAdd byte = iota + 1
	tagExecution
	tagReply
	tagFinal
)

// sizes are those of the records, without the tag.
var sizes = [...]int{tagAdd: 8*8 + 3, tagExecution: 8*7 + 4 + 2 + 1, tagReply: 8*3 + 4 + 2 + 1 + 1, tagFinal: 8*8 + 4 + 2}

// Writer writes what one process sees. Its methods may be called concurrently.
// The first error is kept and returned by Close.
type Writer struct {
	parts [parts + 1]part
}

type part struct {
	mu   sync.Mutex
	file *os.File
	buf  *bufio.Writer
	err  error
}

// Create makes a writer in dir. name is the process's own.
func Create(dir, name string) (*Writer, error) {
	w := &Writer{}
	for i := range w.parts {
		file, err := os.OpenFile(filepath.Join(dir, partName(i, name)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			w.Close() //nolint:errcheck // nothing was written
			return nil, fmt.Errorf("create history: %w", err)
		}
		w.parts[i].file, w.parts[i].buf = file, bufio.NewWriterSize(file, bufferBytes)
	}
	return w, nil
}

func partName(i int, name string) string { return fmt.Sprintf("%02d.%s", i, name) }

// Close writes what is buffered and returns the first error of all.
func (w *Writer) Close() error {
	var errs []error
	for i := range w.parts {
		p := &w.parts[i]
		if p.file == nil {
			continue
		}
		errs = append(errs, p.err, p.buf.Flush(), p.file.Close())
	}
	return errors.Join(errs...)
}

func (w *Writer) write(id task.ID, b []byte) {
	i := unanswered
	if id != 0 {
		i = int(uint64(id/task.Shards)+uint64(id%task.Shards)) % parts
	}
	p := &w.parts[i]
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.buf.Write(b); err != nil && p.err == nil {
		p.err = fmt.Errorf("write history: %w", err)
	}
}

var order = binary.LittleEndian

func put[T ~int64 | ~int](b []byte, v T) []byte { return order.AppendUint64(b, uint64(v)) }

// Add records what became of an add.
func (w *Writer) Add(a check.Add) {
	b := append(make([]byte, 0, 80), tagAdd)
	b = put(put(put(put(b, a.Number), a.ID), a.Begin), a.End)
	b = put(put(put(put(b, a.Interval), a.MaxCount), a.Sent), a.Answered)
	b = append(b, byte(a.Answer), byte(a.Type), flag(a.Retained))
	w.write(a.ID, b)
}

func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// Execution records a call of a handler.
func (w *Writer) Execution(e check.Execution) {
	b := append(make([]byte, 0, 80), tagExecution)
	b = put(put(put(put(b, e.Number), e.ID), e.Seq), e.ScheduledAt)
	b = put(put(put(b, e.Missed), e.Start), e.End)
	b = order.AppendUint32(b, uint32(e.Attempt))
	b = order.AppendUint16(b, e.Listener)
	w.write(e.ID, append(b, byte(e.Outcome)))
}

// Reply records an answer to a start or a report.
func (w *Writer) Reply(r check.Reply) {
	b := append(make([]byte, 0, 80), tagReply)
	b = put(put(put(b, r.ID), r.Seq), r.Answered)
	b = order.AppendUint32(b, uint32(r.Attempt))
	b = order.AppendUint16(b, r.Listener)
	w.write(r.ID, append(b, byte(r.Call), byte(r.Code)))
}

// Final records what the API says about a task at the end.
func (w *Writer) Final(f check.Final) {
	b := append(make([]byte, 0, 80), tagFinal)
	b = put(put(put(put(b, f.ID), f.Number), f.Begin), f.End)
	b = put(put(put(put(b, f.Interval), f.MaxCount), f.Runs), f.Missed)
	b = order.AppendUint32(b, uint32(f.Open))
	w.write(f.ID, append(b, byte(f.Type), byte(f.State)))
}

// reader takes fields off a record.
type reader []byte

func (r *reader) int64() int64 {
	v := order.Uint64(*r)
	*r = (*r)[8:]
	return int64(v)
}

func (r *reader) int32() int32 {
	v := order.Uint32(*r)
	*r = (*r)[4:]
	return int32(v)
}

func (r *reader) uint16() uint16 {
	v := order.Uint16(*r)
	*r = (*r)[2:]
	return v
}

func (r *reader) byte() byte {
	v := (*r)[0]
	*r = (*r)[1:]
	return v
}

func (r *reader) add() (a check.Add) {
	a.Number, a.ID = r.int64(), task.ID(r.int64())
	a.Begin, a.End = task.Instant(r.int64()), task.Instant(r.int64())
	a.Interval, a.MaxCount = time.Duration(r.int64()), r.int64()
	a.Sent, a.Answered = check.Micros(r.int64()), check.Micros(r.int64())
	a.Answer, a.Type, a.Retained = check.Answer(r.byte()), task.Type(r.byte()), r.byte() != 0
	return a
}

func (r *reader) execution() (e check.Execution) {
	e.Number, e.ID, e.Seq, e.ScheduledAt = r.int64(), task.ID(r.int64()), r.int64(), task.Instant(r.int64())
	e.Missed, e.Start, e.End = r.int64(), check.Micros(r.int64()), check.Micros(r.int64())
	e.Attempt, e.Listener, e.Outcome = r.int32(), r.uint16(), task.Outcome(r.byte())
	return e
}

func (r *reader) reply() (p check.Reply) {
	p.ID, p.Seq, p.Answered = task.ID(r.int64()), r.int64(), check.Micros(r.int64())
	p.Attempt, p.Listener = r.int32(), r.uint16()
	p.Call, p.Code = check.Call(r.byte()), task.Code(r.byte())
	return p
}

func (r *reader) final() (f check.Final) {
	f.ID, f.Number, f.Begin, f.End = task.ID(r.int64()), r.int64(), task.Instant(r.int64()), task.Instant(r.int64())
	f.Interval, f.MaxCount, f.Runs, f.Missed = time.Duration(r.int64()), r.int64(), r.int64(), r.int64()
	f.Open, f.Type, f.State = r.int32(), task.Type(r.byte()), task.State(r.byte())
	return f
}
