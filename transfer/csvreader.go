package transfer

import (
	"bytes"
	"fmt"
	"io"
)

// Dialect is the dialect of a CSV file. The zero value is that of RFC 4180.
type Dialect struct {
	// Delimiter separates cells. 0: a comma.
	Delimiter byte
	// Quote encloses cells; within them it is doubled. 0: the double quote.
	Quote byte
	// Comment begins lines that are left out. 0: there are none.
	Comment byte
	// Null is the text of a cell without a value. A quoted cell always has one.
	Null string
	// Header has the names of the columns of a file without a header. nil: its first line has them.
	Header []string
}

// csvReader splits a text into records of cells. Most lines have no quote and are split in place. A
// quoted cell may have ends of lines.
type csvReader struct {
	*lineBuffer
	Dialect
	null []byte
	// cells are those of the last record.
	cells   [][]byte
	spans   []span
	scratch []byte
}

// span is a cell of a record with quotes: a part of the line, or of the scratch space.
type span struct {
	from, to int
	quoted   bool
}

func newCSVReader(r io.Reader, d Dialect) *csvReader {
	if d.Delimiter == 0 {
		d.Delimiter = ','
	}
	if d.Quote == 0 {
		d.Quote = '"'
	}
	return &csvReader{lineBuffer: newLineBuffer(r), Dialect: d, null: []byte(d.Null)}
}

// record reads the next record into c.cells. It returns the bytes of the record, and the number of its
// first line. A [*Fault] is about a record that was dropped.
func (c *csvReader) record() (raw []byte, line int64, err error) {
	if err := c.start(); err != nil {
		return nil, 0, err
	}
	for {
		n, ended, err := c.size()
		if err == errLong { //nolint:errorlint // it is never wrapped
			err = c.dropLong()
			return nil, c.line, err
		}
		if err != nil {
			return nil, 0, err
		}
		if n == 0 && !ended {
			return nil, 0, io.EOF
		}
		raw := trimReturn(c.buf[c.pos : c.pos+n])
		if len(raw) == 0 || c.Comment != 0 && raw[0] == c.Comment {
			c.consume(n, ended)
			continue
		}
		line := c.line + 1
		if bytes.IndexByte(raw, c.Quote) >= 0 {
			raw, err := c.quoted()
			return raw, line, err
		}
		c.split(raw)
		c.consume(n, ended)
		return raw, line, nil
	}
}

// split splits a line without quotes.
func (c *csvReader) split(raw []byte) {
	c.cells = c.cells[:0]
	for len(c.cells) <= MaxColumns {
		i := bytes.IndexByte(raw, c.Delimiter)
		if i < 0 {
			break
		}
		c.cells = append(c.cells, c.value(raw[:i:i]))
		raw = raw[i+1:]
	}
	c.cells = append(c.cells, c.value(raw))
}

// value returns a cell without quotes, which is nil if it has no value.
func (c *csvReader) value(cell []byte) []byte {
	if string(cell) == string(c.null) {
		return nil
	}
	return cell
}

// quoted reads a record with quotes, which may have several lines.
func (c *csvReader) quoted() ([]byte, error) {
	c.spans, c.scratch, c.cells = c.spans[:0], c.scratch[:0], c.cells[:0]
	line, at := c.line+1, 0
	for {
		next, last, err := c.cell(at)
		if f, ok := err.(*Fault); ok { //nolint:errorlint // it is never wrapped
			return nil, c.dropRecord(f, line, next)
		}
		if err != nil {
			return nil, err
		}
		if last {
			return c.finish(next), nil
		}
		if at = next + 1; len(c.spans) > MaxColumns {
			return nil, c.dropRecord(&Fault{Rule: fmt.Sprintf("the line has more than %d columns", MaxColumns)}, line, at)
		}
	}
}

