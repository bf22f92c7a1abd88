package assign

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// errNoAnswer: ZooKeeper has not answered in time. Whether the request was
// carried out is unknown.
var errNoAnswer = errors.New("assign: no answer in time")

// maxCalls bounds the requests in flight, those included that nobody waits
// for any more.
const maxCalls = 16

// A session is one ZooKeeper session: it ends when ZooKeeper says that it has
// expired, and is then replaced by a new one. (The client library would open
// the next session silently on the same connection, without the ephemeral
// nodes and watches of the old one; so each gets a connection of its own.)
//
// The library's calls take no context and may block for as long as there is no
// connection; [ask] and [tell] bound them.
type session struct {
	conn   *zk.Conn
	wires  *wires
	ended  chan struct{} // the library's goroutines have ended
	signal func()        // wakes the loop; never blocks
	slots  chan struct{}
	limit  time.Duration // of one request

	mu      sync.Mutex
	armed   map[watch]bool
	stale   bool // something has changed since the last reading began
	expired bool
	contact time.Time // when the last request was sent that the leading server has answered
}

// A watch is a path and what about it is watched.
type watch struct {
	path     string
	children bool
}

// newSession starts to connect and returns at once.
func newSession(cfg Config, signal func()) (*session, error) {
	s := &session{
		ended: make(chan struct{}), signal: signal,
		slots: make(chan struct{}, maxCalls), limit: cfg.SessionTimeout / 4, armed: map[watch]bool{},
	}
	s.wires = newWires(cfg.Dial, s.hasWatches, cfg.SessionTimeout)
	conn, events, err := zk.Connect(cfg.Servers, cfg.SessionTimeout,
		zk.WithDialer(s.wires.dial), zk.WithHostProvider(&servers{}), zk.WithEventCallback(s.event),
		zk.WithLogger(quietLog{cfg.Log}), zk.WithLogInfo(false), zk.WithMaxBufferSize(4<<20))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s.conn = conn
	go func() {
		for range events { // the callback has them; closed at the end
		}
		close(s.ended)
	}()
	return s, nil
}

// event is called by the library's goroutines, which it must not hold up.
func (s *session) event(e zk.Event) {
	s.mu.Lock()
	switch {
	case e.Type == zk.EventSession && e.State == zk.StateExpired:
		s.expired = true
	case e.Type == zk.EventSession && e.State == zk.StateHasSession:
		s.stale = true
	case e.Type == zk.EventSession:
	default: // a watch has fired, or was given up
		s.stale = true
		delete(s.armed, watch{e.Path, true})
		delete(s.armed, watch{e.Path, false})
	}
	s.mu.Unlock()
	s.signal()
}

// arm answers whether the watch is to be set: the library keeps every watch
// that is set twice.
func (s *session) arm(w watch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.armed[w] {
		return false
	}
	s.armed[w] = true
	return true
}

func (s *session) hasWatches() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.armed) > 0
}

func (s *session) disarm(w watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.armed, w)
}

// takeStale answers whether the tree may have changed, and starts anew.
func (s *session) takeStale() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	stale := s.stale
	s.stale = false
	return stale
}

func (s *session) isExpired() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expired
}

func (s *session) lastContact() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contact
}

// timeout is what the server grants.
func (s *session) timeout() time.Duration { return s.wires.granted() }

// givenUpAt is when a session that had contact has had none for twice its
// time; zero if it never had any. ZooKeeper has forgotten it by then, or was
// away. If it came back without its data, it would refuse the old session for
// ever, as one from the future, without saying that it has expired.
func (s *session) givenUpAt() time.Time {
	contact := s.lastContact()
	if contact.IsZero() {
		return time.Time{}
	}
	return contact.Add(2 * s.timeout())
}

func (s *session) hopeless(now time.Time) bool {
	at := s.givenUpAt()
	return !at.IsZero() && !now.Before(at)
}

// ask makes one request that any server may answer out of what it has.
func ask[T any](ctx context.Context, s *session, what string, f func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	var none T
	timer := time.NewTimer(s.limit)
	defer timer.Stop()
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return none, fmt.Errorf("%s: %w", what, ctx.Err())
	case <-timer.C:
		return none, fmt.Errorf("%s: %w", what, errNoAnswer)
	}
	ch := make(chan answer, 1)
	go func() {
		defer func() { <-s.slots }()
		v, err := f()
		ch <- answer{v, err}
	}()
	select {
	case a := <-ch:
		if a.err != nil {
			return none, fmt.Errorf("%s: %w", what, a.err)
		}
		return a.v, nil
	case <-ctx.Done():
		return none, fmt.Errorf("%s: %w", what, ctx.Err())
	case <-timer.C:
		return none, fmt.Errorf("%s: %w", what, errNoAnswer)
	}
}

// tell makes one request that goes through the leading server, which checks
// the session; so its answer proves that the session was alive after now.
func tell[T any](ctx context.Context, s *session, what string, f func() (T, error)) (T, error) {
	sent := time.Now()
	v, err := ask(ctx, s, what, f)
	if err == nil {
		s.mu.Lock()
		if sent.After(s.contact) {
			s.contact = sent
		}
		s.mu.Unlock()
	}
	return v, err
}

// close ends the session, and with it its ephemeral nodes, at once. It takes
// at most some seconds.
func (s *session) close() {
	s.conn.Close()
	s.abandon()
}

// abandon ends everything on this side only: ZooKeeper learns nothing, and
// the session's nodes stay until it expires.
func (s *session) abandon() {
	s.wires.cut()
	s.conn.Close()
	<-s.ended
}

// quietLog passes the library's log on.
type quietLog struct{ log *slog.Logger }

func (q quietLog) Printf(format string, args ...any) {
	q.log.Debug("assign: zookeeper client: " + fmt.Sprintf(format, args...))
}

func newID() string {
	b := make([]byte, 8)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
