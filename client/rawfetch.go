package client

import (
	"bytes"
	"encoding/binary"
	"io"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/perceptor/perceptor/record/recordset"
)

// answerBytes bounds the records of an answer when they are unpacked. Batches that are too large together are fetched again.
const answerBytes = 2 * recordset.MaxUnpacked

// rawFetch is a fetch whose records the library does not read; package recordset does. It uses the library's way for messages that read
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
	rest, records, err := recordset.Cut(answer.Bytes(), q.version)
	if err != nil {
		return nil, err
	}
	_, res, err := protocol.ReadResponse(bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, uint32(len(rest))), rest...)), protocol.Fetch, q.version)
	if err != nil {
		return nil, err
	}
	return &rawAnswer{res.(*fetch.Response), records}, nil
}
