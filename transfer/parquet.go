package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/parquet-go/parquet-go"

	"github.com/perceptor/perceptor/task"
)

// maxFooter bounds the description of a Parquet file, which is read at once.
const maxFooter = 64 << 20

// parquetSource is a Parquet file. It reads its columns side by side, a batch of values of each at
// a time, and only those that have a meaning.
type parquetSource struct {
	*Columns
	file   *os.File
	name   string
	groups []parquet.RowGroup
	open   []*parquetColumn // in the order of names
	left   int64            // rows of the current group
	row    int64
	cells  [][]byte
	arena  []byte // holds the cells that are not texts
}

// OpenParquet returns the rows of a Parquet file. Columns are mapped as those of a table; a group has its fields as
// columns with a path, such as params.user. A map is all params, a list the tags. The file must not be encrypted.
func OpenParquet(f File, o *Options) (s Source, err error) {
	if f.Name == Stdin {
		return nil, errors.New("a Parquet file cannot be read from standard input, because its end must be read first")
	}
	defer recovered(f.Name, &err)
	file, err := os.Open(f.path())
	if err != nil {
		return nil, err
	}
	p := &parquetSource{file: file, name: f.Name}
	if err := p.start(f.Size, o); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", f.Name, err), file.Close())
	}
	return p, nil
}

// recovered makes an error of a panic of the library, which damaged files can cause.
func recovered(name string, err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%s: the Parquet file is damaged: %v", name, r)
	}
}

func (s *parquetSource) start(size int64, o *Options) error {
	if err := checkParquet(s.file, size); err != nil {
		return err
	}
	var r io.ReaderAt = s.file
	if o.Progress != nil {
		r = countingReaderAt{r, o.Progress}
	}
	f, err := parquet.OpenFile(r, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true), parquet.ReadBufferSize(256<<10))
	if err != nil {
		return fmt.Errorf("read the Parquet file: %w", err)
	}
	for _, c := range f.Root().Columns() {
		if err := s.describe(c, nil); err != nil {
			return err
		}
	}
	var names []string
	for _, c := range s.open {
		names = append(names, c.name)
	}
	if s.Columns, err = NewColumns(names, o.Mapping); err != nil {
		return err
	}
	s.groups, s.cells = f.RowGroups(), make([][]byte, len(names))
	for i, c := range s.open {
		c.used = s.uses(i)
		c.raw = s.Column(payloadData) == c.name
		if c.kind == mapColumn && c.used && i != s.whole {
			return fmt.Errorf("the column %q is a map, which only params can be", c.name)
		}
	}
	return nil
}

// parquetRows returns the number of rows of files if all are Parquet files, otherwise 0.
func parquetRows(files []File, given string) (rows int64, err error) {
	for _, f := range files {
		format := given
		if format == "" && f.Name != Stdin {
			if format, err = FormatOf(f.Name); err != nil {
				return 0, err
			}
		}
		if format != Parquet {
			return 0, nil
		}
		n, err := rowsOf(f)
		if err != nil {
			return 0, err
		}
		rows += n
	}
	return rows, nil
}

