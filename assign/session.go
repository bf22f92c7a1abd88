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

// errNoAnswer: ZooKeeper did not answer in time. It is unknown whether it
// executed the request.
var errNoAnswer = errors.New("assign: no answer in time")

// maxCalls bounds the requests in flight, including those whose callers no
// longer wait.
const maxCalls = 16

// A session is one ZooKeeper session. It ends when ZooKeeper reports that it has
// expired, and the member then opens a new one. (The client library would silently
// open the next session on the same connection, without the ephemeral nodes and
// watches of the old one. Therefore each session has a connection of its own.)
//
// The library's calls take no context and may block as long as there is no
// connection. [request] and [requestLeader] bound them.
type session struct {
	cfg         Config
	conn        *zk.Conn
	connections *connections
	ended       chan struct{} // the library's goroutines have ended
	signal      func()        // wakes the loop; never blocks; nil: nothing is watched
	slots       chan struct{}
	limit       time.Duration // of one request

	mu      sync.Mutex
	armed   map[watch]bool
	stale   bool // something has changed since the last reading began
	expired bool
	contact time.Time // when the last request was sent that the ZooKeeper leader answered
}

// A watch is a path, and whether its data or its children are watched.
type watch struct {
	path     string
	children bool
}

// newSession starts to connect and returns at once. Without a signal nothing is watched: who asks once
// needs no watches, which the library would set again while the first answers arrive.
func newSession(cfg Config, signal func()) (*session, error) {
	s := &session{
		cfg: cfg, ended: make(chan struct{}), signal: signal,
		slots: make(chan struct{}, maxCalls), limit: cfg.SessionTimeout / 4, armed: map[watch]bool{},
	}
	s.connections = newConnections(cfg.Dial, s.hasWatches, cfg.SessionTimeout)
	conn, events, err := zk.Connect(cfg.Servers, cfg.SessionTimeout,
		zk.WithDialer(s.connections.dial), zk.WithHostProvider(&servers{}), zk.WithEventCallback(s.event),
		zk.WithLogger(quietLog{cfg.Log}), zk.WithLogInfo(false), zk.WithMaxBufferSize(4<<20))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s.conn = conn
	go func() {
		for range events { // the callback handles events; closed at the end
		}
		close(s.ended)
	}()
	return s, nil
}

// event is called by the library's goroutines and must not block them.
func (s *session) event(e zk.Event) {
	s.mu.Lock()
	switch {
	case e.Type == zk.EventSession && e.State == zk.StateExpired:
		s.expired = true
	case e.Type == zk.EventSession && e.State == zk.StateHasSession:
		s.stale = true
	case e.Type == zk.EventSession:
	default: // a watch has fired or was removed
		s.stale = true
		delete(s.armed, watch{e.Path, true})
		delete(s.armed, watch{e.Path, false})
	}
	s.mu.Unlock()
	if s.signal != nil {
		s.signal()
	}
}

// arm reports whether to set the watch. The library would keep a watch that is
// set twice.
func (s *session) arm(w watch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.signal == nil || s.armed[w] {
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

// takeStale reports whether the tree may have changed, and resets that.
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

// readEvery implements [link]: watches tell of every change.
func (s *session) readEvery() time.Duration { return 0 }

// of implements [link].
func (s *session) of(ours bool) environment {
	t := newTree(s, s.cfg)
	t.ours = ours
	return t
}

// timeout returns the session timeout that the server has granted.
func (s *session) timeout() time.Duration { return s.connections.granted() }

// unusableAt returns when a session has had no contact for twice its timeout;
// zero if it never had any. By then ZooKeeper has forgotten the session or was
// unavailable. If ZooKeeper lost its data, it refuses the old session forever,
// as one from the future, and never reports that it has expired.
func (s *session) unusableAt() time.Time {
	contact := s.lastContact()
	if contact.IsZero() {
		return time.Time{}
	}
	return contact.Add(2 * s.timeout())
}

// request makes a request that any server may answer from its own state.
func request[T any](ctx context.Context, s *session, what string, f func() (T, error)) (T, error) {
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

// requestLeader makes a request through the ZooKeeper leader, which checks the
// session. The answer proves that the session was alive when the request was
// sent.
func requestLeader[T any](ctx context.Context, s *session, what string, f func() (T, error)) (T, error) {
	sent := time.Now()
	v, err := request(ctx, s, what, f)
	if err == nil {
		s.mu.Lock()
		if sent.After(s.contact) {
			s.contact = sent
		}
		s.mu.Unlock()
	}
	return v, err
}

// close ends the session and its ephemeral nodes at once. It takes at most some
// seconds.
func (s *session) close() {
	s.conn.Close()
	s.abandon()
}

// abandon closes the session on this side only. ZooKeeper is not told, and the
// session's nodes stay until it expires.
func (s *session) abandon() {
	s.connections.closeAll()
	s.conn.Close()
	<-s.ended
}

// quietLog passes the library's messages to the log at Debug.
type quietLog struct{ log *slog.Logger }

func (q quietLog) Printf(format string, args ...any) {
	q.log.Debug("assign: zookeeper client: " + fmt.Sprintf(format, args...))
}

func newID() string {
	b := make([]byte, 8)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
