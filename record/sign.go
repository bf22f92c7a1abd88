package record

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strconv"
)

// Names of the headers of the signature.
const (
	HeaderKeyID     = "perceptor_key_id"
	HeaderSignature = "perceptor_signature"
)

// signed has the names of the headers that the signature covers, in its order. The last two
// are covered in payload records only. Others repeat the value, or are written by others on the
// way, such as mirrors of topics.
var signed = [...]string{HeaderType, HeaderReason, HeaderError, HeaderDiedAt, HeaderContentType, HeaderRun}

// signedIn returns the event type of a record, and the names of the headers that its
// signature covers.
func signedIn(headers []Header) (eventType []byte, names []string) {
	eventType, _ = find(headers, HeaderType)
	if isPayload(eventType) {
		return eventType, signed[:]
	}
	return eventType, signed[:4]
}

// A Key signs the records of one tenant. It is immutable.
type Key struct {
	id     []byte // as the header has it
	secret []byte
}

// NewKey returns the key with the number id and the given secret.
func NewKey(id int32, secret []byte) *Key {
	return &Key{id: strconv.AppendInt(nil, int64(id), 10), secret: slices.Clone(secret)}
}

// Signer returns what signs records with the key, and verifies their signatures.
func (k *Key) Signer() *Signer { return &Signer{key: k, mac: hmac.New(sha256.New, k.secret)} }

// A Signer must not be used concurrently.
type Signer struct {
	key  *Key
	mac  hash.Hash
	size [4]byte
	last [sha256.Size]byte // the last sum
}

// Sign appends the headers of the signature to those of a record. The signature is the
// HMAC-SHA-256 of each signed header, as the length of its value in 4 bytes, most significant
// first, and the value, with the length 0 for a header that the record does not have; and
// then of the record's value. Which headers are signed depends on the event type. The signature is
// valid until the signer is used again.
func (s *Signer) Sign(value []byte, headers []Header) []Header {
	_, names := signedIn(headers)
	return append(headers, Header{HeaderKeyID, s.key.id}, Header{HeaderSignature, s.sum(names, value, headers)})
}

func (s *Signer) sum(names []string, value []byte, headers []Header) []byte {
	s.mac.Reset()
	for _, name := range names {
		v, _ := find(headers, name)
		binary.BigEndian.PutUint32(s.size[:], uint32(len(v)))
		s.mac.Write(s.size[:])
		s.mac.Write(v)
	}
	s.mac.Write(value)
	return s.mac.Sum(s.last[:0])
}

// Errors of signatures.
var (
	ErrUnsigned  = errors.New("record: it is not signed")
	ErrForged    = errors.New("record: its signature is wrong")
	ErrOtherType = errors.New("record: it is of another type")
)

// KeyID returns the number of the key with which a record is signed. The error is
// [ErrUnsigned], or says what is wrong with the header.
func KeyID(headers []Header) (int32, error) {
	v, n := find(headers, HeaderKeyID)
	if n == 0 {
		return 0, ErrUnsigned
	}
	id, err := strconv.ParseInt(string(v), 10, 32)
	if err != nil || id < 1 || n > 1 {
		return 0, fmt.Errorf("record: header %s: %.20q is not a number of a key", HeaderKeyID, v)
	}
	return int32(id), nil
}

// Verify returns nil if the key has signed this record, and it is of this event type,
// [EventType] or [DeadEventType], or a payload record that stands for one.
func (s *Signer) Verify(eventType string, value []byte, headers []Header) error {
	kind, names := signedIn(headers)
	for _, name := range names {
		if _, n := find(headers, name); n > 1 {
			return ErrForged // which of them was signed is not known
		}
	}
	signature, n := find(headers, HeaderSignature)
	if n == 0 {
		return ErrUnsigned
	}
	if n > 1 || !hmac.Equal(signature, s.sum(names, value, headers)) {
		return ErrForged
	}
	if string(kind) != eventType && string(kind) != payloadType(eventType) {
		return ErrOtherType
	}
	return nil
}

// find returns the value of the first header with a name, and how many have the name.
func find(headers []Header, name string) (value []byte, n int) {
	for i := range headers {
		if headers[i].Key == name {
			if n++; n == 1 {
				value = headers[i].Value
			}
		}
	}
	return value, n
}
