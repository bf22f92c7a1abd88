package recordset

import (
	"bytes"
	"encoding/binary"
	"io"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

// Fetch is a fetch whose records the library does not read; [Read] does. It uses the library's way for messages that read
// their answers themselves.
type Fetch struct {
	fetch.Request
	ClientID string
	version  int16
}

// Answer is the answer to a Fetch of one topic.
type Answer struct {
	*fetch.Response
	Records map[int32][]byte // record sets by partition
}

var _ protocol.RawExchanger = (*Fetch)(nil)

// Required implements [protocol.RawExchanger].
func (q *Fetch) Required(versions map[protocol.ApiKey]int16) bool {
	q.version = versions[protocol.Fetch]
	return true
}

// RawExchange implements [protocol.RawExchanger]. Before its bytes have come, an answer takes at most twice MaxBytes of
// memory. Requests on a connection follow each other, so their numbers need not differ.
func (q *Fetch) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if err := protocol.WriteRequest(rw, q.version, 0, q.ClientID, &q.Request); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, err
	}
	n := int64(max(int32(binary.BigEndian.Uint32(size[:])), 0))
	var answer bytes.Buffer
	answer.Grow(int(min(n, 2*int64(q.MaxBytes))) + bytes.MinRead)
	if _, err := io.CopyN(&answer, rw, n); err != nil {
		return nil, err
	}
	rest, records, err := Cut(answer.Bytes(), q.version)
	if err != nil {
		return nil, err
	}
	_, res, err := protocol.ReadResponse(bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, uint32(len(rest))), rest...)), protocol.Fetch, q.version)
	if err != nil {
		return nil, err
	}
	return &Answer{res.(*fetch.Response), records}, nil
}
