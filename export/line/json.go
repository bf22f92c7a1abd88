package line

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/perceptor/perceptor/task"
)

// day is a day whose date was written.
type day struct {
	number int64 // days since 1970, from 1; 0: none
	date   []byte
}

// msOfDay is a day in milliseconds.
const msOfDay = 24 * 60 * 60 * 1000

// instant appends a field with an instant in RFC 3339, unless it is Never. The instants of many
// tasks are of few days, so dates are kept.
func (w *Writer) instant(dst []byte, name string, i task.Instant) []byte {
	if i == task.Never {
		return dst
	}
	if i < 0 {
		return append(i.Time().AppendFormat(append(dst, name...), "2006-01-02T15:04:05.000Z"), '"')
	}
	n := int64(i)/msOfDay + 1
	d := &w.days[n%int64(len(w.days))]
	if d.number != n {
		d.number, d.date = n, i.Time().AppendFormat(d.date[:0], "2006-01-02T")
	}
	ms := int(int64(i) % msOfDay)
	dst = append(append(dst, name...), d.date...)
	dst = append(two(dst, ms/3_600_000), ':')
	dst = append(two(dst, ms/60_000%60), ':')
	dst = two(dst, ms/1000%60)
	if ms %= 1000; ms > 0 {
		dst = append(dst, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
	}
	return append(dst, `Z"`...)
}

func two(dst []byte, n int) []byte { return append(dst, byte('0'+n/10), byte('0'+n%10)) }

// duration appends a field with a duration in whole milliseconds.
func duration(dst []byte, name string, d time.Duration) []byte {
	ms := d.Milliseconds()
	dst = strconv.AppendInt(append(dst, name...), ms/1000, 10)
	if ms %= 1000; ms > 0 {
		dst = append(dst, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
	}
	return append(dst, `s"`...)
}

// number appends a field with a 64-bit number, which JSON has as a text, unless it is 0.
func number(dst []byte, name string, n int64) []byte {
	if n == 0 {
		return dst
	}
	return append(strconv.AppendInt(append(dst, name...), n, 10), '"')
}

// small appends a field with a 32-bit number, unless it is 0.
func small(dst []byte, name string, n int64) []byte {
	if n == 0 {
		return dst
	}
	return strconv.AppendInt(append(dst, name...), n, 10)
}

func flag(dst []byte, field string, set bool) []byte {
	if set {
		return append(dst, field...)
	}
	return dst
}

// text appends a field with a text, unless it is empty.
func text(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	return appendText(append(dst, name...), value)
}

func texts(dst []byte, name string, values []string) []byte {
	for i, v := range values {
		if i == 0 {
			dst = append(dst, name...)
		} else {
			dst = append(dst, ',')
		}
		dst = appendText(dst, v)
	}
	if len(values) > 0 {
		dst = append(dst, ']')
	}
	return dst
}

// appendText appends a text as a string of JSON. Bytes that are not UTF-8, which no stored text
// has, become the replacement character.
func appendText[T ~string | ~[]byte](dst []byte, s T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
			if r == utf8.RuneError && n == 1 {
				dst = append(append(dst, s[start:i]...), `\ufffd`...)
				start = i + 1
			}
			i += n
			continue
		case c == '"' || c == '\\':
			dst = append(append(dst, s[start:i]...), '\\', c)
		case c < ' ':
			dst = append(append(dst, s[start:i]...), '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			i++
			continue
		}
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}
