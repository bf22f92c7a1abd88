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
	// countedFrom is the size in bytes from which entries are limited: smaller requests may have
	// as many as fit.
	countedFrom = 64 << 10
	// chargedFrom is the size in bytes from which the entries of a request over gRPC are charged for.
	chargedFrom = 1 << 10
	// entryBytes is what an entry takes in memory when it is decoded, if it has no content.
	entryBytes = 256
	// decodedMemory bounds the entries of JSON that are decoded at once, in bytes. A tenant may have half of it.
	decodedMemory = 1 << 30
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
func jsonEntries(text []byte) int {
	c := entryCounter{}
	c.count(text)
	return c.entries
}

// entryCounter counts the entries of a JSON text that comes in parts.
type entryCounter struct {
	entries         int
	quoted, escaped bool
}

func (c *entryCounter) count(part []byte) {
	for _, b := range part {
		switch {
		case c.escaped:
			c.escaped = false
		case c.quoted && b == '\\':
			c.escaped = true
		case b == '"':
			c.quoted = !c.quoted
		case !c.quoted && (b == ',' || b == '{' || b == '['):
			c.entries++
		}
	}
}
