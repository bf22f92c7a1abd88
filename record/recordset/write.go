package recordset

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/segmentio/kafka-go/compress"

	"github.com/perceptor/perceptor/record"
)

const sizePrefix = 4 // the length of a record set, before its batch

// HeaderBytes is the size of a batch without its records.
const HeaderBytes = recordsAt

// Append appends record number i of a batch to a record set from [New].
func Append(b []byte, i int, key, value []byte, headers []record.Header) []byte {
	b = appendVarint(b, int64(RecordSize(i, key, value, headers)))
	b = append(b, 0)       // attributes
	b = appendVarint(b, 0) // timestamp, relative to the batch's
	b = appendVarint(b, int64(i))
	b = appendSized(b, key)
	b = appendSized(b, value)
	b = appendVarint(b, int64(len(headers)))
	for _, h := range headers {
		b = appendSized(b, h.Key)
		b = appendSized(b, h.Value)
	}
	return b
}

// RecordSize returns the size of a record without its length prefix.
func RecordSize(i int, key, value []byte, headers []record.Header) int {
	n := 2 + varintSize(int64(i)) + sizedSize(len(key)) + sizedSize(len(value)) + varintSize(int64(len(headers)))
	for _, h := range headers {
		n += sizedSize(len(h.Key)) + sizedSize(len(h.Value))
	}
	return n
}

func appendVarint(b []byte, v int64) []byte { return binary.AppendVarint(b, v) }

func appendSized[T string | []byte](b []byte, v T) []byte {
	return append(appendVarint(b, int64(len(v))), v...)
}

// varintSize returns the size of v, zigzag encoded in groups of seven bits.
func varintSize(v int64) int { return (bits.Len64(uint64(v<<1^v>>63)|1) + 6) / 7 }

func sizedSize(n int) int { return varintSize(int64(n)) + n }

// New returns the beginning of a record set of one batch, with capacity for records of the given size. The caller
// appends the records by [Append], then calls [Seal].
func New(bytes int) []byte {
	return make([]byte, sizePrefix+recordsAt, sizePrefix+recordsAt+bytes)
}

// Seal completes a record set from [New], with n records and one timestamp, ms, for all of them. codec packs the records;
// nil leaves them as they are.
func Seal(set []byte, n int, ms int64, codec compress.Codec) ([]byte, error) {
	attributes := uint16(0)
	if codec != nil {
		attributes = uint16(codec.Code())
		packed := bytes.NewBuffer(make([]byte, sizePrefix+recordsAt, len(set)/2+recordsAt))
		w := codec.NewWriter(packed)
		if _, err := w.Write(set[sizePrefix+recordsAt:]); err != nil {
			return nil, fmt.Errorf("compress batch: %w", err)
		}
		if err := w.Close(); err != nil {
			return nil, fmt.Errorf("compress batch: %w", err)
		}
		set = packed.Bytes()
	}
	order := binary.BigEndian
	order.PutUint32(set, uint32(len(set)-sizePrefix))
	b := set[sizePrefix:]
	order.PutUint64(b, 0) // the broker sets the offset
	order.PutUint32(b[lengthAt:], uint32(len(b)-lengthFrom))
	order.PutUint32(b[leaderEpochAt:], ^uint32(0)) // none
	b[magicAt] = format
	order.PutUint16(b[attributesAt:], attributes)
	order.PutUint32(b[lastDeltaAt:], uint32(n-1))
	order.PutUint64(b[firstTimeAt:], uint64(ms))
	order.PutUint64(b[lastTimeAt:], uint64(ms))
	order.PutUint64(b[producerIDAt:], ^uint64(0)) // none, so there is no epoch and no sequence
	order.PutUint16(b[producerEpochAt:], ^uint16(0))
	order.PutUint32(b[sequenceAt:], ^uint32(0))
	order.PutUint32(b[countAt:], uint32(n))
	sum := crc32.Checksum(b[crcFrom:], castagnoli)
	order.PutUint32(b[crcAt:], sum)
	return set, nil
}