// finish makes the cells of a record that ends at an offset, and consumes it.
func (c *csvReader) finish(end int) []byte {
	raw := c.buf[c.pos : c.pos+end]
	for _, s := range c.spans {
		if s.quoted {
			c.cells = append(c.cells, c.scratch[s.from:s.to:s.to])
			continue
		}
		c.cells = append(c.cells, c.value(raw[s.from:s.to:s.to]))
	}
	c.line += int64(bytes.Count(raw, []byte{'\n'}))
	ended := c.pos+end < c.end && c.buf[c.pos+end] == '\r'
	if ended {
		c.pos++
	}
	c.consume(end, c.pos+end < c.end)
	return raw
}

// dropRecord passes over a record up to the end of the line in which its fault is.
func (c *csvReader) dropRecord(f *Fault, line int64, at int) error {
	at = min(at, c.end-c.pos)
	c.line += int64(bytes.Count(c.buf[c.pos:c.pos+at], []byte{'\n'}))
	c.pos += at
	if err := c.drop(); err != nil {
		return err
	}
	f.Position.Line = line
	return f
}

// cell reads the cell that begins at an offset. It returns the offset of its end, and whether it is the last
// one of the record.
func (c *csvReader) cell(at int) (end int, last bool, err error) {
	first, ok, err := c.at(at)
	if err != nil {
		return at, false, err
	}
	if ok && first == c.Quote {
		return c.quotedCell(at + 1)
	}
	for end = at; ; end++ {
		x, ok, err := c.at(end)
		if err != nil {
			return end, false, err
		}
		switch {
		case !ok, x == '\n', x == '\r' && c.endsAt(end):
			c.spans = append(c.spans, span{from: at, to: end})
			return end, true, nil
		case x == c.Delimiter:
			c.spans = append(c.spans, span{from: at, to: end})
			return end, false, nil
		case x == c.Quote:
			return end, false, &Fault{Rule: fmt.Sprintf("the quote in a cell without quotes: enclose the cell in %c and double the quote", c.Quote)}
		}
	}
}

// quotedCell reads the cell whose content begins at an offset.
func (c *csvReader) quotedCell(at int) (end int, last bool, err error) {
	from := len(c.scratch)
	for {
		i := bytes.IndexByte(c.buf[c.pos+at:c.end], c.Quote)
		if i < 0 {
			if c.eof {
				return at, false, &Fault{Rule: "a quote is not closed before the end of the file"}
			}
			if c.end-c.pos > MaxLine {
				return at, false, &Fault{Rule: fmt.Sprintf("a quote is not closed within %d bytes", MaxLine)}
			}
			if err := c.fill(); err != nil {
				return at, false, err
			}
			continue
		}
		c.scratch = append(c.scratch, c.buf[c.pos+at:c.pos+at+i]...)
		at += i + 1
		x, ok, err := c.at(at)
		if err != nil {
			return at, false, err
		}
		if ok && x == c.Quote {
			c.scratch = append(c.scratch, c.Quote)
			at++
			continue
		}
		return c.closed(from, at, x, ok)
	}
}

// closed ends a quoted cell: x, which follows its quote at an offset, must be a delimiter or the end of the line.
func (c *csvReader) closed(from, at int, x byte, ok bool) (end int, last bool, err error) {
	c.spans = append(c.spans, span{from, len(c.scratch), true})
	switch {
	case !ok, x == '\n', x == '\r' && c.endsAt(at):
		return at, true, nil
	case x == c.Delimiter:
		return at, false, nil
	}
	return at, false, &Fault{Rule: fmt.Sprintf("a text follows the closing quote %c", c.Quote)}
}

// at returns the byte at an offset, and false at the end of the text.
func (c *csvReader) at(i int) (x byte, ok bool, err error) {
	for c.pos+i >= c.end {
		if c.eof {
			return 0, false, nil
		}
		if i > MaxLine {
			return 0, false, &Fault{Rule: errLong.Rule}
		}
		if err := c.fill(); err != nil {
			return 0, false, err
		}
	}
	return c.buf[c.pos+i], true, nil
}

// endsAt reports whether the carriage return at an offset is a part of the end of the line.
func (c *csvReader) endsAt(i int) bool {
	x, ok, err := c.at(i + 1)
	return err == nil && (!ok || x == '\n')
}
