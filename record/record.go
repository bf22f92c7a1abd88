// Package record defines the form of one delivery of one run in Kafka. The
// producer and the client share it; docs/record-format.md describes it for
// other languages, and record.proto defines the value for their compilers.
//
//   - The key is the task id in decimal. [Partition] distributes tasks by a hash
//     of the id. There is no guarantee about order.
//   - The value is the protobuf message perceptor.v1.RunRecord. It has everything
//     that a listener needs; the headers repeat some of it for tools.
//   - The headers are those of CloudEvents 1.0 in binary mode, and additional ones.
//
// A tenant may have payload records instead for tasks with a payload (payload.go): their value
// is the payload, and a header has the rest. [Read] reads both forms.
//
// The params are stored as the wire bytes of perceptor.v1.Params and are passed
// on unchanged, so encoding a record builds no map. Therefore the encoder is
// written by hand; a test compares it with the generated code.
//
// [Key] signs records, so that listeners can tell them from those of others who may write to
// the topic.
//
// [Decode] is strict, because any producer can write to a topic: it never
// panics, it allocates at most a fixed multiple of its input, and its error
// names the faulty field. It ignores unknown fields, so that fields can be
// added.
package record

import (
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perceptor/perceptor/task"
)

// Numbers of the fields of perceptor.v1.RunRecord.
const (
	fieldTaskID     protowire.Number = 1
	fieldSeq        protowire.Number = 2
	fieldAttempt    protowire.Number = 3
	fieldType       protowire.Number = 4
	fieldKind       protowire.Number = 5
	fieldScheduled  protowire.Number = 6
	fieldMissed     protowire.Number = 7
	fieldVersion    protowire.Number = 8
	fieldAckTimeout protowire.Number = 9
	fieldClaimed    protowire.Number = 10
	fieldTrace      protowire.Number = 11
	fieldDispatcher protowire.Number = 12
	fieldPublished  protowire.Number = 13
	fieldReplayOf   protowire.Number = 14
	fieldParams     protowire.Number = 15
	fieldBackfillOf protowire.Number = 16
)

// Values of headers that are the same in all records.
const (
	SpecVersion = "1.0"
	EventType   = "perceptor.run.v1"
	ContentType = "application/protobuf"
)

// Names of the headers, in the order in which [Encode] writes them.
const (
	HeaderSpecVersion = "ce_specversion"
	HeaderID          = "ce_id"
	HeaderSource      = "ce_source"
	HeaderType        = "ce_type"
	HeaderTime        = "ce_time"
	HeaderContentType = "content-type"
	HeaderRunID       = "perceptor_run_id"
	HeaderAttempt     = "perceptor_attempt"
	HeaderScheduledAt = "perceptor_scheduled_at"
	HeaderTraceParent = "ce_traceparent" // only for tasks that have a trace context
	HeaderTrace       = "traceparent"    // only for deliveries that are traced
)

// MaxOverheadBytes bounds the size of a record besides its payload and the keys and
// values of its params: key, value, headers and the framing of up to [task.MaxParams]
// entries. A topic must accept records of params limit + MaxOverheadBytes.
const MaxOverheadBytes = 4 << 10

// MaxValueBytes bounds the value of a record. [Decode] rejects longer ones.
const MaxValueBytes = task.MaxParamsBytes + MaxOverheadBytes

// Header is one header of a Kafka record.
type Header struct {
	Key   string
	Value []byte
}

// HeaderName returns the key of a header. It allocates nothing for the keys that records of runs have.
func HeaderName(key []byte) string {
	switch string(key) {
	case HeaderSpecVersion:
		return HeaderSpecVersion
	case HeaderID:
		return HeaderID
	case HeaderSource:
		return HeaderSource
	case HeaderType:
		return HeaderType
	case HeaderTime:
		return HeaderTime
	case HeaderContentType:
		return HeaderContentType
	case HeaderRunID:
		return HeaderRunID
	case HeaderAttempt:
		return HeaderAttempt
	case HeaderScheduledAt:
		return HeaderScheduledAt
	case HeaderTraceParent:
		return HeaderTraceParent
	case HeaderTrace:
		return HeaderTrace
	case HeaderRun:
		return HeaderRun
	case HeaderKeyID:
		return HeaderKeyID
	case HeaderSignature:
		return HeaderSignature
	}
	return string(key)
}

// Encode returns the Kafka record of one delivery. tenant is the name of the
// tenant, for ce_source. The results belong to the caller; value has a copy of
// p.Params. Encode does not validate p: the store has done so.
func Encode(p task.Publication, tenant string) (key, value []byte, headers []Header) {
	var e Encoder
	return e.Encode(&p, tenant)
}

// An Encoder makes records in memory that it uses again. The zero value is ready. It must not be
// used concurrently.
type Encoder struct {
	key, value, text []byte
	headers          []Header
}

// Encode is the function Encode, but its results are valid until the next call.
func (e *Encoder) Encode(p *task.Publication, tenant string) (key, value []byte, headers []Header) {
	e.key = strconv.AppendInt(e.key[:0], int64(p.Task), 10)
	e.value = appendValue(slices.Grow(e.value[:0], len(p.Params)+len(p.Kind)+len(p.Dispatcher)+112), p)
	e.makeHeaders(p, tenant)
	return e.key, e.value, e.headers
}

