package transfer

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// The shapes of a column.
const (
	flatColumn = iota // one value in each row
	listColumn        // a list of values
	mapColumn         // a map; the column has its keys
)

// parquetColumn reads the values of a column of the current group of rows.
type parquetColumn struct {
	name string
	kind int
	// index is the number of the column in the file.
	index int
	used  bool
	typ   parquet.Kind
	// logical is the type of the values, or nil.
	logical any
	// raw says that any bytes are allowed.
	raw bool
	// binary says that the bytes are not said to be a text.
	binary bool
	// value has the values of a map.
	value *parquetColumn

	pages  parquet.Pages
	page   parquet.Page
	values parquet.ValueReader
	batch  [512]parquet.Value
	at, n  int
	ended  bool
}

func newParquetColumn(name string, kind int, c *parquet.Column) *parquetColumn {
	p := &parquetColumn{name: name, kind: kind, index: c.Index(), typ: c.Type().Kind()}
	if t := c.Type().LogicalType(); t != nil {
		p.logical = t.Value
	}
	switch p.logical.(type) {
	case *format.StringType, *format.EnumType, *format.JsonType:
	default:
		p.binary = p.typ == parquet.FixedLenByteArray
	}
	return p
}

// isText reports whether the bytes of a value are its text. Many programs write texts without saying so.
func (c *parquetColumn) isText() bool {
	if _, decimal := c.logical.(*format.DecimalType); decimal {
		return false
	}
	return c.typ == parquet.ByteArray
}

// isTime reports whether values are instants.
func (c *parquetColumn) isTime() bool {
	_, timestamp := c.logical.(*format.TimestampType)
	_, date := c.logical.(*format.DateType)
	return timestamp || date || c.typ == parquet.Int96
}

// peek returns the next value without passing over it, and false at the end of the group.
func (c *parquetColumn) peek() (v parquet.Value, ok bool, err error) {
	for c.at == c.n {
		if c.ended {
			return v, false, nil
		}
		if err := c.refill(); err != nil {
			return v, false, err
		}
	}
	return c.batch[c.at], true, nil
}

// refill reads the next batch of values, from the next page if there is none left.
func (c *parquetColumn) refill() error {
	c.at, c.n = 0, 0
	if c.values != nil {
		n, err := c.values.ReadValues(c.batch[:])
		c.n = n
		switch {
		case err == io.EOF: //nolint:errorlint // the interface says so
			c.values = nil
		case err != nil:
			return err
		}
		return nil
	}
	c.release()
	page, err := c.pages.ReadPage()
	if err == io.EOF { //nolint:errorlint // the interface says so
		c.ended = true
		return nil
	}
	if err != nil {
		return err
	}
	c.page, c.values = page, page.Values()
	return nil
}

func (c *parquetColumn) release() {
	if c.page != nil {
		parquet.Release(c.page)
		c.page = nil
	}
}

// next returns the next value. What it refers to is valid until the next call.
func (c *parquetColumn) next() (parquet.Value, error) {
	if c.at < c.n {
		c.at++
		return c.batch[c.at-1], nil
	}
	v, ok, err := c.peek()
	if err != nil {
		return v, err
	}
	if !ok {
		return v, fmt.Errorf("the column has fewer values than the file has rows")
	}
	c.at++
	return v, nil
}

// each calls f for each value of the row.
func (c *parquetColumn) each(f func(parquet.Value) error) error {
	for first := true; ; first = false {
		v, ok, err := c.peek()
		if err != nil {
			return err
		}
		if !ok && first {
			_, err = c.next()
			return err
		}
		if !ok || !first && v.RepetitionLevel() == 0 {
			return nil
		}
		c.at++
		if err := f(v); err != nil {
			return err
		}
	}
}

func (c *parquetColumn) close() error {
	if c.value != nil {
		if err := c.value.close(); err != nil {
			return err
		}
	}
	c.release()
	c.values, c.at, c.n, c.ended = nil, 0, 0, false
	if c.pages == nil {
		return nil
	}
	pages := c.pages
	c.pages = nil
	return pages.Close()
}

