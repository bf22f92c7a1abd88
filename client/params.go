package client

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/perceptor/perceptor/task"
)

// Params converts a struct, or a pointer to one, to the params of a task; [Typed]
// handlers read them. A field named LastScore is the param "last_score"; a tag can
// change that:
//
//	Content string        `param:"content_id"`     // another key
//	Score   float64       `param:",omitempty"`     // omitted when zero
//	Author  string        `param:",required"`      // refused when the key is missing
//	Others  map[string]string `param:",rest"`      // all other keys
//	Cache   *Cache        `param:"-"`              // ignored
//
// Strings, bools, integers and floats have Go's formats; a time.Duration is "1m30s",
// a time.Time is in RFC 3339. A type that implements encoding.TextMarshaler uses it.
// A pointer is written as the value that it points to, and omitted when nil. All
// other types are written as JSON. Fields of embedded structs are included.
// Unexported fields are ignored.
//
// Reading tolerates tasks that are older or newer than the handler: a missing key
// leaves the field zero, unless the field is required, and unknown keys are
// ignored.
func Params(v any) (map[string]string, error) {
	rv := reflect.ValueOf(v)
	for rv.Kind() == reflect.Pointer && !rv.IsNil() {
		rv = rv.Elem()
	}
	if !rv.IsValid() {
		return nil, errors.New("perceptor: params: nil is not a struct")
	}
	if rv.Kind() == reflect.Pointer {
		return nil, fmt.Errorf("perceptor: params: the %s is nil", rv.Type())
	}
	s, err := shapeOf(rv.Type())
	if err != nil {
		return nil, err
	}
	return s.encode(rv)
}

// MustParams is [Params] for structs that can always be converted. It panics if
// Params returns an error.
func MustParams(v any) map[string]string {
	m, err := Params(v)
	if err != nil {
		panic(err.Error())
	}
	return m
}

// ParamError describes a param that cannot be read into a struct, or written
// from one.
type ParamError struct {
	// Key and Value are those of the param. Missing is set if the key does not
	// exist.
	Key, Value string
	Missing    bool
	// Err describes the fault of the value.
	Err error
}

const maxShownValue = 64

// Error names the key, the value and the fault.
func (e *ParamError) Error() string {
	if e.Missing {
		return fmt.Sprintf("perceptor: params[%q] is missing", e.Key)
	}
	value := e.Value
	if len(value) > maxShownValue {
		value = strings.ToValidUTF8(value[:maxShownValue], "") + "…"
	}
	return fmt.Sprintf("perceptor: params[%q] is %q: %v", e.Key, value, e.Err)
}

// Unwrap returns Err.
func (e *ParamError) Unwrap() error { return e.Err }

// shape is the mapping between the fields of a struct and params.
type shape struct {
	fields []field
	rest   []int // index of the field for other keys; nil: none
	keys   map[string]bool
}

type field struct {
	key                 string
	index               []int
	omitempty, required bool
	codec
}

// codec reads and writes values of one type.
type codec struct {
	read  func(s string, to reflect.Value) error
	write func(v reflect.Value) (s string, ok bool, err error)
}

var shapes sync.Map // reflect.Type -> *shape

func shapeFor[P any]() (*shape, error) { return shapeOf(reflect.TypeFor[P]()) }

func shapeOf(t reflect.Type) (*shape, error) {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape), nil
	}
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("perceptor: params: %s is not a struct", t)
	}
	s := &shape{keys: map[string]bool{}}
	if err := s.add(t, nil); err != nil {
		return nil, fmt.Errorf("perceptor: params of %s: %w", t, err)
	}
	shapes.Store(t, s)
	return s, nil
}

// add adds the fields of the struct t, which is at the given path.
func (s *shape) add(t reflect.Type, path []int) error {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("param")
		index := append(slices.Clone(path), i)
		switch {
		case tag == "-":
			continue
		case f.Anonymous && !tagged && f.Type.Kind() == reflect.Struct:
			if err := s.add(f.Type, index); err != nil {
				return err
			}
			continue
		case !f.IsExported():
			continue
		}
		if err := s.field(f, tag, index); err != nil {
			return fmt.Errorf("field %s: %w", f.Name, err)
		}
	}
	return nil
}

func (s *shape) field(f reflect.StructField, tag string, index []int) error {
	name, options, _ := strings.Cut(tag, ",")
	fd := field{key: name, index: index}
	if name == "" {
		fd.key = snake(f.Name)
	}
	for o := range strings.SplitSeq(options, ",") {
		switch o {
		case "":
		case "omitempty":
			fd.omitempty = true
		case "required":
			fd.required = true
		case "rest":
			if f.Type != reflect.TypeFor[map[string]string]() || s.rest != nil {
				return errors.New("rest needs the type map[string]string, and only one field can have it")
			}
			s.rest = index
			return nil
		default:
			return fmt.Errorf("unknown option %q: want omitempty, required or rest", o)
		}
	}
	if n := len(fd.key); n > task.MaxParamKeyBytes || s.keys[fd.key] {
		return fmt.Errorf("the key %q is longer than %d bytes or belongs to another field", fd.key, task.MaxParamKeyBytes)
	}
	c, err := codecOf(f.Type)
	if err != nil {
		return err
	}
	fd.codec = c
	s.keys[fd.key] = true
	s.fields = append(s.fields, fd)
	return nil
}