func appendValue(b []byte, p *task.Publication) []byte {
	b = appendVarint(b, fieldTaskID, int64(p.Task))
	b = appendVarint(b, fieldSeq, p.Seq)
	b = appendVarint(b, fieldAttempt, int64(p.Attempt))
	b = appendVarint(b, fieldType, int64(p.Type))
	b = appendBytes(b, fieldKind, p.Kind)
	b = appendMillis(b, fieldScheduled, int64(p.ScheduledAt))
	b = appendVarint(b, fieldMissed, p.Missed)
	b = appendVarint(b, fieldVersion, int64(p.Version))
	b = appendMillis(b, fieldAckTimeout, p.AckTimeout.Milliseconds())
	if p.ClaimedAt != 0 { // 0: not known
		b = appendMillis(b, fieldClaimed, int64(p.ClaimedAt))
	}
	b = appendBytes(b, fieldTrace, p.TraceParent)
	b = appendBytes(b, fieldDispatcher, p.Dispatcher)
	if p.PublishedAt != 0 { // 0: not known
		b = appendMillis(b, fieldPublished, int64(p.PublishedAt))
	}
	if p.ReplayOf.Task != 0 {
		b = appendBytes(b, fieldReplayOf, p.ReplayOf.String())
	}
	b = appendBytes(b, fieldParams, p.Params)
	return appendVarint(b, fieldBackfillOf, int64(p.BackfillOf))
}

// appendVarint appends an integer field. proto3 omits zero.
func appendVarint(b []byte, n protowire.Number, v int64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(v))
}

// appendBytes appends a string, bytes or message field. Empty ones are omitted.
func appendBytes[T string | []byte](b []byte, n protowire.Number, v T) []byte {
	if len(v) == 0 {
		return b
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.BytesType), uint64(len(v)))
	return append(b, v...)
}

// appendMillis appends a Timestamp or a Duration of ms >= 0: both have seconds
// = 1 and nanos = 2.
func appendMillis(b []byte, n protowire.Number, ms int64) []byte {
	var buf [24]byte
	inner := appendVarint(buf[:0], 1, ms/1000)
	inner = appendVarint(inner, 2, ms%1000*1_000_000)
	b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.BytesType), uint64(len(inner)))
	return append(b, inner...)
}

// maxHeaders is the number of headers of a run's record with both trace contexts and a signature.
const maxHeaders = 13

// Parts of headers that are the same in all records. They are read-only.
var (
	specVersion = []byte(SpecVersion)
	eventType   = []byte(EventType)
	contentType = []byte(ContentType)
)

// makeHeaders sets the headers of a record.
func (e *Encoder) makeHeaders(p *task.Publication, tenant string) {
	// One buffer holds all values: id = RUN_ID.ATTEMPT, which includes run_id and attempt.
	buf := slices.Grow(e.text[:0], 96+len(tenant))
	buf = p.RunID().AppendTo(buf)
	runEnd := len(buf)
	buf = append(buf, '.')
	buf = strconv.AppendInt(buf, int64(p.Attempt), 10)
	idEnd := len(buf)
	buf = append(append(buf, "/tenants/"...), tenant...)
	sourceEnd := len(buf)
	buf = p.ScheduledAt.AppendTo(buf)
	timeEnd := len(buf)
	buf = strconv.AppendInt(buf, int64(p.ScheduledAt), 10)
	e.text = buf
	e.headers = append(slices.Grow(e.headers[:0], maxHeaders),
		Header{HeaderSpecVersion, specVersion},
		Header{HeaderID, buf[:idEnd:idEnd]},
		Header{HeaderSource, buf[idEnd:sourceEnd:sourceEnd]},
		Header{HeaderType, eventType},
		Header{HeaderTime, buf[sourceEnd:timeEnd:timeEnd]},
		Header{HeaderContentType, contentType},
		Header{HeaderRunID, buf[:runEnd:runEnd]},
		Header{HeaderAttempt, buf[runEnd+1 : idEnd : idEnd]},
		Header{HeaderScheduledAt, buf[timeEnd:len(buf):len(buf)]},
	)
	if p.TraceParent != "" {
		e.headers = append(e.headers, Header{HeaderTraceParent, []byte(p.TraceParent)})
	}
	if p.Trace != "" {
		e.headers = append(e.headers, Header{HeaderTrace, []byte(p.Trace)})
	}
}

// Trace returns the trace context of the span that published a delivery, or "" if it is not
// traced. The header is not signed, so it counts only for tasks whose signed value has a trace
// context.
func Trace(p *task.Publication, headers []Header) string {
	if p.TraceParent == "" {
		return ""
	}
	parent, n := find(headers, HeaderTrace)
	if n != 1 || task.TraceParentFault(string(parent)) != "" {
		return ""
	}
	return string(parent)
}

// Partition returns the partition, 0 to n-1, of a task's records on a topic
// with n >= 1 partitions. All deliveries of a task share it while n stays.
func Partition(id task.ID, n int) int {
	// The finalizer of splitmix64: ids are number*512 + shard, so their low bits
	// alone would follow the shards of one batch.
	x := uint64(id)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return int(x % uint64(n))
}
