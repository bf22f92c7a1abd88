package telemetry

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// sinkWait is how long a message waits until it is written.
const sinkWait = time.Second

// A sink writes the messages of a log one after another, and does not wait for ever: what reads the log, such as a
// pipe to a collector, may hang. While a write does not end, later messages are dropped and counted, and the number is
// logged when it has ended. Without that the next message would stop whoever logs it, and then everybody. While
// writes end in time each message is written when Write returns, so none is lost at an exit.
type sink struct {
	to io.Writer
	// lost returns a message that says how many were dropped.
	lost func(n int) []byte

	mu      sync.Mutex
	busy    bool // a write has not ended
	dropped int
}

// Write implements [io.Writer]. It always succeeds: nobody could be told of an error.
func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	if s.busy {
		s.dropped++
		s.mu.Unlock()
		return len(p), nil
	}
	s.busy = true
	s.mu.Unlock()
	done := make(chan struct{})
	go s.write(bytes.Clone(p), done)
	late := time.NewTimer(sinkWait)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
	return len(p), nil
}

// write writes a message, and then how many were dropped meanwhile.
func (s *sink) write(message []byte, done chan<- struct{}) {
	defer close(done)
	for {
		_, _ = s.to.Write(message)
		s.mu.Lock()
		n := s.dropped
		s.dropped, s.busy = 0, n > 0
		s.mu.Unlock()
		if n == 0 {
			return
		}
		message = s.lost(n)
	}
}

// lostMessages returns what makes the message of a number of messages that were dropped, with the handler of a format.
func lostMessages(handler func(io.Writer) slog.Handler) func(n int) []byte {
	return func(n int) []byte {
		var text bytes.Buffer
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "messages of this log were dropped, because a write to it did not end in time", 0)
		r.AddAttrs(slog.Int("suppressed", n))
		_ = handler(&text).Handle(context.Background(), r) // a buffer takes everything
		return text.Bytes()
	}
}
