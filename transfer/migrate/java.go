package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// readJavaMap reads a map of texts that a Java program has stored: properties as text, or a serialized
// Map. Empty data is an empty map.
func readJavaMap(data []byte) (map[string]string, error) {
	if !bytes.HasPrefix(data, []byte(streamMagic)) {
		return readProperties(data)
	}
	v, err := readJavaObject(data)
	if err != nil {
		return nil, err
	}
	m, ok := v.(*javaObject)
	if !ok {
		return nil, errors.New("it is not a map")
	}
	return m.texts()
}

// readProperties reads the text that java.util.Properties.store writes.
func readProperties(data []byte) (map[string]string, error) {
	out := map[string]string{}
	for _, line := range strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' || r == '\r' }) {
		line = strings.TrimLeft(line, " \t\f")
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		key, rest, err := unescape(line, true)
		if err != nil {
			return nil, err
		}
		value, _, err := unescape(strings.TrimLeft(strings.TrimPrefix(strings.TrimLeft(rest, " \t\f"), "="), " \t\f"), false)
		if err != nil {
			return nil, err
		}
		out[key] = value
	}
	return out, nil
}

// unescape reads a key, up to the end of it, or a value. The text has the bytes of ISO 8859-1.
func unescape(text string, key bool) (value, rest string, err error) {
	var units []uint16
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case key && (c == '=' || c == ':' || c == ' ' || c == '\t'):
			return string(utf16.Decode(units)), text[i:], nil
		case c != '\\':
			units = append(units, uint16(c))
			continue
		}
		if i++; i == len(text) {
			return "", "", errors.New("properties end within an escape")
		}
		switch c = text[i]; c {
		case 'u':
			if i+4 >= len(text) {
				return "", "", errors.New("properties end within an escape")
			}
			n, err := strconv.ParseUint(text[i+1:i+5], 16, 16)
			if err != nil {
				return "", "", fmt.Errorf("properties have the escape \\u%s", text[i+1:i+5])
			}
			units, i = append(units, uint16(n)), i+4
		default:
			if at := strings.IndexByte("tnrf", c); at >= 0 {
				c = "\t\n\r\f"[at]
			}
			units = append(units, uint16(c))
		}
	}
	return string(utf16.Decode(units)), "", nil
}

// The Java Object Serialization Stream Protocol, version 5, as far as maps of texts and numbers need
// it. https://docs.oracle.com/javase/8/docs/platform/serialization/spec/protocol.html has the grammar.
const streamMagic = "\xac\xed\x00\x05"

const (
	tcNull byte = 0x70 + iota
	tcReference
	tcClassDesc
	tcObject
	tcString
	tcArray
	tcClass
	tcBlockData
	tcEndBlockData
	tcReset
	tcBlockDataLong
	tcException
	tcLongString
	tcProxyClassDesc
	tcEnum
)

// Bounds of a stream.
const (
	maxJavaDepth   = 64
	maxJavaObjects = 10_000
)

// javaClass is the description of a class.
type javaClass struct {
	name   string
	flags  byte
	fields []javaField
	super  *javaClass
}

type javaField struct {
	typ  byte
	name string
}

// javaObject is an object: its fields, and what the methods writeObject of its classes have written.
type javaObject struct {
	class   *javaClass
	fields  map[string]any
	written map[string][]any // by class
}

// javaReader reads a stream. Values are string, bool, int64, float64, nil and *javaObject.
type javaReader struct {
	rest    []byte
	handles []any
	depth   int
}

// readJavaObject reads a stream with one object.
func readJavaObject(data []byte) (any, error) {
	r := &javaReader{rest: data[len(streamMagic):]}
	return r.value()
}

var errJava = errors.New("it is not a serialized Java object that this program can read")

