package export

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/RoaringBitmap/roaring/v2/roaring64"
)

// Chunk is some lines of a stream.
type Chunk struct {
	// Lines are complete lines.
	Lines []byte
	// Position is the position after the lines. "" is the end of the export.
	Position string
}

// shards and shardsOfDatabase are the layout of ids: the shard of a task is its id modulo shards.
const shards, shardsOfDatabase = 512, 32

// Writer writes the lines of chunks, each task once. It is not safe for concurrent use.
type Writer struct {
	out      io.Writer
	distinct bool // the lines are tasks
	seen     *roaring64.Bitmap
	database uint64 // of seen
	// Count is the number of lines that were written, and Repeated that of lines that were
	// dropped, because they were written before. Bytes is the size of what was written.
	Count, Repeated, Bytes int64
}

// NewWriter returns a writer to out. tasks says that the lines are tasks, of which each is
// written once.
func NewWriter(out io.Writer, tasks bool) *Writer {
	return &Writer{out: out, distinct: tasks, seen: roaring64.New()}
}

// Write writes the lines of a chunk that were not written before.
func (w *Writer) Write(c Chunk) error {
	if !w.distinct {
		w.Count += int64(bytes.Count(c.Lines, newline))
		return w.write(c.Lines)
	}
	start := 0
	for at := 0; at < len(c.Lines); {
		n := bytes.IndexByte(c.Lines[at:], '\n') + 1
		if n == 0 {
			return errors.New("the service sent a line without an end")
		}
		id, ok := idOf(c.Lines[at : at+n])
		if !ok {
			return fmt.Errorf("the service sent a line that does not begin with an id: %.60q", c.Lines[at:at+n])
		}
		if w.add(id) {
			w.Count++
		} else {
			w.Repeated++
			if err := w.write(c.Lines[start:at]); err != nil {
				return err
			}
			start = at + n
		}
		at += n
	}
	return w.write(c.Lines[start:])
}

var newline = []byte{'\n'}

func (w *Writer) write(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	n, err := w.out.Write(lines)
	w.Bytes += int64(n)
	return err
}

// add returns false if the task was added before. The databases come one after another.
func (w *Writer) add(id uint64) bool {
	if d := id % shards / shardsOfDatabase; d != w.database {
		w.database = d
		w.seen.Clear()
	}
	return w.seen.CheckedAdd(id / shards)
}

// idField begins the line of a task.
const idField = `{"id":"`

// idOf returns the id with which a line begins.
func idOf(line []byte) (id uint64, ok bool) {
	if len(line) < len(idField) || string(line[:len(idField)]) != idField {
		return 0, false
	}
	for i, c := range line[len(idField):] {
		switch {
		case c == '"':
			return id, i > 0
		case c < '0' || c > '9' || i > 18:
			return 0, false
		}
		id = id*10 + uint64(c-'0')
	}
	return 0, false
}
