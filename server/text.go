package server

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxPathSteps bounds the paths that badText returns.
const maxPathSteps = 50

// badText returns the path of the first string in an encoded message that is
// not valid UTF-8, or "" if there is none within the given number of steps or the
// message is damaged otherwise. The error of the protobuf library has no path.
func badText(m protoreflect.MessageDescriptor, wire []byte, steps int) string {
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
		if path := badTextIn(field, content, steps); path != "" {
			return path
		}
	}
	return ""
}

func badTextIn(field protoreflect.FieldDescriptor, content []byte, steps int) string {
	name := string(field.Name())
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
		return name
	}
	return name + "." + inner
}
