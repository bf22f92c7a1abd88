package transfer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Chunk is a chunk of an import.
type Chunk struct {
	// Number is its number, from 1.
	Number int64
	// Lines is the number of its lines, Sum their checksum.
	Lines int
	Sum   uint64
	// Wire is the encoded ImportChunk, compressed with zstd.
	Wire []byte

	runs []run
	// columns names the columns of fields. It does not change.
	columns *Columns
}

// Column returns the name of the column of a field in the input, or "".
func (c *Chunk) Column(field string) string {
	if c.columns == nil {
		return ""
	}
	return c.columns.Column(field)
}

// Position returns where a line was read. line is its index within the chunk.
func (c *Chunk) Position(line int) Position {
	i, found := slices.BinarySearchFunc(c.runs, line, func(r run, line int) int { return r.from - line })
	if !found {
		i--
	}
	if i < 0 || line >= c.Lines {
		return Position{}
	}
	r := c.runs[i]
	return Position{r.at.File, r.at.Line + int64(line-r.from)}
}

// Open returns the columns of the chunk. It decompresses them, so that chunks under way need little memory.
func (c *Chunk) Open() (*Columnar, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*MaxChunkBytes))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	wire, err := d.DecodeAll(c.Wire, nil)
	if err != nil {
		return nil, fmt.Errorf("decompress chunk %d: %w", c.Number, err)
	}
	x := &perceptorv1.ImportChunk{}
	if err := proto.Unmarshal(wire, x); err != nil {
		return nil, fmt.Errorf("decode chunk %d: %w", c.Number, err)
	}
	return &Columnar{x}, nil
}

// Columnar are the columns of a chunk. It is safe for concurrent use.
type Columnar struct{ *perceptorv1.ImportChunk }

// Task returns a line as a task.
func (c *Columnar) Task(line int) *perceptorv1.Task {
	t := proto.CloneOf(c.TemplateOf(line))
	if at := c.beginOf(line); at != NoBegin {
		t.BeginTime = timestamppb.New(at.Time())
	}
	if params := new(perceptorv1.Params); len(c.ParamsSize) > 0 && proto.Unmarshal(part(c.Params, c.ParamsSize, line), params) == nil {
		t.Params = params.Entries
	}
	t.IdempotencyKey = string(part(c.Keys, c.KeySize, line))
	return t
}

// TemplateOf returns the task that stands for a line.
func (c *Columnar) TemplateOf(line int) *perceptorv1.Task {
	if len(c.Template) == 0 {
		return c.Templates[0]
	}
	return c.Templates[c.Template[line]]
}

// Value returns the value of a field of a line as text, such as that of retry_policy.max_attempts or
// params["user"]. It returns "" for a field that is not set or not known.
func (c *Columnar) Value(line int, field string) string {
	switch {
	case line < 0 || line >= int(c.LineCount):
		return ""
	case field == "begin_time":
		return c.begin(line)
	case field == "idempotency_key":
		return string(part(c.Keys, c.KeySize, line))
	case strings.HasPrefix(field, "params["):
		key, err := strconv.Unquote(strings.TrimSuffix(strings.TrimPrefix(field, "params["), "]"))
		if err != nil {
			return ""
		}
		if len(c.ParamsSize) == 0 {
			return shown([]byte(c.TemplateOf(line).Params[key]))
		}
		value, _ := paramValue(part(c.Params, c.ParamsSize, line), key)
		return shown(value)
	}
	return valueAt(c.TemplateOf(line).ProtoReflect(), field)
}

func (c *Columnar) begin(line int) string {
	at := c.beginOf(line)
	if at == NoBegin {
		return ""
	}
	return at.String()
}

// beginOf returns the begin_time of a line, or [NoBegin].
func (c *Columnar) beginOf(line int) task.Instant {
	if len(c.BeginMs) == 0 {
		return NoBegin
	}
	at := task.Instant(0)
	for _, d := range c.BeginMs[:line+1] {
		at += task.Instant(d)
	}
	return at
}

// part returns the bytes of a line of a column of texts.
func part(all []byte, sizes []uint32, line int) []byte {
	if line >= len(sizes) {
		return nil
	}
	from := 0
	for _, n := range sizes[:line] {
		from += int(n)
	}
	return all[from : from+int(sizes[line])]
}

// valueAt returns the value of a field of a message, which a path names, as text.
func valueAt(m protoreflect.Message, path string) string {
	name, rest, nested := strings.Cut(path, ".")
	name, index, isElement := strings.Cut(name, "[")
	d := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if d == nil || !m.Has(d) {
		return ""
	}
	v := m.Get(d)
	switch {
	case nested && d.Message() != nil && !d.IsMap() && !d.IsList():
		return valueAt(v.Message(), rest)
	case d.IsList():
		i, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
		if isElement && err == nil && i < v.List().Len() {
			return v.List().Get(i).String()
		}
		return ""
	case d.Enum() != nil:
		if x := d.Enum().Values().ByNumber(v.Enum()); x != nil {
			return string(x.Name())
		}
		return strconv.Itoa(int(v.Enum()))
	case d.Message() != nil:
		return messageText(v.Message().Interface())
	}
	return shown([]byte(v.String()))
}

func messageText(m proto.Message) string {
	switch x := m.(type) {
	case *timestamppb.Timestamp:
		return task.At(x.AsTime()).String()
	case *durationpb.Duration:
		return x.AsDuration().String()
	}
	return ""
}
