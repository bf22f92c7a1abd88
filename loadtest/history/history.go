// Package history keeps what the processes of a load run saw, on disk, until it
// is checked.
//
// Every process writes one directory entry per part, chosen by the task's id:
// records of some 20 bytes, which are a tag and variable-length integers, times
// as distances from each other. [Check] reads part after part, so that a run of
// any length is checked in the memory of a 64th of it. Adds that were not
// acknowledged have no id; they lie in a part of their own, which is held in
// memory.
package history

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/perceptor/perceptor/task"
)

const (
	parts       = 64
	unanswered  = parts // the part of adds without an id
	bufferBytes = 32 << 10
	recordBytes = 512 // of most; a longer one makes the buffer grow
)

// The first byte of a record says what it is.
const (
	tagAdd byte = iota + 1
	tagExecution
	tagReply
	tagFinal
	tagOp
)

// Writer writes what one process sees. Its methods may be called concurrently.
// The first error is kept and returned by Close.
type Writer struct {
	parts [parts + 1]part
}

// Through makes w write each record at once, so that no more than one is lost when
// its process is killed. Call it before anything is recorded.
func (w *Writer) Through() {
	for i := range w.parts {
		w.parts[i].through = true
	}
}

type part struct {
	mu   sync.Mutex
	file *os.File
	buf  []byte
	err  error
	// through: nothing stays in the buffer
	through bool
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
		w.parts[i].file, w.parts[i].buf = file, make([]byte, 0, bufferBytes+recordBytes)
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
		p.flush()
		errs = append(errs, p.err, p.file.Close())
	}
	return errors.Join(errs...)
}

// of locks the part of a task.
func (w *Writer) of(id task.ID) *part {
	i := unanswered
	if id != 0 {
		i = int(uint64(id/task.Shards)+uint64(id%task.Shards)) % parts
	}
	p := &w.parts[i]
	p.mu.Lock()
	return p
}

// put takes the buffer with a further record and unlocks the part.
func (p *part) put(buf []byte) {
	if p.buf = buf; len(buf) >= bufferBytes || p.through {
		p.flush()
	}
	p.mu.Unlock()
}

func (p *part) flush() {
	if _, err := p.file.Write(p.buf); err != nil && p.err == nil {
		p.err = fmt.Errorf("write history: %w", err)
	}
	p.buf = p.buf[:0]
}
