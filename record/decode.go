package record

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perceptor/perceptor/task"
)

// Decode parses the value of a record. It returns the argument of [Encode],
// except for the tenant's number, the misfire policy, the key and the span that
// published it, which are not in the value. Params of the result refers to value; it is checked but not
// decoded: see [Params].
//
// The error names the field, its value and the rule that it breaks.
func Decode(value []byte) (task.Publication, error) {
	var p task.Publication
	if len(value) == 0 {
		return p, errors.New("record: value is empty")
	}
	if len(value) > MaxValueBytes {
		return p, fmt.Errorf("record: value has %d bytes; at most %d are allowed", len(value), MaxValueBytes)
	}
	var seen uint32
	for rest := value; len(rest) > 0; {
		n, typ, size := protowire.ConsumeTag(rest)
		if size < 0 {
			return p, fmt.Errorf("record: byte %d: invalid field tag: %w", len(value)-len(rest), protowire.ParseError(size))
		}
		rest = rest[size:]
		size = protowire.ConsumeFieldValue(n, typ, rest)
		if size < 0 {
			return p, fmt.Errorf("record: field %d (%s) at byte %d: %w", n, fieldName(n), len(value)-len(rest), protowire.ParseError(size))
		}
		if n <= fieldBackfillOf && fieldName(n) != "unknown" {
			if seen&(1<<n) != 0 {
				return p, fmt.Errorf("record: duplicate field %s", fieldName(n))
			}
			seen |= 1 << n
			if err := decodeField(&p, n, typ, rest[:size]); err != nil {
				return p, fmt.Errorf("record: %s: %w", fieldName(n), err)
			}
		}
		rest = rest[size:]
	}
	return p, check(&p, seen)
}

func fieldName(n protowire.Number) string {
	switch n {
	case fieldTaskID:
		return "task_id"
	case fieldSeq:
		return "seq"
	case fieldAttempt:
		return "attempt"
	case fieldType:
		return "type"
	case fieldKind:
		return "kind"
	case fieldScheduled:
		return "scheduled_time"
	case fieldMissed:
		return "missed_count"
	case fieldVersion:
		return "version"
	case fieldAckTimeout:
		return "ack_timeout"
	case fieldClaimed:
		return "claim_time"
	case fieldTrace:
		return "trace_parent"
	case fieldDispatcher:
		return "dispatcher"
	case fieldPublished:
		return "publish_time"
	case fieldReplayOf:
		return "replay_of"
	case fieldParams:
		return "params"
	case fieldBackfillOf:
		return "backfill_of"
	}
	return "unknown"
}

// decodeField parses the known field n, whose framing is valid.
func decodeField(p *task.Publication, n protowire.Number, typ protowire.Type, raw []byte) error {
	switch n {
	case fieldKind, fieldScheduled, fieldAckTimeout, fieldClaimed, fieldTrace, fieldDispatcher, fieldPublished, fieldReplayOf, fieldParams:
		if typ != protowire.BytesType {
			return fmt.Errorf("wire type %d, want %d", typ, protowire.BytesType)
		}
		body, _ := protowire.ConsumeBytes(raw)
		return decodeBytes(p, n, body)
	}
	if typ != protowire.VarintType {
		return fmt.Errorf("wire type %d, want %d", typ, protowire.VarintType)
	}
	v, _ := protowire.ConsumeVarint(raw)
	return decodeInteger(p, n, int64(v))
}

func decodeInteger(p *task.Publication, n protowire.Number, v int64) error {
	if n != fieldTaskID && n != fieldSeq && n != fieldMissed && n != fieldBackfillOf && (v < math.MinInt32 || v > math.MaxInt32) {
		return fmt.Errorf("%d does not fit 32 bits", v)
	}
	switch n {
	case fieldTaskID:
		p.Task = task.ID(v)
	case fieldSeq:
		p.Seq = v
	case fieldAttempt:
		p.Attempt = int32(v)
	case fieldType:
		if v < int64(task.OneShot) || v > int64(task.Blocking) {
			return fmt.Errorf("%d is not one of ONE_SHOT, NON_BLOCKING, BLOCKING", v)
		}
		p.Type = task.Type(v)
	case fieldMissed:
		p.Missed = v
	case fieldVersion:
		p.Version = int32(v)
	case fieldBackfillOf:
		p.BackfillOf = task.ID(v)
	}
	return nil
}

