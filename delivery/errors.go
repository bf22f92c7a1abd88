package delivery

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/segmentio/kafka-go"
)

// A TooLargeError is of a record that the topic can never take.
type TooLargeError struct {
	Topic string
	// Bytes is the size of the record with its batch, before compression.
	Bytes int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("record of %d bytes is too large for topic %s (see max.message.bytes)", e.Bytes, e.Topic)
}

// Unpublishable is true: no retry can help.
func (e *TooLargeError) Unpublishable() bool { return true }

// A TopicError is of a topic that cannot be written to: it does not exist, or
// this process may not. A person has to mend it.
type TopicError struct {
	Topic string
	Err   error
}

func (e *TopicError) Error() string { return fmt.Sprintf("topic %s: %v", e.Topic, e.Err) }

func (e *TopicError) Unwrap() error { return e.Err }

// ErrUnknownTenant says that the tenant of a record has no topic, as far as is
// known.
var ErrUnknownTenant = errors.New("unknown tenant")

// errNoAnswer: the response does not mention the partition.
var errNoAnswer = errors.New("no answer for the partition")

// partitionError turns the code of a produce response into an error.
func partitionError(topic string, code int16) error {
	err := kafka.Error(code)
	switch err {
	case 0:
		return nil
	case kafka.UnknownTopicOrPartition, kafka.InvalidTopic, kafka.TopicAuthorizationFailed:
		return &TopicError{Topic: topic, Err: err}
	}
	return fmt.Errorf("publish to topic %s: %w", topic, err)
}

func isTooLarge(code int16) bool {
	return kafka.Error(code) == kafka.MessageSizeTooLarge || kafka.Error(code) == kafka.RecordListTooLarge
}

// isMoved reports whether the broker does not lead the partition any more.
func isMoved(code int16) bool {
	switch kafka.Error(code) {
	case kafka.NotLeaderForPartition, kafka.LeaderNotAvailable, kafka.UnknownTopicOrPartition, kafka.ReplicaNotAvailable:
		return true
	}
	return false
}

// isBroken reports whether the connection was closed, as all old ones are after
// the restart of a broker.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
