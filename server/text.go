package server

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/perceptor/perceptor/task"
)

// maxPathSteps bounds the paths that badText returns.
const maxPathSteps = 50

// badWire returns the error for bytes that the protobuf library cannot decode as a message.
func badWire(m protoreflect.MessageDescriptor, wire []byte) error {
	if path := badText(m, wire, maxPathSteps); path != "" {
		return undecoded([]task.Fault{faultf(path, "contains invalid UTF-8")})
	}
	return malformed("its bytes are not a " + string(m.FullName()))
}

// badText returns the path of the first string in an encoded message that is
// not valid UTF-8, or "" if there is none within the given number of steps or the
// message is damaged otherwise. The error of the protobuf library has no path.
func badText(m protoreflect.MessageDescriptor, wire []byte, steps int) string {
	entries := map[protowire.Number]int{} // of each list, so far
	for len(wire) > 0 && steps > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return ""
		}
		size := protowire.ConsumeFieldValue(number, kind, wire[n:])
		if size < 0 {
			return ""
		}
		value := wire[n : n+size]
		wire = wire[n+size:]
		field := m.Fields().ByNumber(number)
		if field == nil || kind != protowire.BytesType {
			continue
		}
		content, _ := protowire.ConsumeBytes(value)
		if path := badTextIn(field, content, steps, entries[number]); path != "" {
			return path
		}
		entries[number]++
	}
	return ""
}

// badTextIn returns the path of a bad text in one value of a field. It is the entry of a list
// with the given index, if the field is one.
func badTextIn(field protoreflect.FieldDescriptor, content []byte, steps, index int) string {
	name := string(field.Name())
	if field.IsList() {
		name = fmt.Sprintf("%s[%d]", name, index)
	}
	switch {
	case field.Kind() == protoreflect.StringKind && !utf8.Valid(content):
		return name
	case field.Message() == nil:
		return ""
	}
	inner := badText(field.Message(), content, steps-1)
	switch {
	case inner == "":
		return ""
	case field.IsMap():
		return name + entryPath(content)
	}
	return name + "." + inner
}

// entryPath returns the path of an entry of a map within the map. It is "" for an entry whose key
// is not a text.
func entryPath(entry []byte) string {
	number, kind, n := protowire.ConsumeTag(entry)
	if number != 1 || kind != protowire.BytesType {
		return ""
	}
	key, size := protowire.ConsumeBytes(entry[n:])
	if size < 0 || !utf8.Valid(key) {
		return ""
	}
	return fmt.Sprintf("[%q]", key)
}