func decodeBytes(p *task.Publication, n protowire.Number, body []byte) error {
	switch n {
	case fieldKind:
		p.Kind = string(body)
		if msg := task.NameFault(p.Kind, task.MaxKindBytes); msg != "" {
			return errors.New(msg)
		}
		return nil
	case fieldTrace:
		if msg := task.TraceParentFault(string(body)); msg != "" {
			return errors.New(msg)
		}
		p.TraceParent = string(body)
		return nil
	case fieldDispatcher:
		p.Dispatcher = task.CleanName(string(body))
		return nil
	case fieldReplayOf:
		id, err := task.ParseRunID(string(body))
		p.ReplayOf = id
		return err
	case fieldParams:
		p.Params = body
		_, err := walkParams(body, func(_, _ []byte) {})
		return err
	}
	ms, err := millis(body)
	if err != nil {
		return err
	}
	switch n {
	case fieldScheduled:
		p.ScheduledAt, err = instant(ms)
	case fieldClaimed:
		p.ClaimedAt, err = instant(ms)
	case fieldPublished:
		p.PublishedAt, err = instant(ms)
	case fieldAckTimeout:
		if ms < 1 || ms > task.MaxAckTimeout.Milliseconds() {
			return fmt.Errorf("%d ms is not between 1 ms and %s", ms, task.MaxAckTimeout)
		}
		p.AckTimeout = time.Duration(ms) * time.Millisecond
	}
	return err
}

func instant(ms int64) (task.Instant, error) {
	if ms < 0 || task.Instant(ms) >= task.LastInstant {
		return 0, fmt.Errorf("%d ms is not between 1970-01-01T00:00:00Z and %s", ms, task.LastInstant)
	}
	return task.Instant(ms), nil
}

// millis parses a Timestamp or a Duration that is not negative.
func millis(b []byte) (int64, error) {
	var parts [3]int64
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return 0, protowire.ParseError(size)
		}
		b = b[size:]
		size = protowire.ConsumeFieldValue(n, typ, b)
		if size < 0 {
			return 0, protowire.ParseError(size)
		}
		if n == 1 || n == 2 {
			if typ != protowire.VarintType {
				return 0, fmt.Errorf("field %d has wire type %d, want %d", n, typ, protowire.VarintType)
			}
			v, _ := protowire.ConsumeVarint(b)
			parts[n] = int64(v)
		}
		b = b[size:]
	}
	const maxSeconds = int64(task.LastInstant) / 1000
	if parts[1] < 0 || parts[1] > maxSeconds || parts[2] < 0 || parts[2] > 999_999_999 {
		return 0, fmt.Errorf("%d s and %d ns is out of range", parts[1], parts[2])
	}
	return parts[1]*1000 + parts[2]/1_000_000, nil
}

// check validates what requires the whole record: missing fields and bounds.
func check(p *task.Publication, seen uint32) error {
	for _, n := range []protowire.Number{fieldTaskID, fieldSeq, fieldAttempt, fieldType, fieldKind, fieldScheduled, fieldAckTimeout} {
		if seen&(1<<n) == 0 {
			return fmt.Errorf("record: %s is missing", fieldName(n))
		}
	}
	switch {
	case !p.Task.Valid():
		return fmt.Errorf("record: task_id: %d is not a task id", p.Task)
	case p.Seq < 1:
		return fmt.Errorf("record: seq: %d is not positive", p.Seq)
	case p.Attempt < 1:
		return fmt.Errorf("record: attempt: %d is not positive", p.Attempt)
	case p.Missed < 0:
		return fmt.Errorf("record: missed_count: %d is negative", p.Missed)
	case p.Version < 0:
		return fmt.Errorf("record: version: %d is negative", p.Version)
	case p.BackfillOf != 0 && !p.BackfillOf.Valid():
		return fmt.Errorf("record: backfill_of: %d is not a task id", p.BackfillOf)
	}
	return nil
}

