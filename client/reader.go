package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// reader reads one partition. Its Close does not wait for the running fetch.
type reader struct {
	*kafka.Reader
	// ctx ends with the cause [kafka.OffsetOutOfRange] when the partition ends before the
	// offset to read.
	ctx context.Context

	mu     sync.Mutex
	conn   net.Conn
	closed bool
}

// pastEnd is in the library's log when the partition ends before the offset to read. The
// library returns no error then: it waits until there are as many records again, and would
// skip them.
const pastEnd = "reading passed the last offset"

// newReader returns a reader that begins at the offset. It ends with ctx.
func (c *consumer) newReader(ctx context.Context, partition int, offset int64) *reader {
	ctx, end := context.WithCancelCause(ctx)
	debug := kafka.LoggerFunc(func(format string, args ...any) {
		c.l.log.Debug("kafka: " + fmt.Sprintf(format, args...))
		if strings.Contains(format, pastEnd) {
			end(kafka.OffsetOutOfRange)
		}
	})
	r := &reader{ctx: ctx}
	dialer := *c.dialer
	dialer.DialFunc = r.dial
	r.Reader = kafka.NewReader(kafka.ReaderConfig{
		Brokers: c.brokers.get(), Topic: c.topic, Partition: partition, Dialer: &dialer,
		QueueCapacity: readAhead, MinBytes: 1, MaxBytes: maxFetchBytes, MaxWait: c.times.maxWait,
		ReadBackoffMin: 50 * time.Millisecond, ReadBackoffMax: time.Second,
		OffsetOutOfRangeError: true, ErrorLogger: debug,
	})
	if err := r.SetOffset(offset); err != nil {
		c.report("setting the offset", err) // only a closed reader returns an error
	}
	return r
}

// fetch returns the next record. The error is [kafka.OffsetOutOfRange] if the partition ends
// before the offset to read.
func (r *reader) fetch() (kafka.Message, error) {
	m, err := r.FetchMessage(r.ctx)
	if err != nil && errors.Is(context.Cause(r.ctx), kafka.OffsetOutOfRange) {
		err = kafka.OffsetOutOfRange
	}
	return m, err
}

// dial keeps the last connection, which is the one that fetches.
func (r *reader) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	r.conn = conn
	return &impatientConn{Conn: conn}, nil
}

// closeReader closes r without waiting for a fetch or a dial, so that a
// rebalance is not delayed.
func (c *consumer) closeReader(r *reader) {
	r.mu.Lock()
	r.closed = true
	conn := r.conn
	r.mu.Unlock()
	c.closing.Go(func() {
		if conn != nil {
			conn.Close()
		}
		r.Close()
	})
}
