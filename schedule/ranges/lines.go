package ranges

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxLine bounds an unfolded line, in bytes.
const maxLine = 64 << 10

// property is a line of a file: its name, parameters and value.
type property struct {
	line   int
	name   string
	params map[string]string
	value  string
}

// fault is an error about the property.
func (p *property) fault(format string, args ...any) error {
	return fmt.Errorf("line %d: %s:%.80s: %s", p.line, p.name, p.value, fmt.Sprintf(format, args...))
}

// properties reads the lines of a file. A line that begins with a blank continues the one
// before it.
func properties(text string) ([]property, error) {
	text = strings.TrimPrefix(text, "\ufeff")
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("is not valid UTF-8")
	}
	var out []property
	var joined strings.Builder
	first := 0
	finish := func() error {
		if joined.Len() == 0 {
			return nil
		}
		p, err := propertyOf(joined.String(), first)
		out = append(out, p)
		joined.Reset()
		return err
	}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line != "" && (line[0] == ' ' || line[0] == '\t') && joined.Len() > 0 {
			joined.WriteString(line[1:])
		} else {
			if err := finish(); err != nil {
				return nil, err
			}
			first = n + 1
			joined.WriteString(line)
		}
		if joined.Len() > maxLine {
			return nil, fmt.Errorf("line %d: has more than %d bytes", first, maxLine)
		}
	}
	return out, finish()
}

// propertyOf reads "NAME;PARAM=VALUE;PARAM="VALUE":VALUE".
func propertyOf(line string, n int) (property, error) {
	p := property{line: n}
	head, quoted := len(line), false
	for i := range len(line) {
		if line[i] == '"' {
			quoted = !quoted
		} else if line[i] == ':' && !quoted {
			head = i
			break
		}
	}
	if head == len(line) {
		return p, fmt.Errorf("line %d: %.80q is not of the form NAME:VALUE", n, line)
	}
	parts := strings.Split(line[:head], ";")
	p.name, p.value = strings.ToUpper(parts[0]), line[head+1:]
	p.params = make(map[string]string, len(parts)-1)
	for _, param := range parts[1:] {
		name, value, _ := strings.Cut(param, "=")
		p.params[strings.ToUpper(name)] = strings.Trim(value, `"`)
	}
	return p, nil
}