func rowsOf(f File) (rows int64, err error) {
	defer recovered(f.Name, &err)
	file, err := os.Open(f.path())
	if err != nil {
		return 0, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	if err := checkParquet(file, f.Size); err != nil {
		return 0, fmt.Errorf("%s: %w", f.Name, err)
	}
	p, err := parquet.OpenFile(file, f.Size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", f.Name, err)
	}
	return p.NumRows(), nil
}

// checkParquet refuses what is not a Parquet file, with an error that says more than that of the library.
func checkParquet(r io.ReaderAt, size int64) error {
	var head, tail [8]byte
	if size < 12 {
		return errors.New("this is not a Parquet file: it is too short")
	}
	if _, err := r.ReadAt(head[:4], 0); err != nil {
		return err
	}
	if _, err := r.ReadAt(tail[:], size-8); err != nil {
		return err
	}
	n := int64(binary.LittleEndian.Uint32(tail[:4]))
	switch {
	case string(head[:4]) == "PARE" || string(tail[4:]) == "PARE":
		return errors.New("the Parquet file is encrypted")
	case string(head[:4]) != "PAR1":
		return errors.New("this is not a Parquet file: it does not begin with PAR1")
	case string(tail[4:]) != "PAR1":
		return errors.New("the Parquet file is cut off: it does not end with PAR1")
	case n > size-12 || n > maxFooter:
		return fmt.Errorf("the Parquet file is damaged: its description has %d bytes", n)
	}
	return nil
}

// countingReaderAt tells how many bytes were read.
type countingReaderAt struct {
	r    io.ReaderAt
	tell func(int64)
}

// ReadAt implements [io.ReaderAt].
func (c countingReaderAt) ReadAt(p []byte, at int64) (int, error) {
	n, err := c.r.ReadAt(p, at)
	c.tell(int64(n))
	return n, err
}

// describe adds the columns below a node of the schema.
func (s *parquetSource) describe(c *parquet.Column, path []string) error {
	path = append(path, c.Name())
	name := strings.Join(path, ".")
	kids := c.Columns()
	switch {
	case c.Leaf() && !c.Repeated():
		s.open = append(s.open, newParquetColumn(name, flatColumn, c))
		return nil
	case c.Leaf():
		s.open = append(s.open, newParquetColumn(name, listColumn, c))
		return nil
	case len(kids) == 1 && kids[0].Repeated() && kids[0].Leaf():
		s.open = append(s.open, newParquetColumn(name, listColumn, kids[0]))
		return nil
	case len(kids) == 1 && kids[0].Repeated() && onlyLeaves(kids[0]) && len(kids[0].Columns()) <= 2:
		inner := kids[0].Columns()
		if len(inner) == 1 {
			s.open = append(s.open, newParquetColumn(name, listColumn, inner[0]))
			return nil
		}
		column := newParquetColumn(name, mapColumn, inner[0])
		column.value = newParquetColumn(name, flatColumn, inner[1])
		s.open = append(s.open, column)
		return nil
	case c.Repeated():
		return fmt.Errorf("the column %q is a list of groups, which has no meaning for tasks", name)
	}
	for _, kid := range kids {
		if err := s.describe(kid, path); err != nil {
			return err
		}
	}
	return nil
}

func onlyLeaves(c *parquet.Column) bool {
	for _, kid := range c.Columns() {
		if !kid.Leaf() || kid.Repeated() {
			return false
		}
	}
	return true
}

// Next implements [Source].
func (s *parquetSource) Next(_ context.Context, l *Line) (err error) {
	defer recovered(s.name, &err)
	for s.left == 0 {
		if len(s.groups) == 0 {
			return io.EOF
		}
		if err := s.openGroup(s.groups[0]); err != nil {
			return fmt.Errorf("read %s: %w", s.name, err)
		}
		s.groups = s.groups[1:]
	}
	s.left--
	s.row++
	l.Position, l.Sum = Position{s.name, s.row}, 0
	if err := s.read(l); err != nil {
		var f *Fault
		if errors.As(err, &f) {
			return located(f, l.Position)
		}
		return fmt.Errorf("read %s at row %d: %w", s.name, s.row, err)
	}
	return nil
}

// openGroup begins to read the columns of a group of rows.
func (s *parquetSource) openGroup(g parquet.RowGroup) error {
	if err := s.closeGroup(); err != nil {
		return err
	}
	s.left = g.NumRows()
	chunks := g.ColumnChunks()
	for _, c := range s.open {
		if !c.used {
			continue
		}
		c.pages = chunks[c.index].Pages()
		if c.value != nil {
			c.value.pages = chunks[c.value.index].Pages()
		}
	}
	return nil
}

func (s *parquetSource) closeGroup() error {
	var errs []error
	for _, c := range s.open {
		errs = append(errs, c.close())
	}
	return errors.Join(errs...)
}

// read reads the cells of a row. A fault is returned only after all columns have passed over the
// row.
func (s *parquetSource) read(l *Line) error {
	s.arena, s.list = s.arena[:0], s.list[:0]
	begin, fault := NoBegin, error(nil)
	for i, c := range s.open {
		if !c.used {
			continue
		}
		s.cells[i] = nil
		var err error
		switch {
		case c.kind == mapColumn:
			err = s.readMap(c)
		case c.kind == listColumn:
			err = s.readList(i, c)
		case i == s.begin && c.isTime():
			begin, err = s.readBegin(c)
		default:
			err = s.readCell(i, c)
		}
		if err != nil {
			var f *Fault
			if !errors.As(err, &f) {
				return fmt.Errorf("column %q: %w", c.name, err)
			}
			fault = f
		}
	}
	if fault != nil {
		return fault
	}
	return s.fill(l, begin)
}

// fill makes the line of the cells.
func (s *parquetSource) fill(l *Line, begin task.Instant) error {
	if err := s.Fill(l, s.cells); err != nil {
		return err
	}
	if begin != NoBegin {
		l.Begin = begin
	}
	if s.whole >= 0 && s.open[s.whole].kind == mapColumn {
		return s.fillList(l)
	}
	return nil
}

// readBegin reads a begin_time of a type for instants, or nothing.
func (s *parquetSource) readBegin(c *parquetColumn) (task.Instant, error) {
	v, err := c.next()
	if err != nil || v.IsNull() {
		return NoBegin, err
	}
	at, rule := checked(task.Instant(c.millis(v, s.values.clock.Zone)))
	if rule != "" {
		return NoBegin, faultOf(c.name, "begin_time", nil, "%s", rule)
	}
	return at, nil
}

// readCell reads the text of a value.
func (s *parquetSource) readCell(i int, c *parquetColumn) error {
	v, err := c.next()
	if err != nil || v.IsNull() {
		return err
	}
	s.cells[i], err = s.text(c, v)
	return err
}

// text returns a value as text: in the memory of the column, or in the arena.
func (s *parquetSource) text(c *parquetColumn, v parquet.Value) ([]byte, error) {
	if c.raw && (c.typ == parquet.ByteArray || c.typ == parquet.FixedLenByteArray) {
		b := v.ByteArray()
		return b[:len(b):len(b)], nil
	}
	if c.isText() {
		return textOf(c.name, v.ByteArray())
	}
	from := len(s.arena)
	s.arena = c.appendText(s.arena, v, s.values.clock.Zone)
	if c.binary && !isASCII(s.arena[from:]) {
		return nil, faultOf(c.name, "", nil, "is binary, and not a text")
	}
	return s.arena[from:len(s.arena):len(s.arena)], nil
}

// readList reads a list of texts. Its cell is a list in JSON.
func (s *parquetSource) readList(i int, c *parquetColumn) error {
	var list []string
	err := c.each(func(v parquet.Value) error {
		if v.IsNull() {
			return nil
		}
		text, err := s.text(c, v)
		list = append(list, string(text))
		return err
	})
	if err != nil || len(list) == 0 {
		return err
	}
	s.cells[i], err = json.Marshal(list)
	return err
}

// readMap reads the params of a row. It copies them, because reading on may overwrite them.
func (s *parquetSource) readMap(c *parquetColumn) error {
	var fault error
	err := c.each(func(k parquet.Value) error {
		v, err := c.value.next()
		if err != nil || k.IsNull() || v.IsNull() {
			return err
		}
		key, keyErr := s.text(c, k)
		value, valueErr := s.text(c.value, v)
		if err := errors.Join(keyErr, valueErr); err != nil {
			fault = errors.Join(fault, err)
			return nil
		}
		s.list = append(s.list, param{bytes.Clone(key), bytes.Clone(value)})
		return nil
	})
	return errors.Join(err, fault)
}

// Close implements [Source].
func (s *parquetSource) Close() error { return errors.Join(s.closeGroup(), s.file.Close()) }