func (r *javaReader) take(n int) ([]byte, error) {
	if n < 0 || n > len(r.rest) {
		return nil, errJava
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b, nil
}

func (r *javaReader) number(size int) (uint64, error) {
	b, err := r.take(size)
	var n uint64
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n, err
}

// text reads a text in modified UTF-8 after its length.
func (r *javaReader) text(lengthBytes int) (string, error) {
	n, err := r.number(lengthBytes)
	if err != nil || n > uint64(len(r.rest)) {
		return "", errJava
	}
	b, err := r.take(int(n))
	if err != nil {
		return "", err
	}
	return modifiedUTF8(b)
}

// modifiedUTF8 decodes Java's form of UTF-8, in which characters beyond the first plane are two surrogates.
func modifiedUTF8(b []byte) (string, error) {
	if utf8.Valid(b) && !bytes.Contains(b, []byte{0xc0, 0x80}) {
		return string(b), nil
	}
	var units []uint16
	for len(b) > 0 {
		switch c := b[0]; {
		case c < 0x80:
			units, b = append(units, uint16(c)), b[1:]
		case c>>5 == 6 && len(b) > 1:
			units, b = append(units, uint16(c&31)<<6|uint16(b[1]&63)), b[2:]
		case c>>4 == 14 && len(b) > 2:
			units, b = append(units, uint16(c&15)<<12|uint16(b[1]&63)<<6|uint16(b[2]&63)), b[3:]
		default:
			return "", errJava
		}
	}
	return string(utf16.Decode(units)), nil
}

func (r *javaReader) remember(v any) (int, error) {
	if len(r.handles) >= maxJavaObjects {
		return 0, errJava
	}
	r.handles = append(r.handles, v)
	return len(r.handles) - 1, nil
}

// value reads one value of any type.
func (r *javaReader) value() (any, error) {
	if r.depth++; r.depth > maxJavaDepth {
		return nil, errJava
	}
	defer func() { r.depth-- }()
	tag, err := r.number(1)
	if err != nil {
		return nil, err
	}
	switch byte(tag) {
	case tcNull:
		return nil, nil
	case tcReference:
		return r.reference()
	case tcString, tcLongString:
		size := 2
		if byte(tag) == tcLongString {
			size = 8
		}
		s, err := r.text(size)
		if err == nil {
			_, err = r.remember(s)
		}
		return s, err
	case tcObject:
		return r.object()
	}
	return nil, errJava
}

func (r *javaReader) reference() (any, error) {
	n, err := r.number(4)
	if n -= 0x7e0000; err != nil || n >= uint64(len(r.handles)) {
		return nil, errJava
	}
	return r.handles[n], nil
}

// class reads the description of a class; nil for none.
func (r *javaReader) class() (*javaClass, error) {
	if r.depth++; r.depth > maxJavaDepth {
		return nil, errJava
	}
	defer func() { r.depth-- }()
	tag, err := r.number(1)
	switch {
	case err != nil:
		return nil, err
	case byte(tag) == tcNull:
		return nil, nil
	case byte(tag) == tcReference:
		v, err := r.reference()
		c, ok := v.(*javaClass)
		if err != nil || !ok {
			return nil, errJava
		}
		return c, nil
	case byte(tag) != tcClassDesc:
		return nil, errJava
	}
	return r.newClass()
}

func (r *javaReader) newClass() (*javaClass, error) {
	name, err := r.text(2)
	if err != nil {
		return nil, err
	}
	if _, err := r.take(8); err != nil { // serialVersionUID
		return nil, err
	}
	c := &javaClass{name: name}
	if _, err := r.remember(c); err != nil {
		return nil, err
	}
	flags, err := r.number(1)
	if err != nil {
		return nil, err
	}
	n, err := r.number(2)
	if err != nil {
		return nil, err
	}
	for c.flags = byte(flags); n > 0; n-- {
		f, err := r.field()
		if err != nil {
			return nil, err
		}
		c.fields = append(c.fields, f)
	}
	if _, err := r.annotations(); err != nil {
		return nil, err
	}
	c.super, err = r.class()
	return c, err
}

func (r *javaReader) field() (f javaField, err error) {
	typ, err := r.number(1)
	if err != nil {
		return f, err
	}
	if f.name, err = r.text(2); err == nil && (typ == 'L' || typ == '[') {
		_, err = r.value() // the name of its class
	}
	f.typ = byte(typ)
	return f, err
}

// annotations reads what a method writeObject has written: blocks of bytes, and objects.
func (r *javaReader) annotations() (list []any, err error) {
	for len(r.rest) > 0 {
		switch r.rest[0] {
		case tcEndBlockData:
			r.rest = r.rest[1:]
			return list, nil
		case tcBlockData, tcBlockDataLong:
			size := 1
			if r.rest[0] == tcBlockDataLong {
				size = 4
			}
			r.rest = r.rest[1:]
			n, err := r.number(size)
			if err != nil || n > uint64(len(r.rest)) {
				return nil, errJava
			}
			r.rest = r.rest[n:]
		default:
			v, err := r.value()
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
	}
	return nil, errJava
}

// The flags of a class.
const (
	writeMethod  = 1
	serializable = 2
)

func (r *javaReader) object() (*javaObject, error) {
	c, err := r.class()
	if err != nil || c == nil {
		return nil, errJava
	}
	o := &javaObject{class: c, fields: map[string]any{}, written: map[string][]any{}}
	if _, err := r.remember(o); err != nil {
		return nil, err
	}
	var classes []*javaClass
	for at := c; at != nil; at = at.super {
		if classes = append(classes, at); len(classes) > maxJavaDepth {
			return nil, errJava
		}
	}
	for i := len(classes) - 1; i >= 0; i-- {
		c := classes[i]
		if c.flags&serializable == 0 {
			return nil, fmt.Errorf("an object of the class %s is not a text or a number", c.name)
		}
		for _, f := range c.fields {
			if o.fields[f.name], err = r.fieldValue(f.typ); err != nil {
				return nil, err
			}
		}
		if c.flags&writeMethod != 0 {
			if o.written[c.name], err = r.annotations(); err != nil {
				return nil, err
			}
		}
	}
	return o, nil
}

func (r *javaReader) fieldValue(typ byte) (any, error) {
	switch typ {
	case 'L', '[':
		return r.value()
	case 'Z':
		n, err := r.number(1)
		return n != 0, err
	case 'F':
		n, err := r.number(4)
		return float64(math.Float32frombits(uint32(n))), err
	case 'D':
		n, err := r.number(8)
		return math.Float64frombits(n), err
	case 'B':
		n, err := r.number(1)
		return int64(int8(n)), err
	case 'S':
		n, err := r.number(2)
		return int64(int16(n)), err
	case 'I':
		n, err := r.number(4)
		return int64(int32(n)), err
	case 'J':
		n, err := r.number(8)
		return int64(n), err
	}
	return nil, errJava
}

// texts returns the entries of a map: a HashMap, or an object that wraps one, such as Quartz's JobDataMap.
func (o *javaObject) texts() (map[string]string, error) {
	if m, ok := o.fields["map"].(*javaObject); ok {
		return m.texts()
	}
	list, ok := o.written["java.util.HashMap"]
	if !ok || len(list)%2 != 0 {
		return nil, fmt.Errorf("an object of the class %s is not a map of texts", o.class.name)
	}
	out := map[string]string{}
	for i := 0; i < len(list); i += 2 {
		key, ok := list[i].(string)
		if !ok {
			return nil, errors.New("a key of the map is not a text")
		}
		value, err := scalar(list[i+1])
		if err != nil {
			return nil, fmt.Errorf("%q: %w", key, err)
		}
		out[key] = value
	}
	return out, nil
}

// scalar returns a text, a number or a truth value as text.
func scalar(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), nil
	case *javaObject:
		if strings.HasPrefix(v.class.name, "java.lang.") && v.fields["value"] != nil {
			return scalar(v.fields["value"])
		}
		return "", fmt.Errorf("an object of the class %s is not a text or a number", v.class.name)
	}
	return "", errors.New("the value is not a text or a number")
}
