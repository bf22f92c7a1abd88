package roundtrip

import (
	"bufio"
	"bytes"
	"container/heap"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// unequal are the fields of a line that differ between a task and its copy, or between two exports
// of one task.
var unequal = []string{"id", "readTime", "createTime", "dueTime", "version"}

const (
	// runBytes is the size of a sorted run in memory.
	runBytes = 64 << 20
	// longestLine bounds a line in bytes.
	longestLine = 4 << 20
)

// digest is the checksum of the sorted lines of an export.
type digest struct {
	Lines int64  `json:"lines"`
	Sum   string `json:"sha256"`
}

// digestOf reads the lines of files, without the fields that are unequal, sorts them by
// external merge sort in dir, and returns their checksum. visit sees each line before.
func digestOf(files []string, dir string, visit func(line []byte) error) (digest, error) {
	s := &sorter{dir: dir}
	defer s.remove()
	for _, name := range files {
		if err := s.read(name, visit); err != nil {
			return digest{}, fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
	}
	if err := s.spill(); err != nil {
		return digest{}, err
	}
	return s.merge()
}

// sorter sorts lines in runs on the disk.
type sorter struct {
	dir   string
	lines [][]byte
	size  int
	runs  []string
}

func (s *sorter) read(name string, visit func(line []byte) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(make([]byte, 64<<10), longestLine)
	for in.Scan() {
		if err := visit(in.Bytes()); err != nil {
			return err
		}
		text, err := without(in.Bytes(), unequal)
		if err != nil {
			return err
		}
		s.lines = append(s.lines, text)
		if s.size += len(text); s.size >= runBytes {
			if err := s.spill(); err != nil {
				return err
			}
		}
	}
	return in.Err()
}

// without returns a copy of an object of JSON without some of its fields. The object must be valid.
func without(object []byte, names []string) ([]byte, error) {
	out := append(make([]byte, 0, len(object)), '{')
	at := 1
	for at < len(object) && object[at] == '"' {
		colon := at + stringEnd(object[at:])
		if colon >= len(object) || object[colon] != ':' {
			break
		}
		end := colon + 1 + valueEnd(object[colon+1:])
		if end > len(object) {
			break
		}
		if !slices.Contains(names, string(object[at+1:colon-1])) {
			out = append(append(out, object[at:end]...), ',')
		}
		if at = end; at < len(object) && object[at] == ',' {
			at++
		}
	}
	if at != len(object)-1 || object[at] != '}' {
		return nil, fmt.Errorf("not an object: %.100q", object)
	}
	return append(bytes.TrimSuffix(out, []byte(",")), '}'), nil
}

// stringEnd returns the length of the string of JSON with which text begins.
func stringEnd(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text) + 1
}

// valueEnd returns the length of the value of JSON with which text begins.
func valueEnd(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i += stringEnd(text[i:]) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			depth--
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return len(text) + 1
}

// spill writes the lines in memory as a sorted run.
func (s *sorter) spill() error {
	if len(s.lines) == 0 {
		return nil
	}
	slices.SortFunc(s.lines, bytes.Compare)
	f, err := os.CreateTemp(s.dir, "run-*")
	if err != nil {
		return err
	}
	s.runs = append(s.runs, f.Name())
	w := bufio.NewWriterSize(f, 1<<20)
	for _, text := range s.lines {
		_, _ = w.Write(text) // Flush has the error
		_ = w.WriteByte('\n')
	}
	s.lines, s.size = s.lines[:0], 0
	return errors.Join(w.Flush(), f.Close())
}

func (s *sorter) remove() {
	for _, name := range s.runs {
		_ = os.Remove(name) // the directory is removed at the end, too
	}
}

// merge returns the checksum of all runs together.
func (s *sorter) merge() (d digest, err error) {
	var h runHeap
	for _, name := range s.runs {
		f, err := os.Open(name)
		if err != nil {
			return d, err
		}
		defer f.Close() // a run is open until the end of the merge
		r := &run{in: bufio.NewReaderSize(f, 256<<10)}
		if err := r.next(); err != nil {
			return d, err
		}
		h = append(h, r)
	}
	heap.Init(&h)
	sum := sha256.New()
	for len(h) > 0 {
		sum.Write(h[0].line)
		d.Lines++
		switch err := h[0].next(); {
		case errors.Is(err, io.EOF):
			heap.Pop(&h)
		case err != nil:
			return d, err
		default:
			heap.Fix(&h, 0)
		}
	}
	d.Sum = text(sum)
	return d, nil
}

func text(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// run is a sorted run with its next line.
type run struct {
	in   *bufio.Reader
	line []byte
}

func (r *run) next() error {
	r.line = r.line[:0]
	for {
		part, err := r.in.ReadSlice('\n')
		r.line = append(r.line, part...)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
		default:
			return err
		}
	}
}

// runHeap implements [heap.Interface].
type runHeap []*run

func (h runHeap) Len() int           { return len(h) }
func (h runHeap) Less(i, j int) bool { return bytes.Compare(h[i].line, h[j].line) < 0 }
func (h runHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(x any)        { *h = append(*h, x.(*run)) }
func (h *runHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
