package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// csvSource is a CSV file.
type csvSource struct {
	*Columns
	r    *csvReader
	name string
	done io.Closer
}

// OpenCSV returns the lines of a CSV file. It reads the header. Closing the source closes r.
func OpenCSV(name string, r io.ReadCloser, d Dialect, m Mapping) (Source, error) {
	s := &csvSource{r: newCSVReader(r, d), name: name, done: r}
	names := d.Header
	if names == nil {
		var err error
		if names, err = s.header(); err != nil {
			return nil, err
		}
	}
	var err error
	if s.Columns, err = NewColumns(names, m); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// header reads the names of the columns.
func (s *csvSource) header() (names []string, err error) {
	raw, line, err := s.r.record()
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: the file is empty: it has no header", s.name)
	case err != nil:
		return nil, fmt.Errorf("%s: read the header: %w", s.name, err)
	case !utf8.Valid(raw):
		return nil, fmt.Errorf("%s:%d: the header is not valid UTF-8", s.name, line)
	}
	for _, cell := range s.r.cells {
		names = append(names, strings.TrimSpace(string(cell)))
	}
	return names, nil
}

// Next implements [Source].
func (s *csvSource) Next(_ context.Context, l *Line) error {
	raw, line, err := s.r.record()
	l.Position = Position{s.name, line}
	switch {
	case errors.Is(err, io.EOF):
		return err
	case err != nil:
		return s.failed(err)
	}
	l.Sum, l.Size = sumOfText(raw), len(raw)+1
	if len(s.r.cells) != len(s.names) {
		return located(faultOf("", "", raw, "the line has %d columns, and the header has %d", len(s.r.cells), len(s.names)), l.Position)
	}
	if !utf8.Valid(raw) {
		return located(s.notText(), l.Position)
	}
	if err := s.Fill(l, s.r.cells); err != nil {
		return located(err, l.Position)
	}
	return nil
}

// notText returns the fault of the cell that is not valid UTF-8.
func (s *csvSource) notText() error {
	for i, cell := range s.r.cells {
		if !utf8.Valid(cell) {
			return faultOf(s.names[i], "", nil, "is not valid UTF-8")
		}
	}
	return faultOf("", "", nil, "is not valid UTF-8")
}

// failed adds the name of the file to an error.
func (s *csvSource) failed(err error) error { return inFile(s.name, s.r.line+1, err) }

// inFile adds the file to an error of reading, and to a fault.
func inFile(name string, line int64, err error) error {
	var f *Fault
	if errors.As(err, &f) {
		f.File = name
		return f
	}
	return fmt.Errorf("read %s at line %d: %w", name, line, err)
}

// sumOfText returns the hash of a line of text. It is not 0.
func sumOfText(raw []byte) uint64 { return max(1, xxhash.Sum64(raw)) }

// Close implements [Source].
func (s *csvSource) Close() error { return s.done.Close() }
