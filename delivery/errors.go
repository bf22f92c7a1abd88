package delivery

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
)

// A TooLargeError reports a record that the topic will never accept.
type TooLargeError struct {
	Topic string
	// Bytes is the size of the record with its batch, before compression.
	Bytes int
}

// Error tells the size by its order only: records with the same error become dead in one transaction.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("a record of at least %d bytes is too large for topic %s (see max.message.bytes)", 1<<max(bits.Len(uint(e.Bytes))-1, 0), e.Topic)
}

// Unpublishable returns true because no retry can succeed.
func (e *TooLargeError) Unpublishable() bool { return true }

// A TopicError reports a topic that cannot be written to, because it does not
// exist or access is denied. An operator must fix it.
type TopicError struct {
	Topic string
	Err   error
}

func (e *TopicError) Error() string { return fmt.Sprintf("topic %s: %v", e.Topic, e.Err) }

func (e *TopicError) Unwrap() error { return e.Err }

// A DeletedTenantError reports a record whose tenant was deleted. Its topic is gone and nobody
// will read the record.
type DeletedTenantError struct{ Tenant int32 }

func (e *DeletedTenantError) Error() string { return fmt.Sprintf("tenant %d was deleted", e.Tenant) }

// Obsolete returns true because the record need not be published.
func (e *DeletedTenantError) Obsolete() bool { return true }

// A QuotaError reports that a broker takes no records for a while, because this program has sent more than a quota of the brokers allows.
type QuotaError struct {
	// Wait is how much longer.
	Wait time.Duration
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("the broker takes nothing for another %s, because this program is above a quota of Kafka (see producer_byte_rate, request_percentage)",
		e.Wait.Round(time.Second))
}

// ErrUnknownTenant reports that the tenant of a record has no known topic.
var ErrUnknownTenant = errors.New("unknown tenant")

// ErrNoKey reports that the tenant of a record has no key. Records are never published without
// a signature.
var ErrNoKey = errors.New("the tenant has no key to sign records with")

// errNoAnswer reports that a response lacks the partition.
var errNoAnswer = errors.New("no answer for the partition")

// partitionError converts the code of a produce response to an error.
func partitionError(topic string, code int16) error {
	err := kafka.Error(code)
	switch err {
	case 0:
		return nil
	case kafka.UnknownTopicOrPartition, kafka.InvalidTopic, kafka.TopicAuthorizationFailed:
		return &TopicError{Topic: topic, Err: err}
	case kafka.InvalidTimestamp: // only of a topic that has not the settings of a new one
		return fmt.Errorf("publish to topic %s: are the clocks of this machine and of the broker right? %w", topic, err)
	}
	return fmt.Errorf("publish to topic %s: %w", topic, err)
}

func isTooLarge(code int16) bool {
	return kafka.Error(code) == kafka.MessageSizeTooLarge || kafka.Error(code) == kafka.RecordListTooLarge
}

// isMoved reports whether the broker may no longer be the leader of the partition.
func isMoved(code int16) bool {
	switch kafka.Error(code) {
	case kafka.NotLeaderForPartition, kafka.LeaderNotAvailable, kafka.UnknownTopicOrPartition, kafka.ReplicaNotAvailable,
		kafka.KafkaStorageError: // the disk of a partition has failed, and another broker leads it
		return true
	}
	return false
}

// isBroken reports whether the connection was closed, which happens to all old
// connections when a broker restarts.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
