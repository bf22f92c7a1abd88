package delivery

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/segmentio/kafka-go/compress"

	"github.com/perceptor/perceptor/record"
)

// This file writes the record batch of Kafka's message format 2. The format is
// simple, the exact size is known in advance, and encoding a record costs a
// third of the library's general encoder. A test compares it with the library's
// decoder.
const (
	sizePrefix  = 4  // length of the record set, before the batch
	batchHeader = 61 // of a batch, before its first record
	crcOffset   = 17 // of the checksum within a batch
	crcFrom     = 21 // first byte that the checksum covers
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord appends record number i of a batch.
func appendRecord(b []byte, i int, key, value []byte, headers []record.Header) []byte {
	b = appendVarint(b, int64(recordSize(i, key, value, headers)))
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

// recordSize returns the size of a record without its length prefix.
func recordSize(i int, key, value []byte, headers []record.Header) int {
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

// newBatch returns the beginning of a record set with capacity for records of
// the given size. The caller appends the records, then calls sealBatch.
func newBatch(bytes int) []byte {
	return make([]byte, sizePrefix+batchHeader, sizePrefix+batchHeader+bytes)
}

// sealBatch completes a record set from newBatch, with n records and one
// timestamp, ms, for all of them.
func sealBatch(set []byte, n int, ms int64, codec compress.Codec) ([]byte, error) {
	attributes := uint16(0)
	if codec != nil {
		attributes = uint16(codec.Code())
		packed := bytes.NewBuffer(make([]byte, sizePrefix+batchHeader, len(set)/2+batchHeader))
		w := codec.NewWriter(packed)
		if _, err := w.Write(set[sizePrefix+batchHeader:]); err != nil {
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
	order.PutUint64(b, 0)                     // base offset
	order.PutUint32(b[8:], uint32(len(b)-12)) // length of the rest
	order.PutUint32(b[12:], ^uint32(0))       // no leader epoch
	b[16] = 2                                 // format
	order.PutUint16(b[21:], attributes)       //
	order.PutUint32(b[23:], uint32(n-1))      // last offset delta
	order.PutUint64(b[27:], uint64(ms))       // first timestamp
	order.PutUint64(b[35:], uint64(ms))       // highest timestamp
	order.PutUint64(b[43:], ^uint64(0))       // no producer id
	order.PutUint16(b[51:], ^uint16(0))       // no producer epoch
	order.PutUint32(b[53:], ^uint32(0))       // no base sequence
	order.PutUint32(b[57:], uint32(n))        // records
	sum := crc32.Checksum(b[crcFrom:], castagnoli)
	order.PutUint32(b[crcOffset:], sum)
	return set, nil
}
