package record

import (
	"cmp"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perceptor/perceptor/task"
)

// Types of payload records: those whose value is the payload of the task. A consumer that
// knows only CloudEvents finds data and datacontenttype where it looks for them.
const (
	PayloadEventType     = "perceptor.run.payload.v1"
	DeadPayloadEventType = "perceptor.dead.payload.v1"
)

// HeaderRun has the value of a payload record without the payload: a perceptor.v1.RunRecord.
const HeaderRun = "perceptor_run"

// EncodePayload is [Encode] for tenants with payload records: if the task has a payload, it
// returns a payload record, whose value refers to p.Params.
func EncodePayload(p task.Publication, tenant string) (key, value []byte, headers []Header) {
	var e Encoder
	return e.EncodePayload(&p, tenant)
}

// EncodePayload is the function EncodePayload, but its results are valid until the next call.
func (e *Encoder) EncodePayload(p *task.Publication, tenant string) (key, value []byte, headers []Header) {
	entries, payload, ok := splitParams(p.Params)
	if !ok {
		return e.Encode(p, tenant)
	}
	inHeader := *p
	inHeader.Params = entries
	key, run, headers := e.Encode(&inHeader, tenant)
	for i := range headers {
		switch headers[i].Key {
		case HeaderType:
			headers[i].Value = []byte(PayloadEventType)
		case HeaderContentType:
			headers[i].Value = []byte(cmp.Or(payload.ContentType, task.DefaultContentType))
		}
	}
	return key, payload.Data, append(headers, Header{HeaderRun, run})
}

// splitParams returns stored params without the payload, and the payload, which refers to
// wire. ok is false if there is no payload, or if wire is damaged.
func splitParams(wire []byte) (entries []byte, payload task.Payload, ok bool) {
	payload, err := walkParams(wire, func(_, _ []byte) {})
	if err != nil || len(payload.Data) == 0 {
		return nil, payload, false
	}
	for len(wire) > 0 {
		n, _, size := protowire.ConsumeField(wire)
		if n != fieldPayload && n != fieldContentType {
			entries = append(entries, wire[:size]...)
		}
		wire = wire[size:]
	}
	return entries, payload, true
}

// Read is [Decode] for both forms of records: of one whose headers say that it is a payload
// record of a run, it reads the header with the run, and the value as the payload. The result
// is that of Decode for the record of the other form. Headers that are not signed decide
// nothing if the record was verified before.
func Read(value []byte, headers []Header) (task.Publication, error) {
	if kind, _ := find(headers, HeaderType); !isPayload(kind) {
		return Decode(value)
	}
	run, n := find(headers, HeaderRun)
	if n != 1 {
		return task.Publication{}, fmt.Errorf("record: header %s is there %d times, want once", HeaderRun, n)
	}
	p, err := Decode(run)
	if err != nil {
		return p, fmt.Errorf("header %s: %w", HeaderRun, err)
	}
	if _, _, ok := splitParams(p.Params); ok || len(value) == 0 {
		return p, errors.New("record: a payload record must have its payload in its value only")
	}
	contentType, _ := find(headers, HeaderContentType)
	params := append(make([]byte, 0, len(p.Params)+len(value)+len(contentType)+2*binaryOverhead), p.Params...)
	params = protowire.AppendBytes(protowire.AppendTag(params, fieldPayload, protowire.BytesType), value)
	if t := string(contentType); t != "" && t != task.DefaultContentType {
		params = protowire.AppendString(protowire.AppendTag(params, fieldContentType, protowire.BytesType), t)
	}
	p.Params = params
	if _, err := walkParams(params, func(_, _ []byte) {}); err != nil {
		return p, fmt.Errorf("record: payload: %w", err)
	}
	return p, nil
}

// binaryOverhead is the most that a field takes beside its content here.
const binaryOverhead = 6

// isPayload reports whether records of an event type are payload records.
func isPayload(eventType []byte) bool {
	return string(eventType) == PayloadEventType || string(eventType) == DeadPayloadEventType
}

// payloadType returns the type of the payload records that stand for records of a type.
func payloadType(eventType string) string {
	if eventType == DeadEventType {
		return DeadPayloadEventType
	}
	return PayloadEventType
}

// EncodeDeadPayload is [EncodeDead] for tenants with payload records.
func EncodeDeadPayload(d *task.DeadLetter, tenant string) (key, value []byte, headers []Header) {
	key, value, headers = EncodePayload(lastDelivery(d), tenant)
	return key, value, deadHeaders(d, headers)
}
