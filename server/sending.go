package server

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// # Answers that are not read
//
// A caller decides by its flow control when an answer may be sent, and may never let it. The
// library keeps such an answer after its call has ended. So an answer is charged to its tenant
// and its connection until the library has let go of its bytes, and a connection that does not
// take an answer for a long time is closed.

const (
	// A tenant may have half of answers answers of the largest size in memory, and a connection
	// connAnswers.
	answers       = 64
	connAnswers   = 16
	largestAnswer = 4 << 20
	// leastAnswer is charged for each call before it begins, so that a call whose answer is
	// small is never refused when its work is done. A stream needs as much besides its answer.
	leastAnswer = 4 << 10
	// httpAnswer is how much larger an answer is in JSON, about.
	httpAnswer = 3
)

// sending is an answer that is being sent.
type sending struct {
	held *charge
	conn *connection // nil: not known
	end  sync.Once
}

// done is called when the answer is no longer in memory.
func (s *sending) done() {
	s.end.Do(func() {
		s.conn.sent(s)
		s.held.release()
	})
}

// Get implements [mem.BufferPool].
func (s *sending) Get(n int) *[]byte { return mem.DefaultBufferPool().Get(n) }

// Put implements [mem.BufferPool]. The library calls it when it has sent the answer, or has
// given it up.
func (s *sending) Put(b *[]byte) {
	mem.DefaultBufferPool().Put(b)
	s.done()
}

// sent is an answer with what it holds.
type sent struct {
	message proto.Message
	by      *sending
}

// pooledBytes is the least size of a buffer that the library returns to its pool.
const pooledBytes = 2 << 10

// marshal encodes the answer into a buffer that tells when it is not used any more.
func (s *sent) marshal() (mem.BufferSlice, error) {
	size := proto.Size(s.message)
	buf := s.by.Get(max(size, pooledBytes))
	data, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend((*buf)[:0], s.message)
	if err != nil || len(data) == 0 {
		s.by.Put(buf)
		return nil, err
	}
	*buf = data
	return mem.BufferSlice{mem.NewBuffer(buf, s.by)}, nil
}

// hold is what the answer to a call over HTTP holds until it is written.
type hold struct{ held *charge }

type holdKey struct{}

// hand passes an answer and its charge on to the side that sends it. Errors need no charge: the
// library sends them without asking the caller.
func (g *gate) hand(ctx context.Context, c *call, reply any, err error) (any, error) {
	switch h, inProcess := ctx.Value(holdKey{}).(*hold); {
	case err != nil || c.answer == nil:
		c.answer.release()
		return reply, err
	case inProcess:
		h.held.release()
		h.held = c.answer
		return reply, nil
	}
	s := &sending{held: c.answer, conn: connectionOf(ctx)}
	s.conn.send(s, g.sendWithin)
	return &sent{reply.(proto.Message), s}, nil
}

// mayAnswer charges a call for the least answer before it begins.
func (g *gate) mayAnswer(ctx context.Context, c *call) (err error) {
	if _, overHTTP := ctx.Value(holdKey{}).(*hold); overHTTP || !inProcess(ctx) {
		c.answer, err = g.answers.charge(ctx, c.who.Tenant.ID, remoteOf(ctx), leastAnswer)
	}
	return err
}

// answered charges a call for its answer.
func (g *gate) answered(ctx context.Context, c *call, size int) error {
	if c.answer == nil {
		return nil
	}
	if inProcess(ctx) {
		size *= httpAnswer
	}
	return c.answer.grow(ctx, int64(size))
}

func inProcess(ctx context.Context) bool {
	in, _ := ctx.Value(inProcessKey{}).(bool)
	return in
}

// remoteOf returns the address of the other end of the connection of a call over either side.
func remoteOf(ctx context.Context) netip.AddrPort {
	if c := connectionOf(ctx); c != nil {
		return addrPortOf(c.Conn.RemoteAddr())
	}
	return connOf(ctx)
}

// outbox has the answers that are being sent on a connection.
type outbox struct {
	answers map[*sending]time.Time // and when each was ready
	check   *time.Timer            // nil: no answer is being sent
}

// send records an answer that is to be sent within a time. The methods of a nil connection do
// nothing.
func (c *connection) send(s *sending, within time.Duration) {
	if c == nil {
		return
	}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		if c.out.answers == nil {
			c.out.answers = map[*sending]time.Time{}
		}
		c.out.answers[s] = time.Now()
		if c.out.check == nil {
			c.out.check = time.AfterFunc(within, func() { c.checkSent(within) })
		}
	}
	c.mu.Unlock()
	if closed {
		s.done()
	}
}

// sent records that an answer is not in memory any more.
func (c *connection) sent(s *sending) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.out.answers, s)
}

// checkSent closes a connection that has not taken an answer within a time, if it has brought
// calls of one tenant only. Otherwise it may be that of a proxy, and others use it: then the
// answer stays charged until the proxy gives it up, or the connection becomes too old.
func (c *connection) checkSent(within time.Duration) {
	c.mu.Lock()
	late := false
	for _, at := range c.out.answers {
		late = late || time.Since(at) >= within
	}
	alone := len(c.users) < 2
	switch {
	case c.closed || len(c.out.answers) == 0:
		c.out.check = nil
	default:
		c.out.check.Reset(within / 4)
	}
	c.mu.Unlock()
	if late && alone {
		_ = c.Close() // the library notices
	}
}

// giveUp ends the sending of all answers of a connection that is closed: the library forgets
// them without a word.
func (c *connection) giveUp(list map[*sending]time.Time) {
	for s := range list {
		s.done()
	}
}
