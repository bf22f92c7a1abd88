package client

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

// This file reads record batches of Kafka's message format 2, which package delivery writes by hand, too. A listener reads
// thousands of small records a second, for which the library's decoder allocates each part of each header.

// message is a record as it is in a partition. Its values are parts of the answer to a fetch.
type message struct {
	partition int
	offset    int64
	value     []byte
	headers   []record.Header
}

// batch is a batch of records. It may have records before the offset that was asked for.
type batch struct {
	first, next int64 // offsets: of its begin, and after its end
	records     []byte
	n           int32 // records, if it is well-formed
}

// unreadableBatchError says that a batch is skipped as one, because no program of the service makes such batches. next is the offset after it.
type unreadableBatchError struct {
	next int64
	why  string
}

func (e *unreadableBatchError) Error() string { return "a batch of records " + e.why }

// Positions in a batch, and bits of its attributes.
const (
	lengthAt, lengthFrom = 8, 12 // the length counts the bytes from lengthFrom on
	magicAt              = 16
	crcAt, crcFrom       = 17, 21
	attributesAt         = 21
	lastDeltaAt          = 23
	countAt              = 57
	recordsAt            = 61
	codecBits            = 7
	controlBit           = 1 << 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errChecksum = errors.New("the checksum of a batch of records is wrong")

// batchesOf returns the batches of a record set, and the offset after them, or from if there are none. It ends
// before a batch that is not complete, or for which fewer than the *left bytes are left when it is unpacked. With an
// error it returns the batches before. If that is an [unreadableBatchError], the next batch follows at its offset.
func batchesOf(set []byte, from int64, left *int64) (all []batch, next int64, err error) {
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
func readBatch(raw []byte, left *int64) (*batch, error) {
	first := int64(binary.BigEndian.Uint64(raw))
	if len(raw) < recordsAt || raw[magicAt] != 2 {
		return nil, &unreadableBatchError{first + 1, "is not in message format 2"}
	}
	if crc32.Checksum(raw[crcFrom:], castagnoli) != binary.BigEndian.Uint32(raw[crcAt:]) {
		return nil, fmt.Errorf("offset %d: %w", first, errChecksum) // it is read again
	}
	b := &batch{first: first, next: first + int64(binary.BigEndian.Uint32(raw[lastDeltaAt:])) + 1, n: int32(binary.BigEndian.Uint32(raw[countAt:]))}
	attributes := binary.BigEndian.Uint16(raw[attributesAt:])
	codec := compress.Compression(attributes & codecBits)
	switch {
	case attributes&controlBit != 0: // the mark of a transaction
	case codec == 0:
		b.records = raw[recordsAt:]
	default:
		most := min(*left, unpackedBytes)
		records, err := unpack(codec, raw[recordsAt:], most)
		switch {
		case errors.Is(err, errTooLarge) && most < unpackedBytes:
			return nil, nil
		case err != nil:
			return nil, &unreadableBatchError{b.next, "cannot be unpacked: " + err.Error()}
		}
		b.records, *left = records, *left-int64(len(records))
	}
	return b, nil
}

// mostHeaders is the most headers of a record. Those of the service have at most 13.
const mostHeaders = 100

// all yields the records of the batch from an offset on. The headers of a record are valid until the next one. If the
// batch is malformed, it ends with an [unreadableBatchError].
func (b *batch) all(partition int, from int64) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		rest := wire{rest: b.records}
		var headers []record.Header
		for range b.n {
			m, r := message{partition: partition}, wire{rest: rest.sized()}
			r.take(1)  // attributes
			r.varint() // timestamp, relative to the batch's
			m.offset = b.first + r.varint()
			r.sized() // key
			m.value = r.sized()
			headers = r.headers(headers[:0])
			m.headers = headers
			if rest.failed || r.failed || m.offset < b.first || m.offset >= b.next {
				yield(message{}, &unreadableBatchError{b.next, "is malformed"})
				return
			}
			if m.offset >= from && !yield(m, nil) {
				return
			}
		}
	}
}

// varint, sized and headers read fields of a record.
func (r *wire) varint() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.rest, r.failed = nil, true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// sized reads bytes behind their number. -1 means none.
func (r *wire) sized() []byte {
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
func (r *wire) headers(all []record.Header) []record.Header {
	n := r.varint()
	r.failed = r.failed || n < 0 || n > mostHeaders
	for i := int64(0); i < n && !r.failed; i++ {
		all = append(all, record.Header{Key: record.HeaderName(r.sized()), Value: r.sized()})
	}
	return all
}
