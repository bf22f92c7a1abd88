package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/internal/jsonfault"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// Op is a kind of operation. The numbers are stored.
type Op int16

const (
	opAdd     Op = 1
	opCancel  Op = 2
	opUpdate  Op = 3
	opTrigger Op = 4
	opUpsert  Op = 5
)

// String returns the name of the operation, such as "Add".
func (o Op) String() string {
	if names := [...]string{"", "Add", "Cancel", "Update", "Trigger", "Upsert"}; o > 0 && int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("Op(%d)", int16(o))
}

// The forms of bodies. The numbers are stored.
const (
	formProto = 1 // the request of the API, in protobuf's binary encoding
	formJSON  = 2 // the same in the JSON of the HTTP API
)

// operation is a row of the outbox.
type operation struct {
	position int64
	op       Op
	form     int16
	key      string
	body     []byte
	// age is how old the row was when it was read, in seconds.
	age float64
}

// errForm means that a newer program has written the row.
var errForm = errors.New("is written in a form that only a newer program knows")

// decode reads the request of an operation.
func (o *operation) decode() (proto.Message, error) {
	var q proto.Message
	switch o.op {
	case opAdd, opUpsert:
		q = &perceptorv1.AddTaskRequest{}
	case opCancel:
		q = &perceptorv1.CancelTaskRequest{}
	case opUpdate:
		q = &perceptorv1.UpdateTaskRequest{}
	case opTrigger:
		q = &perceptorv1.TriggerTaskRequest{}
	default:
		return nil, fmt.Errorf("%s %w", o.op, errForm)
	}
	switch o.form {
	case formProto:
		return q, proto.Unmarshal(o.body, q)
	case formJSON:
		return q, readJSON(o.body, q)
	}
	return nil, fmt.Errorf("the body %w", errForm)
}

// readJSON reads a body into q. The error names each fault with its field, as that of the API does.
func readJSON(body []byte, q proto.Message) error {
	err := protojson.Unmarshal(body, q)
	if err == nil || !json.Valid(body) {
		return err
	}
	var faults []string
	for _, f := range jsonfault.Faults(body, q, "") {
		faults = append(faults, f.Field+": "+f.Message)
	}
	return errors.New(strings.Join(faults, "; "))
}

// text returns the body for people.
func (o *operation) text() string {
	if o.form == formJSON {
		return string(o.body)
	}
	q, err := o.decode()
	if err != nil {
		return fmt.Sprintf("%d bytes that cannot be read: %v", len(o.body), err)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(q)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
