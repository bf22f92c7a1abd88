package transfer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// firstBuffer is the size with which the buffer of a text begins.
const firstBuffer = 256 << 10

// lineBuffer reads a text in large pieces, and splits it into lines. The bytes of a line are valid until
// the next one is read. A line that is longer than [MaxLine] is dropped, so memory is bounded.
type lineBuffer struct {
	r        io.Reader
	buf      []byte
	pos, end int // the bytes that are read and not consumed
	line     int64
	eof      bool
	begun    bool
}

func newLineBuffer(r io.Reader) *lineBuffer {
	return &lineBuffer{r: r, buf: make([]byte, firstBuffer)}
}

// errLong is the fault of a line that does not fit.
var errLong = &Fault{Rule: fmt.Sprintf("the line has more than %d bytes", MaxLine)}

// start reads the first bytes, and refuses what is no text in UTF-8.
func (b *lineBuffer) start() error {
	if b.begun {
		return nil
	}
	b.begun = true
	for b.end < 4 && !b.eof {
		if err := b.fill(); err != nil {
			return err
		}
	}
	head := b.buf[:b.end]
	switch {
	case bytes.HasPrefix(head, []byte{0xef, 0xbb, 0xbf}):
		b.pos = 3
	case bytes.HasPrefix(head, []byte{0xff, 0xfe}), bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		return errors.New("the text is in UTF-16; convert it to UTF-8")
	case bytes.IndexByte(head[:min(len(head), 4096)], 0) >= 0:
		return errors.New("this is not a text: it has NUL bytes")
	}
	return nil
}

// fill reads more bytes behind those that are not consumed. The latter may move. It returns an error
// only if reading fails; at the end of the text it sets eof.
func (b *lineBuffer) fill() error {
	if b.pos > 0 {
		copy(b.buf, b.buf[b.pos:b.end])
		b.pos, b.end = 0, b.end-b.pos
	}
	if b.end == len(b.buf) {
		larger := make([]byte, min(2*len(b.buf), 2*MaxLine))
		copy(larger, b.buf)
		b.buf = larger
	}
	for range 100 {
		n, err := b.r.Read(b.buf[b.end:])
		b.end += n
		if errors.Is(err, io.EOF) {
			b.eof = true
			return nil
		}
		if err != nil {
			return err
		}
		if n > 0 {
			return nil
		}
	}
	return io.ErrNoProgress
}

// rest returns the bytes that are read and not consumed.
func (b *lineBuffer) rest() []byte { return b.buf[b.pos:b.end] }

// size returns the number of bytes up to the next end of line, or false if there is none up to
// the end of the text. errLong means that the line is too long and not consumed.
func (b *lineBuffer) size() (n int, ended bool, err error) {
	from := 0
	for {
		if i := bytes.IndexByte(b.buf[b.pos+from:b.end], '\n'); i >= 0 {
			return from + i, true, b.checkSize(from + i)
		}
		from = b.end - b.pos
		if from > MaxLine || b.eof {
			return from, false, b.checkSize(from)
		}
		if err := b.fill(); err != nil {
			return 0, false, err
		}
	}
}

func (b *lineBuffer) checkSize(n int) error {
	if n > MaxLine {
		return errLong
	}
	return nil
}

// next returns the next line without its end, and io.EOF after the last one. A [*Fault] is about a line
// that was dropped.
func (b *lineBuffer) next() ([]byte, error) {
	if err := b.start(); err != nil {
		return nil, err
	}
	n, ended, err := b.size()
	if errors.Is(err, errLong) {
		return nil, b.dropLong()
	}
	if err != nil {
		return nil, err
	}
	if n == 0 && !ended {
		return nil, io.EOF
	}
	line := b.buf[b.pos : b.pos+n]
	b.consume(n, ended)
	return trimReturn(line), nil
}

// consume passes over some bytes of a line, and over its end.
func (b *lineBuffer) consume(n int, ended bool) {
	b.pos += n
	b.line++
	if ended {
		b.pos++
	}
}

// dropLong passes over a line that is too long, and returns the fault.
func (b *lineBuffer) dropLong() error {
	if err := b.drop(); err != nil {
		return err
	}
	f := *errLong
	f.Position.Line = b.line
	return &f
}

// drop passes over what remains of a line.
func (b *lineBuffer) drop() error {
	for {
		if i := bytes.IndexByte(b.rest(), '\n'); i >= 0 {
			b.consume(i, true)
			return nil
		}
		b.pos = b.end
		if b.eof {
			b.line++
			return nil
		}
		if err := b.fill(); err != nil {
			return err
		}
	}
}

func trimReturn(line []byte) []byte {
	if n := len(line); n > 0 && line[n-1] == '\r' {
		return line[:n-1]
	}
	return line
}