// Params decodes the wire bytes of perceptor.v1.Params. The map is never nil; payload is nil
// if there is none. Both belong to the caller.
func Params(wire []byte) (params map[string]string, payload *task.Payload, err error) {
	params = make(map[string]string)
	stored, err := walkParams(wire, func(k, v []byte) { params[string(k)] = string(v) })
	if err != nil {
		return nil, nil, fmt.Errorf("record: params: %w", err)
	}
	if len(stored.Data) == 0 {
		return params, nil, nil
	}
	stored.Data = bytes.Clone(stored.Data)
	stored.ContentType = cmp.Or(stored.ContentType, task.DefaultContentType)
	return params, &stored, nil
}

// Numbers of the fields of perceptor.v1.Params.
const (
	fieldEntries     protowire.Number = 1
	fieldPayload     protowire.Number = 2
	fieldContentType protowire.Number = 3
)

// walkParams checks the wire bytes of perceptor.v1.Params. It calls yield for each entry and
// returns the payload, which refers to wire; its data is empty for none.
func walkParams(wire []byte, yield func(k, v []byte)) (payload task.Payload, err error) {
	count, total := 0, 0
	for len(wire) > 0 {
		n, typ, size := protowire.ConsumeTag(wire)
		if size < 0 {
			return payload, protowire.ParseError(size)
		}
		wire = wire[size:]
		size = protowire.ConsumeFieldValue(n, typ, wire)
		if size < 0 {
			return payload, fmt.Errorf("entry %d: %w", count, protowire.ParseError(size))
		}
		if n >= fieldEntries && n <= fieldContentType {
			if typ != protowire.BytesType {
				return payload, fmt.Errorf("entry %d has wire type %d, want %d", count, typ, protowire.BytesType)
			}
			body, _ := protowire.ConsumeBytes(wire[:size])
			if n != fieldEntries {
				setPayload(&payload, n, body)
				wire = wire[size:]
				continue
			}
			k, v, err := splitEntry(body)
			if err != nil {
				return payload, fmt.Errorf("entry %d: %w", count, err)
			}
			count++
			total += len(k) + len(v)
			yield(k, v)
		}
		wire = wire[size:]
	}
	return payload, checkParams(count, total, &payload)
}

func setPayload(p *task.Payload, n protowire.Number, body []byte) {
	if n == fieldPayload {
		p.Data = body
		return
	}
	p.ContentType = string(body)
}

// checkParams validates what requires all entries, whose keys and values have total bytes.
func checkParams(count, total int, payload *task.Payload) error {
	if count > task.MaxParams {
		return fmt.Errorf("%d entries; at most %d are allowed", count, task.MaxParams)
	}
	if total += len(payload.Data); total > task.MaxParamsBytes {
		return fmt.Errorf("%d bytes; at most %d are allowed", total, task.MaxParamsBytes)
	}
	if msg := task.ContentTypeFault(payload.ContentType); msg != "" {
		return fmt.Errorf("content_type: %s", msg)
	}
	return nil
}

// splitEntry parses one entry of the map: key = 1, value = 2, both strings.
func splitEntry(entry []byte) (k, v []byte, err error) {
	for len(entry) > 0 {
		n, typ, size := protowire.ConsumeTag(entry)
		if size < 0 {
			return nil, nil, protowire.ParseError(size)
		}
		entry = entry[size:]
		size = protowire.ConsumeFieldValue(n, typ, entry)
		if size < 0 {
			return nil, nil, protowire.ParseError(size)
		}
		if n == 1 || n == 2 {
			if typ != protowire.BytesType {
				return nil, nil, fmt.Errorf("field %d has wire type %d, want %d", n, typ, protowire.BytesType)
			}
			body, _ := protowire.ConsumeBytes(entry[:size])
			if !utf8.Valid(body) {
				return nil, nil, fmt.Errorf("field %d is not valid UTF-8", n)
			}
			if n == 1 {
				k = body
			} else {
				v = body
			}
		}
		entry = entry[size:]
	}
	if len(k) == 0 || len(k) > task.MaxParamKeyBytes {
		return nil, nil, fmt.Errorf("key %.40q has %d bytes; 1 to %d are allowed", k, len(k), task.MaxParamKeyBytes)
	}
	return k, v, nil
}
