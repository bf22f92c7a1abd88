package server

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// maxEntries is the most entries that all lists and maps of one request have together. An empty
	// one has two bytes, and takes more than a hundred times as much memory when it is decoded.
	maxEntries = 200_000
	// countedFrom is the size in bytes from which entries are counted: smaller requests may have
	// as many as fit.
	countedFrom = 64 << 10
	// maxNesting is the most messages within each other in such a request. Only JSON in
	// payloads nests without end.
	maxNesting = 1000
)

var (
	errEntries = fmt.Errorf("the lists and maps of the request have more than %d entries", maxEntries)
	errNesting = fmt.Errorf("the request has more than %d messages within each other", maxNesting)
)

// countEntries subtracts the entries of lists and maps in an encoded message from left. It fails if
// that becomes negative, or if there are more than the given number of levels of messages. Decoding
// finds what is damaged.
func countEntries(m protoreflect.MessageDescriptor, wire []byte, left *int, levels int) error {
	if levels == 0 {
		return errNesting
	}
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return nil
		}
		size := protowire.ConsumeFieldValue(number, kind, wire[n:])
		if size < 0 {
			return nil
		}
		value := wire[n : n+size]
		wire = wire[n+size:]
		field := m.Fields().ByNumber(number)
		if field == nil {
			continue
		}
		content := value
		if kind == protowire.BytesType {
			content, _ = protowire.ConsumeBytes(value)
		}
		if field.Cardinality() == protoreflect.Repeated {
			*left -= entriesIn(field, kind, content)
		}
		if *left < 0 {
			return errEntries
		}
		if inner := field.Message(); inner != nil && kind == protowire.BytesType {
			if err := countEntries(inner, content, left, levels-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// entriesIn returns the entries in one value of a repeated field, which has many if they are packed.
func entriesIn(field protoreflect.FieldDescriptor, kind protowire.Type, content []byte) int {
	if kind == protowire.BytesType && field.Message() == nil && field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.BytesKind {
		return len(content) // each takes at least a byte
	}
	return 1
}

// jsonEntries returns the number of values that the objects and lists of a JSON text have at most.
func jsonEntries(text []byte) (n int) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '{' || c == '['):
			n++
		}
	}
	return n
}
