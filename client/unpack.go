package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

// Kafka's library unpacks all batches of records in an answer before any record can be verified. Anyone who may write to
// the topic could make small batches that fill the memory of every listener that reads them, again and again. So the
// answer to a fetch is looked through first. A batch that is too large when it is unpacked is skipped, like a record
// that the service has not signed: dispatchers make no such batch. Batches that are too large together are fetched again.

const (
	unpackedBytes = 32 << 20 // of a batch; those of dispatchers have at most 16 MiB
	answerBytes   = 2 * unpackedBytes
)

// batchTooLargeError is the error for such a batch. next is the offset after it.
type batchTooLargeError struct{ next int64 }

func (e *batchTooLargeError) Error() string {
	return fmt.Sprintf("a batch of records has more than %d bytes when it is unpacked", unpackedBytes)
}

// boundedFetch is a fetch that does not let large batches be unpacked. It uses the library's way for messages that read
// their answers themselves.
type boundedFetch struct {
	fetch.Request
	client  string
	version int16
}

// boundedAnswer is the answer to a boundedFetch.
type boundedAnswer struct {
	*fetch.Response
	// tooLarge are the batches that are left out and would come first, by partition.
	tooLarge map[int32]*batchTooLargeError
}

var _ protocol.RawExchanger = (*boundedFetch)(nil)

// Required implements [protocol.RawExchanger].
func (q *boundedFetch) Required(versions map[protocol.ApiKey]int16) bool {
	q.version = versions[protocol.Fetch]
	return true
}

// RawExchange implements [protocol.RawExchanger]. Requests on a connection follow each other, so their numbers need not differ.
func (q *boundedFetch) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if err := protocol.WriteRequest(rw, q.version, 0, q.client, &q.Request); err != nil {
		return nil, err
	}
	var answer bytes.Buffer
	if _, err := io.CopyN(&answer, rw, 4); err != nil {
		return nil, err
	}
	if size := int32(binary.BigEndian.Uint32(answer.Bytes())); size > 0 {
		if _, err := io.CopyN(&answer, rw, int64(size)); err != nil {
			return nil, err
		}
	}
	tooLarge, left := map[int32]*batchTooLargeError{}, int64(answerBytes)
	eachRecordSet(answer.Bytes(), q.version, func(partition int32, set []byte) {
		if e := cutLarge(set, &left); e != nil {
			tooLarge[partition] = e
		}
	})
	_, res, err := protocol.ReadResponse(&answer, protocol.Fetch, q.version)
	if err != nil {
		return nil, err
	}
	return &boundedAnswer{res.(*fetch.Response), tooLarge}, nil
}

// eachRecordSet calls f with the records of each partition in an answer of the given version, from 4 to 11.
func eachRecordSet(answer []byte, version int16, f func(partition int32, set []byte)) {
	r := wire{rest: answer}
	r.take(4 + 4 + 4) // size, number of the request, throttle time
	if version >= 7 {
		r.take(2 + 4) // error, session
	}
	for topics := r.int32(); topics > 0 && !r.failed; topics-- {
		r.take(int(int16(r.uint16()))) // name
		for partitions := r.int32(); partitions > 0 && !r.failed; partitions-- {
			partition := r.int32()
			r.take(2 + 8 + 8) // error, high watermark, last stable offset
			if version >= 5 {
				r.take(8) // start of the log
			}
			r.take(16 * int(max(r.int32(), 0))) // aborted transactions
			if version >= 11 {
				r.take(4) // preferred replica
			}
			f(partition, r.take(int(max(r.int32(), 0))))
		}
	}
}

// cutLarge cuts a record set off before the first batch that is too large when it is unpacked, or for which too few bytes
// are left: the library takes a batch for incomplete whose length is beyond the end. It returns an error if that is the
// first one, and too large.
func cutLarge(set []byte, left *int64) *batchTooLargeError {
	const prefix, header = 12, 61 // bytes of a batch before those that its length counts, and before its records
	for first := true; len(set) >= header; first = false {
		length := binary.BigEndian.Uint32(set[8:])
		if length > uint32(len(set)-prefix) || length < header-prefix {
			return nil
		}
		batch := set[:prefix+length]
		var size int64
		if codec := compress.Compression(binary.BigEndian.Uint16(batch[21:]) & 7); codec != 0 {
			size = unpackedSize(codec, batch[header:])
		}
		if size > min(*left, unpackedBytes) {
			binary.BigEndian.PutUint32(set[8:], math.MaxInt32)
			if first && size > unpackedBytes {
				return &batchTooLargeError{next: int64(binary.BigEndian.Uint64(batch)) + int64(binary.BigEndian.Uint32(batch[23:])) + 1}
			}
			return nil
		}
		*left -= size
		set = set[len(batch):]
	}
	return nil
}

// unpackedSize returns how many bytes packed records have, at most unpackedBytes+1. Errors are left to the library.
func unpackedSize(codec compress.Compression, packed []byte) int64 {
	if codec == compress.Zstd {
		return unpackedZstd(packed)
	}
	c := codec.Codec()
	if c == nil {
		return 0
	}
	r := c.NewReader(bytes.NewReader(packed))
	defer r.Close() //nolint:errcheck // nothing is written
	n, _ := io.Copy(io.Discard, io.LimitReader(r, unpackedBytes+1))
	return n
}

// zstdDecoders are decoders whose windows are bounded: a batch may ask for one of any size.
var zstdDecoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(unpackedBytes))
	if err != nil {
		panic(err) // the options are wrong
	}
	return d
}}

func unpackedZstd(packed []byte) int64 {
	d := zstdDecoders.Get().(*zstd.Decoder)
	defer zstdDecoders.Put(d)
	if d.Reset(bytes.NewReader(packed)) != nil {
		return 0
	}
	n, err := io.Copy(io.Discard, io.LimitReader(d, unpackedBytes+1))
	_ = d.Reset(nil) // packed is of no more use
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return unpackedBytes + 1
	}
	return n
}

// wire reads a message of Kafka's protocol. A message that ends too early yields zeros.
type wire struct {
	rest   []byte
	failed bool
}

func (r *wire) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.rest, r.failed = nil, true
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *wire) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *wire) int32() int32 {
	if b := r.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}
