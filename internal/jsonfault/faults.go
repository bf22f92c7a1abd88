package jsonfault

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/perceptor/perceptor/task"
)

// maxFaults bounds the faults of one text.
const maxFaults = 100

// Whole is the path of a text that is wrong as a whole and has no path of its own.
const Whole = "body"

// Faults returns what is wrong with a text that is JSON, and that the protobuf library refuses
// as a message of the type of m: at least one fault and at most 100, in the order of the text.
// under is the path of the message in the request; "" if it is the request. m is not changed.
func Faults(text []byte, m proto.Message, under string) []task.Fault {
	f := &finder{}
	f.message(under, text, m.ProtoReflect())
	if len(f.faults) == 0 {
		f.add(under, "cannot be read as %s", m.ProtoReflect().Descriptor().Name())
	}
	return f.faults
}

// finder collects faults.
type finder struct{ faults []task.Fault }

func (f *finder) add(path, format string, args ...any) {
	if path == "" {
		path = Whole
	}
	f.faults = append(f.faults, task.Fault{Field: path, Message: fmt.Sprintf(format, args...)})
}

func (f *finder) full() bool { return len(f.faults) >= maxFaults }

// message finds the faults of a refused text that should be a message of the type of m.
func (f *finder) message(path string, text []byte, m protoreflect.Message) {
	if kindOf(text) != '{' {
		f.add(path, "%s is not an object", shown(text))
		return
	}
	given := map[protoreflect.FieldNumber]bool{}
	chosen := map[protoreflect.Name]protoreflect.Name{} // the field of each oneof
	for name, value := range members(text) {
		if f.full() {
			return
		}
		if fault := nameFault(name.raw); fault != "" {
			f.add(path, "a name %s", fault)
			continue
		}
		field := fieldOf(m.Descriptor(), name.text)
		if field == nil {
			f.add(joined(path, name.text), "%s", Unknown("field", m.Descriptor(), name.text))
			continue
		}
		inner := joined(path, string(field.Name()))
		if given[field.Number()] {
			f.add(inner, "is given twice")
			continue
		}
		given[field.Number()] = true
		if kindOf(value) == 'n' && !takesNull(field) {
			continue
		}
		if group := field.ContainingOneof(); group != nil {
			if other := chosen[group.Name()]; other != "" {
				f.add(inner, "cannot be given beside %s", other)
				continue
			}
			chosen[group.Name()] = field.Name()
		}
		f.field(inner, value, m, field)
	}
}

// field finds the faults of the value of a field of m.
func (f *finder) field(path string, value []byte, m protoreflect.Message, field protoreflect.FieldDescriptor) {
	if taken(m, field, "", value, "") {
		return
	}
	before := len(f.faults)
	switch {
	case field.IsList():
		f.list(path, value, m, field)
	case field.IsMap():
		f.entries(path, value, m, field)
	case isObject(field):
		f.message(path, value, m.NewField(field).Message())
	}
	if len(f.faults) == before {
		f.add(path, "%s", wrongJSON(field, value))
	}
}

// list finds the faults of the elements of a list.
func (f *finder) list(path string, value []byte, m protoreflect.Message, field protoreflect.FieldDescriptor) {
	if kindOf(value) != '[' {
		f.add(path, "%s is not a list; write it in brackets", shown(value))
		return
	}
	var elements []json.RawMessage
	if json.Unmarshal(value, &elements) != nil {
		return
	}
	for i, e := range elements {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case f.full():
			return
		case taken(m, field, "[", e, "]"):
		case isObject(field):
			f.message(at, e, m.NewField(field).List().NewElement().Message())
		default:
			f.add(at, "%s", wrongJSON(field, e))
		}
	}
}

// entries finds the faults of the entries of a map, whose keys are texts in all requests.
func (f *finder) entries(path string, value []byte, m protoreflect.Message, field protoreflect.FieldDescriptor) {
	if kindOf(value) != '{' {
		f.add(path, "%s is not an object", shown(value))
		return
	}
	known := map[string]bool{}
	for key, v := range members(value) {
		at := fmt.Sprintf("%s[%q]", path, key.text)
		fault := nameFault(key.raw)
		switch {
		case f.full():
			return
		case fault != "":
			f.add(path, "a key %s", fault)
		case known[key.text]:
			f.add(at, "is given twice")
		case taken(m, field, "{"+key.raw+":", v, "}"):
		case isObject(field.MapValue()):
			f.message(at, v, m.NewField(field).Map().NewValue().Message())
		default:
			f.add(at, "%s", wrongJSON(field.MapValue(), v))
		}
		known[key.text] = true
	}
}

// taken reports whether the library takes a value, between two texts, for a field of m.
func taken(m protoreflect.Message, field protoreflect.FieldDescriptor, before string, value []byte, after string) bool {
	text := make([]byte, 0, len(value)+len(before)+len(after)+64)
	text = append(append(append(text, `{"`...), field.JSONName()...), `":`...)
	text = append(append(append(append(text, before...), value...), after...), '}')
	return protojson.Unmarshal(text, m.New().Interface()) == nil
}

// member is the name of a member of an object: its text, and as JSON.
type member struct{ text, raw string }

// members iterates over the members of an object.
func members(object []byte) func(yield func(member, []byte) bool) {
	return func(yield func(member, []byte) bool) {
		d := json.NewDecoder(bytes.NewReader(object))
		if _, err := d.Token(); err != nil {
			return
		}
		for d.More() {
			from := d.InputOffset()
			token, err := d.Token()
			if err != nil {
				return
			}
			raw := object[from:d.InputOffset()]
			name, _ := token.(string)
			var value json.RawMessage
			if d.Decode(&value) != nil || !yield(member{name, string(raw[bytes.IndexByte(raw, '"'):])}, value) {
				return
			}
		}
	}
}

// nameFault says why a name of JSON is refused, or returns "".
func nameFault(raw string) string {
	switch {
	case !utf8.ValidString(raw):
		return "contains invalid UTF-8"
	case halfPair(raw):
		return halfPairRule
	}
	return ""
}

// fieldOf returns the field with a name of JSON or of the proto file, or nil.
func fieldOf(m protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if field := m.Fields().ByJSONName(name); field != nil {
		return field
	}
	return m.Fields().ByTextName(name)
}

// joined returns the path of a member. Names that cannot be fields are quoted.
func joined(path, name string) string {
	plain := name != ""
	for _, r := range name {
		plain = plain && (r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z')
	}
	switch {
	case !plain:
		return fmt.Sprintf("%s[%s]", path, strconv.Quote(cut(name)))
	case path == "":
		return cut(name)
	}
	return path + "." + cut(name)
}

// kindOf returns the first byte of a value: one of { [ " t f n - or a digit.
func kindOf(value []byte) byte {
	if value = bytes.TrimLeft(value, " \t\r\n"); len(value) > 0 {
		return value[0]
	}
	return 0
}
