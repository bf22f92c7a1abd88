package server

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// templateEntries is the most entries that the lists and maps of all templates of a chunk have.
const templateEntries = 1 << 20

var errChunkLists = errors.New("its lists have more entries than a chunk may have")

// chunkFields are the fields of a chunk. The others are the messages in it.
var (
	chunkFields  = (&perceptorv1.ImportChunk{}).ProtoReflect().Descriptor().Fields()
	stateOfChunk = (&perceptorv1.LineStates{}).ProtoReflect().Descriptor()
	taskOfChunk  = (&perceptorv1.Task{}).ProtoReflect().Descriptor()
)

// countChunk fails if the lists of an encoded chunk would be too large in memory, where a value of
// one byte takes up to eight. Decoding finds what is damaged.
func countChunk(wire []byte) error {
	templates, entries := 0, templateEntries
	values, states := map[protowire.Number]int{}, map[protowire.Number]int{}
	for len(wire) > 0 {
		number, kind, content, rest := nextField(wire)
		if rest == nil {
			return nil
		}
		wire = rest
		field := chunkFields.ByNumber(number)
		switch {
		case field == nil:
		case field.Message() == stateOfChunk:
			if err := countStates(content, states); err != nil {
				return err
			}
		case field.Message() == taskOfChunk:
			if templates++; templates > task.MaxChunkTemplates || countEntries(taskOfChunk, content, &entries, maxNesting) != nil {
				return errChunkLists
			}
		case field.IsList():
			if values[number] += valuesIn(kind, content); values[number] > task.MaxChunkLines {
				return errChunkLists
			}
		}
	}
	return nil
}

// countStates is countChunk for a message with states of lines, which are joined if there are
// several.
func countStates(wire []byte, values map[protowire.Number]int) error {
	for len(wire) > 0 {
		number, kind, content, rest := nextField(wire)
		if rest == nil {
			return nil
		}
		wire = rest
		if values[number] += valuesIn(kind, content); values[number] > task.MaxChunkLines {
			return errChunkLists
		}
	}
	return nil
}

// nextField returns the first field of a message, and what follows it; nil: it is damaged.
func nextField(wire []byte) (number protowire.Number, kind protowire.Type, content, rest []byte) {
	number, kind, n := protowire.ConsumeTag(wire)
	if n < 0 {
		return 0, 0, nil, nil
	}
	size := protowire.ConsumeFieldValue(number, kind, wire[n:])
	if size < 0 {
		return 0, 0, nil, nil
	}
	content = wire[n : n+size]
	if kind == protowire.BytesType {
		content, _ = protowire.ConsumeBytes(content)
	}
	return number, kind, content, wire[n+size:]
}

// valuesIn returns how many numbers a field of a list has: many if they are packed. Each ends with
// a byte below 128.
func valuesIn(kind protowire.Type, content []byte) (n int) {
	if kind != protowire.BytesType {
		return 1
	}
	for _, b := range content {
		n += int(^b >> 7)
	}
	return n
}
