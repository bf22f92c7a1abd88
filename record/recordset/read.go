package recordset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"math"

	"github.com/segmentio/kafka-go/compress"

	"github.com/perceptor/perceptor/record"
)

const (
	// MaxUnpacked bounds the bytes of the records of a batch when they are unpacked. A batch with more is unreadable. Those
	// of dispatchers have at most 16 MiB.
	MaxUnpacked = 32 << 20
	// maxHeaders is the most headers of a record. Those of the service have at most 13.
	maxHeaders = 100
)

// ErrChecksum says that a batch was damaged on its way, so it is to be fetched again.
var ErrChecksum = errors.New("the checksum of a batch of records is wrong")

// UnreadableError says that a batch is to be skipped as one, because no program of the service makes such batches.
type UnreadableError struct {
	// Next is the offset after the batch.
	Next int64
	why  string
}

func (e *UnreadableError) Error() string { return "a batch of records " + e.why }

// Record is a record of a batch that was read. The bytes are parts of the record set, or of what was unpacked.
type Record struct {
	Offset  int64
	Value   []byte
	Headers []record.Header
}

// Batch is a batch of records. It may have records before the offset that was asked for.
type Batch struct {
	first, next int64 // offsets: of its begin, and after its end
	newest      int64
	records     []byte
	n           int32 // records, if it is well-formed
}

// Read returns the batches of a record set of a fetch, and the offset after them, or from if there are none. It ends
// before a batch that is not complete, or for which fewer than the *left bytes are left when it is unpacked. With an
// error it returns the batches before. If that is an [UnreadableError], the next batch follows at its offset.
func Read(set []byte, from int64, left *int64) (all []Batch, next int64, err error) {
	for next = from; len(set) > magicAt; {
		length := binary.BigEndian.Uint32(set[lengthAt:])
		if uint64(length) > uint64(len(set)-lengthFrom) {
			return all, next, nil
		}
		raw := set[:lengthFrom+length]
		set = set[len(raw):]
		b, err := readBatch(raw, left)
		if err != nil || b == nil {
			return all, next, err
		}
		next = max(next, b.next)
		if len(b.records) > 0 {
			all = append(all, *b)
		}
	}
	return all, next, nil
}

// readBatch checks a batch and unpacks its records. It returns nil if too few bytes are left for that.
func readBatch(raw []byte, left *int64) (*Batch, error) {
	first := int64(binary.BigEndian.Uint64(raw))
	if len(raw) < recordsAt || raw[magicAt] != format {
		return nil, &UnreadableError{first + 1, "is not in message format 2"}
	}
	if crc32.Checksum(raw[crcFrom:], castagnoli) != binary.BigEndian.Uint32(raw[crcAt:]) {
		return nil, fmt.Errorf("offset %d: %w", first, ErrChecksum) // it is read again
	}
	b := &Batch{first: first, next: first + int64(binary.BigEndian.Uint32(raw[lastDeltaAt:])) + 1, n: int32(binary.BigEndian.Uint32(raw[countAt:]))}
	b.newest = int64(binary.BigEndian.Uint64(raw[lastTimeAt:]))
	attributes := binary.BigEndian.Uint16(raw[attributesAt:])
	codec := compress.Compression(attributes & codecBits)
	switch {
	case attributes&controlBit != 0: // the mark of a transaction
	case codec == 0:
		b.records = raw[recordsAt:]
	default:
		most := min(*left, MaxUnpacked)
		records, err := unpack(codec, raw[recordsAt:], most)
		switch {
		case errors.Is(err, errTooLarge) && most < MaxUnpacked:
			return nil, nil
		case err != nil:
			return nil, &UnreadableError{b.next, "cannot be unpacked: " + err.Error()}
		}
		b.records, *left = records, *left-int64(len(records))
	}
	return b, nil
}

// Newest returns when the newest record of the batch was written, in ms since 1970, as its writer or the broker says.
func (b *Batch) Newest() int64 { return b.newest }

// Records yields the records of the batch from an offset on. The headers of a record are valid until the next one. If
// the batch is malformed, the last pair has an [UnreadableError].
func (b *Batch) Records(from int64) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		rest := reader{rest: b.records}
		var headers []record.Header
		for range b.n {
			var rec Record
			r := reader{rest: rest.sized()}
			r.take(1)  // attributes
			r.varint() // timestamp, relative to the batch's
			rec.Offset = b.first + r.varint()
			r.sized() // key
			rec.Value = r.sized()
			headers = r.headers(headers[:0])
			rec.Headers = headers
			if rest.failed || r.failed || rec.Offset < b.first || rec.Offset >= b.next {
				yield(Record{}, &UnreadableError{b.next, "is malformed"})
				return
			}
			if rec.Offset >= from && !yield(rec, nil) {
				return
			}
		}
	}
}

// A reader reads messages of Kafka's protocol. A message that ends too early yields zeros.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.rest, r.failed = nil, true
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.rest, r.failed = nil, true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// sized reads bytes behind their number. -1 means none.
func (r *reader) sized() []byte {
	n := r.varint()
	if n == -1 {
		return nil
	}
	if n > math.MaxInt32 {
		n = -1
	}
	return r.take(int(n))
}

// headers appends the headers of a record to all.
func (r *reader) headers(all []record.Header) []record.Header {
	n := r.varint()
	r.failed = r.failed || n < 0 || n > maxHeaders
	for i := int64(0); i < n && !r.failed; i++ {
		all = append(all, record.Header{Key: record.HeaderName(r.sized()), Value: r.sized()})
	}
	return all
}