// julianEpoch is the Julian day of 1970-01-01.
const julianEpoch = 2_440_588

// millis returns an instant. Values that are local times are those of a zone.
func (c *parquetColumn) millis(v parquet.Value, zone *time.Location) int64 {
	local, ms := false, int64(0)
	switch t := c.logical.(type) {
	case *format.DateType:
		local, ms = true, int64(v.Int32())*86_400_000
	case *format.TimestampType:
		local = !t.IsAdjustedToUTC
		switch t.Unit.Value.(type) {
		case *format.MicroSeconds:
			ms = floorDiv(v.Int64(), 1000)
		case *format.NanoSeconds:
			ms = floorDiv(v.Int64(), 1_000_000)
		default:
			ms = v.Int64()
		}
	default: // INT96: nanoseconds of the day, and the Julian day
		b := v.ByteArray()
		ms = (int64(binary.LittleEndian.Uint32(b[8:]))-julianEpoch)*86_400_000 + int64(binary.LittleEndian.Uint64(b[:8])/1_000_000) //nolint:gosec // less than a day
	}
	if local && zone != nil && zone != time.UTC {
		t := time.UnixMilli(ms).UTC()
		return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), zone).UnixMilli()
	}
	return ms
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// appendText appends a value as text.
func (c *parquetColumn) appendText(dst []byte, v parquet.Value, zone *time.Location) []byte {
	if c.isTime() {
		return time.UnixMilli(c.millis(v, zone)).UTC().AppendFormat(dst, "2006-01-02T15:04:05.999Z")
	}
	switch t := c.logical.(type) {
	case *format.DecimalType:
		return appendDecimal(dst, c.integer(v), int(t.Scale))
	case *format.UUIDType:
		b := v.ByteArray()
		return fmt.Appendf(dst, "%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	}
	switch c.typ {
	case parquet.Boolean:
		return strconv.AppendBool(dst, v.Boolean())
	case parquet.Int32, parquet.Int64:
		return c.appendInteger(dst, v)
	case parquet.Float:
		return strconv.AppendFloat(dst, float64(v.Float()), 'g', -1, 32)
	case parquet.Double:
		return strconv.AppendFloat(dst, v.Double(), 'g', -1, 64)
	}
	return append(dst, v.ByteArray()...)
}

func (c *parquetColumn) appendInteger(dst []byte, v parquet.Value) []byte {
	if t, ok := c.logical.(*format.IntType); ok && !t.IsSigned {
		if c.typ == parquet.Int32 {
			return strconv.AppendUint(dst, uint64(v.Uint32()), 10)
		}
		return strconv.AppendUint(dst, v.Uint64(), 10)
	}
	if c.typ == parquet.Int32 {
		return strconv.AppendInt(dst, int64(v.Int32()), 10)
	}
	return strconv.AppendInt(dst, v.Int64(), 10)
}

// integer returns the unscaled value of a decimal.
func (c *parquetColumn) integer(v parquet.Value) *big.Int {
	switch c.typ {
	case parquet.Int32:
		return big.NewInt(int64(v.Int32()))
	case parquet.Int64:
		return big.NewInt(v.Int64())
	}
	b := v.ByteArray() // two's complement, the highest byte first
	n := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b)))) //nolint:gosec // a length
	}
	return n
}

func appendDecimal(dst []byte, n *big.Int, scale int) []byte {
	if scale <= 0 {
		return n.Append(dst, 10)
	}
	if n.Sign() < 0 {
		dst = append(dst, '-')
	}
	text := new(big.Int).Abs(n).String()
	if missing := scale + 1 - len(text); missing > 0 {
		text = strings.Repeat("0", missing) + text
	}
	return append(append(append(dst, text[:len(text)-scale]...), '.'), text[len(text)-scale:]...)
}

// textOf refuses bytes that are not a text.
func textOf(column string, b []byte) ([]byte, error) {
	if !utf8.Valid(b) {
		return nil, faultOf(column, "", nil, "is not valid UTF-8")
	}
	return b[:len(b):len(b)], nil
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
