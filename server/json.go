package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/perceptor/perceptor/internal/payload"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// jsonLines writes the lines of exports that are messages.
var jsonLines = protojson.MarshalOptions{}

// strictJSON refuses what lenient decoders ignore: unknown fields, and data
// after the value of a body. Its errors name the position in the body.
type strictJSON struct{ *runtime.JSONPb }

func newStrictJSON() strictJSON { return strictJSON{new(runtime.JSONPb)} }

// Marshal encodes an answer. Payloads that are JSON are shown as JSON.
func (j strictJSON) Marshal(v any) ([]byte, error) {
	if m, ok := v.(proto.Message); ok {
		return payload.Marshal(j.MarshalOptions, m)
	}
	return j.JSONPb.Marshal(v)
}

// NewDecoder returns a decoder of one complete body.
func (j strictJSON) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		body, err := io.ReadAll(r)
		var cut *http.MaxBytesError
		switch {
		case errors.As(err, &cut):
			return fmt.Errorf("%s%d", bodyCut, cut.Limit)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errors.New(bodySlow)
		case err != nil:
			return fmt.Errorf("read body: %w", err)
		case len(bytes.TrimSpace(body)) == 0:
			return io.EOF // the library treats it as an empty message
		}
		return j.decode(body, v)
	})
}

func (j strictJSON) decode(body []byte, v any) error {
	// An entry of a task has several fields, so JSON has more values than entries.
	if len(body) > countedFrom && jsonEntries(body) > maxEntries {
		return errEntries
	}
	var whole json.RawMessage
	if err := json.Unmarshal(body, &whole); err != nil {
		return err
	}
	err := j.Unmarshal(body, v)
	if err != nil && strings.HasSuffix(err.Error(), io.ErrUnexpectedEOF.Error()) {
		// The body is complete, so the error is about a pair of escapes. The
		// library's error wraps no other.
		return errors.New(`a text has an escape from \ud800 to \udfff that is half of a pair`)
	}
	if err != nil {
		return locate(body, err)
	}
	if t, ok := v.(**perceptorv1.Task); ok {
		return maskedJSON((*t).GetPayload().GetJson())
	}
	return nil
}

// maxMaskBytes bounds the paths that the gateway makes of the members of JSON.
const maxMaskBytes = 1 << 20

// maskedJSON refuses JSON of which the gateway would make a huge field mask: each member has a
// path with the names of all that it lies in.
func maskedJSON(v *structpb.Value) error {
	left := maxMaskBytes
	if takePaths(v, 0, &left); left < 0 {
		return errors.New("at payload.json: the members lie too deep or have too long names; send the JSON as data")
	}
	return nil
}

// takePaths subtracts the lengths of the paths of all members below a path from left.
func takePaths(v *structpb.Value, path int, left *int) {
	for name, member := range v.GetStructValue().GetFields() {
		below := path + 1 + len(name)
		if *left -= below; *left < 0 {
			return
		}
		takePaths(member, below, left)
	}
}

// position matches the position in errors of the protobuf library.
var position = regexp.MustCompile(`^(?:syntax error )?\(line (\d+):(\d+)\): (.*)$`)

// locate converts an error of the protobuf library to the form "at PATH:
// fault".
func locate(body []byte, err error) error {
	m := position.FindStringSubmatch(withoutPrefix(err.Error()))
	if m == nil {
		return err
	}
	line, _ := strconv.Atoi(m[1])
	column, _ := strconv.Atoi(m[2])
	return fmt.Errorf("at %s: %s", pathAt(body, offsetOf(body, line, column)), strings.TrimSpace(m[3]))
}

// offsetOf returns the offset of a line and column, both counted from 1.
func offsetOf(body []byte, line, column int) int64 {
	offset := 0
	for ; line > 1; line-- {
		next := bytes.IndexByte(body[offset:], '\n')
		if next < 0 {
			break
		}
		offset += next + 1
	}
	return int64(offset + column - 1)
}

// pathAt returns the path of the key or value at an offset of a JSON text, such
// as "tasks[3].endTime", or "body" for the whole text.
func pathAt(body []byte, offset int64) string {
	d := json.NewDecoder(bytes.NewReader(body))
	var steps []step
	for {
		token, err := d.Token()
		if err != nil {
			return joined(steps)
		}
		if token == json.Delim('}') || token == json.Delim(']') {
			steps = steps[:len(steps)-1]
		}
		if len(steps) > 0 {
			steps[len(steps)-1].advance(token)
		}
		if d.InputOffset() > offset {
			return joined(steps)
		}
		if token == json.Delim('{') || token == json.Delim('[') {
			steps = append(steps, step{list: token == json.Delim('['), index: -1})
		}
	}
}

// step is a position within one object or list.
type step struct {
	list  bool
	index int    // within a list
	key   string // within an object
	value bool   // the next token is key's value
}

// advance moves the position to a token that begins or ends a child.
func (s *step) advance(token json.Token) {
	end := token == json.Delim('}') || token == json.Delim(']')
	switch {
	case end:
	case s.list:
		s.index++
	case s.value:
		s.value = false
	default:
		s.key, _ = token.(string)
		s.value = true
	}
}

func joined(steps []step) string {
	var path strings.Builder
	for _, s := range steps {
		switch {
		case s.list && s.index >= 0:
			fmt.Fprintf(&path, "[%d]", s.index)
		case !s.list && s.key != "":
			if path.Len() > 0 {
				path.WriteByte('.')
			}
			path.WriteString(strings.ReplaceAll(s.key, " ", "_"))
		}
	}
	if path.Len() == 0 {
		return "body"
	}
	return shortened(path.String())
}
