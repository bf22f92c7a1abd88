package transfer

import (
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// # Terms of fast lines
//
// Lines of an export have all terms, in many combinations, but each term has few values. So protojson reads each text of
// a field once, and the terms of a line are put together from the encoded fields.

// termNumbers are the numbers of the fields that are terms, by their names in both forms. They are taken from the contract,
// so a new term does not make the lines that have it slow ones.
var termNumbers = func() map[string]protowire.Number {
	numbers := map[string]protowire.Number{}
	for _, f := range termFields {
		top := f.way[0]
		numbers[string(top.Name())], numbers[top.JSONName()] = top.Number(), top.Number()
	}
	return numbers
}()

// ownValues are fields that most lines have with a value of their own, which is not remembered.
var ownValues = []protowire.Number{termNumbers["end_time"], termNumbers["trace_parent"], termNumbers["payload"]}

const (
	// maxFieldTexts bounds the texts of fields that are remembered, maxFieldText their size.
	maxFieldTexts = 1 << 13
	maxFieldText  = 512
)

// fieldText is the text of a field with its name.
type fieldText struct {
	number protowire.Number
	text   []byte
}

// fieldTexts are the texts of fields that are terms, with their names, of the current line.
type fieldTexts struct {
	now []fieldText
	// seen has a bit for each number of a field. schedule is one bit for all fields of the oneof.
	seen uint64
	// wire has the encoded fields by their texts.
	wire map[string][]byte
	buf  []byte
}

func (f *fieldTexts) reset() { f.now, f.seen = f.now[:0], 0 }

// scheduleBit stands for the fields of the oneof schedule. No field has its number.
const scheduleBit = 63

// once returns false if a field was there before, or another one of its oneof.
func (f *fieldTexts) once(n protowire.Number) bool {
	const interval, cron = 6, 7
	if n == interval || n == cron {
		n = scheduleBit
	}
	before := f.seen
	f.seen |= 1 << n
	return n <= scheduleBit && before&(1<<n) == 0
}

// task returns the task that has the fields of the current line.
func (f *fieldTexts) task() (*perceptorv1.Task, error) {
	wire := f.buf[:0]
	for _, x := range f.now {
		encoded, known := f.wire[string(x.text)]
		if !known {
			var err error
			if encoded, err = encodeField(x.text); err != nil {
				return nil, err
			}
			f.remember(x, encoded)
		}
		wire = append(wire, encoded...)
	}
	f.buf = wire
	t := &perceptorv1.Task{}
	return t, proto.Unmarshal(wire, t)
}

func (f *fieldTexts) remember(x fieldText, encoded []byte) {
	if len(x.text) > maxFieldText || slices.Contains(ownValues, x.number) {
		return
	}
	if f.wire == nil || len(f.wire) >= maxFieldTexts {
		f.wire = map[string][]byte{}
	}
	f.wire[string(x.text)] = encoded
}

// encodeField encodes a field of a task from its text with its name.
func encodeField(text []byte) ([]byte, error) {
	object := make([]byte, 0, len(text)+2)
	object = append(append(append(object, '{'), text...), '}')
	t := &perceptorv1.Task{}
	if err := protojson.Unmarshal(object, t); err != nil {
		return nil, err
	}
	return proto.Marshal(t)
}
