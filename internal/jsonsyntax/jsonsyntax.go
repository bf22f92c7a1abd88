// Package jsonsyntax says in plain words where and why a text is not JSON.
//
// The standard library decides what is JSON. Its errors speak of its own states ("invalid
// character '}' looking for beginning of value") and give no line. So a text that it refuses is
// read again here, until the first fault.
package jsonsyntax

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxDepth is the most objects and lists within each other that the standard library reads.
const maxDepth = 10000

// Fault says where and why a text is not JSON, such as "line 2, column 7: a comma or } is
// missing before \"type\"". It returns "" for a text that is JSON.
func Fault(text []byte) string {
	if json.Valid(text) {
		return ""
	}
	s := &scanner{text: text}
	s.value()
	for s.fault == "" && len(s.open) > 0 {
		s.next()
	}
	if s.fault == "" {
		s.space()
		s.refuse("%s follows after the end of the JSON", s.seen())
	}
	line := 1 + bytes.Count(text[:s.at], []byte{'\n'})
	column := 1 + utf8.RuneCount(text[1+bytes.LastIndexByte(text[:s.at], '\n'):s.at])
	return fmt.Sprintf("line %d, column %d: %s", line, column, s.fault)
}

// scanner reads a JSON text until its first fault.
type scanner struct {
	text  []byte
	at    int
	open  []bracket // the objects and lists that contain the position
	fault string    // "" until one is found
}

// bracket is an object or a list that has begun.
type bracket struct {
	at     int
	filled bool // it has a value already
}

func (s *scanner) refuse(format string, args ...any) {
	if s.fault == "" {
		s.fault = fmt.Sprintf(format, args...)
	}
}

func (s *scanner) space() {
	for s.at < len(s.text) && strings.IndexByte(" \t\r\n", s.text[s.at]) >= 0 {
		s.at++
	}
}

// peek returns the next byte behind white space, and 0 at the end.
func (s *scanner) peek() byte {
	if s.space(); s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

// seen shows what is at the position.
func (s *scanner) seen() string {
	if s.at >= len(s.text) {
		return "the end of the text"
	}
	r, _ := utf8.DecodeRune(s.text[s.at:])
	return fmt.Sprintf("%q", r)
}

// value reads a text, a number or a word, or the beginning of an object or a list.
func (s *scanner) value() {
	switch c := s.peek(); {
	case c == '{' || c == '[':
		if len(s.open) == maxDepth {
			s.refuse("more than %d objects and lists lie within each other", maxDepth)
			return
		}
		s.open = append(s.open, bracket{at: s.at})
		s.at++
	case c == '"':
		s.quoted()
	case c == '-' || c >= '0' && c <= '9':
		s.number()
	default:
		s.word()
	}
}

// next reads one more entry of the innermost object or list, or its end.
func (s *scanner) next() {
	b := &s.open[len(s.open)-1]
	object := s.text[b.at] == '{'
	end, name := byte(']'), "list"
	if object {
		end, name = '}', "object"
	}
	c := s.peek()
	switch {
	case c == end:
		s.at++
		s.open = s.open[:len(s.open)-1]
		return
	case s.at >= len(s.text):
		line := 1 + bytes.Count(s.text[:b.at], []byte{'\n'})
		s.refuse("the text ends before the %s of line %d is closed with %c", name, line, end)
		return
	case b.filled && c != ',':
		s.refuse("a comma or %c is missing before %s", end, s.seen())
		return
	case b.filled:
		s.at++
	}
	b.filled = true
	if object {
		s.name()
	}
	if s.fault == "" {
		s.value()
	}
}

// name reads the name of a member and its colon.
func (s *scanner) name() {
	if s.peek() != '"' {
		s.refuse("a name in double quotes is missing before %s", s.seen())
		return
	}
	s.quoted()
	if s.fault != "" {
		return
	}
	if s.peek() != ':' {
		s.refuse("a colon is missing before %s", s.seen())
		return
	}
	s.at++
}

// quoted reads a text in quotes.
func (s *scanner) quoted() {
	began := s.at
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '"':
			s.at++
			return
		case c < ' ':
			s.refuse("a text has the control character %U; write it as an escape, such as \\n", c)
			return
		case c == '\\':
			if !s.escape() {
				return
			}
		}
	}
	s.at = began
	s.refuse("the text that begins here has no closing quote")
}

// escape reads an escape up to its last character, and reports whether it is one.
func (s *scanner) escape() bool {
	hex := 0
	if s.at++; s.at < len(s.text) && s.text[s.at] == 'u' {
		hex = 4
	} else if s.at < len(s.text) && strings.IndexByte(`"\/bfnrt`, s.text[s.at]) < 0 {
		s.refuse("\\%c is no escape; a backslash itself is written \\\\", s.text[s.at])
		return false
	}
	for ; hex > 0; hex-- {
		if s.at++; s.at < len(s.text) && !isHex(s.text[s.at]) {
			s.refuse("\\u needs four hexadecimal digits, not %s", s.seen())
			return false
		}
	}
	return true
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}

// number reads a number.
func (s *scanner) number() {
	began := s.at
	for s.at < len(s.text) && strings.IndexByte("+-.0123456789eE", s.text[s.at]) >= 0 {
		s.at++
	}
	if word := s.text[began:s.at]; !json.Valid(word) {
		s.at = began
		s.refuse("%.40s is not a number of JSON", word)
	}
}

// word reads true, false or null.
func (s *scanner) word() {
	began := s.at
	for s.at < len(s.text) && (s.text[s.at]|0x20 >= 'a' && s.text[s.at]|0x20 <= 'z' || s.text[s.at] == '_') {
		s.at++
	}
	word := s.text[began:s.at]
	switch string(word) {
	case "true", "false", "null":
		return
	}
	s.at = began
	if len(word) > 0 {
		s.refuse("%.40s is not a value; a text is written in double quotes", word)
		return
	}
	if s.peek() == '\'' {
		s.refuse("a text is written in double quotes, not in single ones")
		return
	}
	s.refuse("a value is missing before %s", s.seen())
}
