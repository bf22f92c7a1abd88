package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

// Kafka's library unpacks all batches of records in an answer before any record can be verified. Anyone who may write to
// the topic could make small batches that fill the memory of every listener that reads them, again and again. So the
// records are taken out of the answer before the library reads it, and unpacked here. A batch that is too large then is
// skipped, like a record that the service has not signed: dispatchers make no such batch. Batches that are too large
// together are fetched again.

const (
	unpackedBytes = 32 << 20 // of a batch; those of dispatchers have at most 16 MiB
	answerBytes   = 2 * unpackedBytes
)

var errTooLarge = fmt.Errorf("it has more than %d bytes then", unpackedBytes)

// rawFetch is a fetch of which the library does not read the records. It uses the library's way for messages that read
// their answers themselves.
type rawFetch struct {
	fetch.Request
	client  string
	version int16
}

// rawAnswer is the answer to a rawFetch.
type rawAnswer struct {
	*fetch.Response
	records map[int32][]byte // by partition
}

var _ protocol.RawExchanger = (*rawFetch)(nil)

// Required implements [protocol.RawExchanger].
func (q *rawFetch) Required(versions map[protocol.ApiKey]int16) bool {
	q.version = versions[protocol.Fetch]
	return true
}

// allocated is the most that an answer takes of memory before its bytes have come.
const allocated = 2 * fetchBytes

// RawExchange implements [protocol.RawExchanger]. Requests on a connection follow each other, so their numbers need not differ.
func (q *rawFetch) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if err := protocol.WriteRequest(rw, q.version, 0, q.client, &q.Request); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, err
	}
	n := int64(max(int32(binary.BigEndian.Uint32(size[:])), 0))
	var answer bytes.Buffer
	answer.Grow(int(min(n, allocated)) + bytes.MinRead)
	if _, err := io.CopyN(&answer, rw, n); err != nil {
		return nil, err
	}
	rest, records, err := withoutRecords(answer.Bytes(), q.version)
	if err != nil {
		return nil, err
	}
	_, res, err := protocol.ReadResponse(bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, uint32(len(rest))), rest...)), protocol.Fetch, q.version)
	if err != nil {
		return nil, err
	}
	return &rawAnswer{res.(*fetch.Response), records}, nil
}

// withoutRecords returns an answer of the given version, from 4 to 11, without its records, and these.
func withoutRecords(answer []byte, version int16) (rest []byte, records map[int32][]byte, err error) {
	records = map[int32][]byte{}
	r, kept := wire{rest: answer}, 0
	r.take(4 + 4) // number of the request, throttle time
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
			rest = append(append(rest, answer[kept:len(answer)-len(r.rest)]...), 0, 0, 0, 0)
			records[partition] = r.take(int(max(r.int32(), 0)))
			kept = len(answer) - len(r.rest)
		}
	}
	if r.failed {
		return nil, nil, errors.New("the answer of the broker to a fetch is malformed")
	}
	return append(rest, answer[kept:]...), records, nil
}

// unpack returns the records of a batch, or errTooLarge if they have more than most bytes.
func unpack(codec compress.Compression, packed []byte, most int64) ([]byte, error) {
	if codec == compress.Zstd {
		return unpackZstd(packed, most)
	}
	c := codec.Codec()
	if c == nil {
		return nil, fmt.Errorf("codec %d is not known", codec)
	}
	r := c.NewReader(bytes.NewReader(packed))
	defer r.Close() //nolint:errcheck // nothing is written
	return readMost(r, most)
}

// readMost reads all of r, or returns errTooLarge if that is more than most bytes.
func readMost(r io.Reader, most int64) ([]byte, error) {
	all, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(all)) > most {
		return nil, errTooLarge
	}
	return all, err
}

// zstdDecoders are decoders whose windows are bounded: a batch may ask for one of any size.
var zstdDecoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(unpackedBytes))
	if err != nil {
		panic(err) // the options are wrong
	}
	return d
}}

func unpackZstd(packed []byte, most int64) ([]byte, error) {
	d := zstdDecoders.Get().(*zstd.Decoder)
	defer zstdDecoders.Put(d)
	if err := d.Reset(bytes.NewReader(packed)); err != nil {
		return nil, err
	}
	all, err := readMost(d, most)
	_ = d.Reset(nil) // packed is of no more use
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return nil, errTooLarge
	}
	return all, err
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
	b := r.rest[:n:n]
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