// snake converts the name of a field to a key: UserID becomes user_id.
func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) && runes[i-1] != '_' {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func (s *shape) encode(v reflect.Value) (map[string]string, error) {
	out := make(map[string]string, len(s.fields))
	if s.rest != nil {
		maps.Copy(out, v.FieldByIndex(s.rest).Interface().(map[string]string))
		for k := range out {
			if s.keys[k] {
				return nil, &ParamError{Key: k, Value: out[k], Err: errors.New("the key belongs to a field and is among the other keys, too")}
			}
		}
	}
	for _, f := range s.fields {
		fv := v.FieldByIndex(f.index)
		if f.omitempty && fv.IsZero() {
			continue
		}
		text, ok, err := f.write(fv)
		if err != nil {
			return nil, &ParamError{Key: f.key, Value: fmt.Sprint(fv.Interface()), Err: err}
		}
		if ok {
			out[f.key] = text
		}
	}
	return out, nil
}

// decode reads params into the struct that to points to.
func (s *shape) decode(params map[string]string, to any) error {
	v := reflect.ValueOf(to).Elem()
	for _, f := range s.fields {
		text, ok := params[f.key]
		if !ok {
			if f.required {
				return &ParamError{Key: f.key, Missing: true}
			}
			continue
		}
		if err := f.read(text, v.FieldByIndex(f.index)); err != nil {
			return &ParamError{Key: f.key, Value: text, Err: err}
		}
	}
	if s.rest == nil {
		return nil
	}
	rest := map[string]string{}
	for k, text := range params {
		if !s.keys[k] {
			rest[k] = text
		}
	}
	v.FieldByIndex(s.rest).Set(reflect.ValueOf(rest))
	return nil
}

var (
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func codecOf(t reflect.Type) (codec, error) {
	p := reflect.PointerTo(t)
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return plain("a duration such as 1m30s", func(s string, v reflect.Value) error {
			d, err := time.ParseDuration(s)
			v.SetInt(int64(d))
			return err
		}, func(v reflect.Value) string { return time.Duration(v.Int()).String() }), nil
	case t.Kind() != reflect.Pointer && p.Implements(textUnmarshaler) && p.Implements(textMarshaler):
		return textCodec(), nil
	}
	switch t.Kind() {
	case reflect.String:
		return plain("text", func(s string, v reflect.Value) error { v.SetString(s); return nil }, reflect.Value.String), nil
	case reflect.Bool:
		return plain("true or false", func(s string, v reflect.Value) error {
			b, err := strconv.ParseBool(s)
			v.SetBool(b)
			return err
		}, func(v reflect.Value) string { return strconv.FormatBool(v.Bool()) }), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return plain("a whole number of the type "+t.Kind().String(), func(s string, v reflect.Value) error {
			n, err := strconv.ParseInt(s, 10, t.Bits())
			v.SetInt(n)
			return err
		}, func(v reflect.Value) string { return strconv.FormatInt(v.Int(), 10) }), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return plain("a whole number of the type "+t.Kind().String(), func(s string, v reflect.Value) error {
			n, err := strconv.ParseUint(s, 10, t.Bits())
			v.SetUint(n)
			return err
		}, func(v reflect.Value) string { return strconv.FormatUint(v.Uint(), 10) }), nil
	case reflect.Float32, reflect.Float64:
		return plain("a number of the type "+t.Kind().String(), func(s string, v reflect.Value) error {
			x, err := strconv.ParseFloat(s, t.Bits())
			v.SetFloat(x)
			return err
		}, func(v reflect.Value) string { return strconv.FormatFloat(v.Float(), 'g', -1, t.Bits()) }), nil
	case reflect.Pointer:
		return pointerCodec(t)
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128, reflect.Uintptr:
		return codec{}, fmt.Errorf("the type %s cannot be a param", t)
	}
	return jsonCodec(), nil
}

// plain is the codec of a type that can always be written. Errors name what,
// such as "a duration".
func plain(what string, read func(string, reflect.Value) error, write func(reflect.Value) string) codec {
	return codec{
		read: func(s string, v reflect.Value) error {
			err := read(s, v)
			if err == nil {
				return nil
			}
			var number *strconv.NumError
			if errors.As(err, &number) {
				err = number.Err
			}
			return fmt.Errorf("want %s: %w", what, err)
		},
		write: func(v reflect.Value) (string, bool, error) { return text(write(v)) },
	}
}

// text checks that s can be a param.
func text(s string) (string, bool, error) {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return "", false, errors.New("it is not UTF-8 or has a NUL byte")
	}
	return s, true, nil
}

func textCodec() codec {
	return codec{
		read: func(s string, v reflect.Value) error {
			return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s))
		},
		write: func(v reflect.Value) (string, bool, error) {
			b, err := addressable(v).Interface().(encoding.TextMarshaler).MarshalText()
			if err != nil {
				return "", false, err
			}
			return text(string(b))
		},
	}
}

// addressable returns a pointer to v or to a copy of it.
func addressable(v reflect.Value) reflect.Value {
	if v.CanAddr() {
		return v.Addr()
	}
	c := reflect.New(v.Type())
	c.Elem().Set(v)
	return c
}

func pointerCodec(t reflect.Type) (codec, error) {
	of, err := codecOf(t.Elem())
	return codec{
		read: func(s string, v reflect.Value) error {
			p := reflect.New(t.Elem())
			v.Set(p)
			return of.read(s, p.Elem())
		},
		write: func(v reflect.Value) (string, bool, error) {
			if v.IsNil() {
				return "", false, nil
			}
			return of.write(v.Elem())
		},
	}, err
}

func jsonCodec() codec {
	return codec{
		read: func(s string, v reflect.Value) error {
			if err := json.Unmarshal([]byte(s), v.Addr().Interface()); err != nil {
				return fmt.Errorf("want JSON for the type %s: %w", v.Type(), err)
			}
			return nil
		},
		write: func(v reflect.Value) (string, bool, error) {
			b, err := json.Marshal(v.Interface())
			if err != nil {
				return "", false, err
			}
			return text(string(b))
		},
	}
}
