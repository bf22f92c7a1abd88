package client

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// kafka-go joins a group, and looks for the leader of a partition, by the first broker of its
// list that accepts a connection. A broker that hangs, or a dead one behind a proxy, accepts
// connections and answers nothing. So a failed join is repeated by the next broker of the list. A
// fetcher gives up a connection without an answer, and takes the first broker that answers instead:
// all of its partitions wait for new leaders if the broker of one of them hangs.

// A brokerList is the brokers to ask, the next one first. It may be used concurrently.
type brokerList struct {
	mu      sync.Mutex
	brokers []string
}

func newBrokerList(brokers []string) brokerList { return brokerList{brokers: brokers} }

// get returns the list, which the caller must not change.
func (l *brokerList) get() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.brokers
}

// rotate moves the first broker to the end.
func (l *brokerList) rotate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.brokers) > 1 {
		l.brokers = append(slices.Clone(l.brokers[1:]), l.brokers[0])
	}
}

// silenceLimit is how long a broker may send nothing while it is asked. Fetches wait for at
// most kafkaTimeout, so it does not end them.
const silenceLimit = kafkaTimeout + time.Second

// errSilent says that a broker has sent nothing for silenceLimit. It is not a timeout, which
// kafka-go would take for a reason to ask the same broker again.
var errSilent = errors.New("perceptor: the Kafka broker does not answer")

// An impatientConn fails a Read that waits for silenceLimit.
type impatientConn struct {
	net.Conn
	closed func()

	mu       sync.Mutex
	deadline time.Time
}

func (c *impatientConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

func (c *impatientConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *impatientConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

func (c *impatientConn) Read(b []byte) (int, error) {
	limit := time.Now().Add(silenceLimit)
	c.mu.Lock()
	ours := c.deadline.IsZero() || limit.Before(c.deadline)
	var err error
	if ours {
		err = c.Conn.SetReadDeadline(limit)
	}
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	if ours && errors.Is(err, os.ErrDeadlineExceeded) && !time.Now().Before(limit) {
		err = errSilent
	}
	return n, err
}
