package assign

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// packet returns a packet as the library writes it: length, number, operation.
func packet(words ...uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4*len(words)))
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// dialled returns a connection whose session is established, and the server's
// end.
func dialled(t *testing.T, watched bool) (*connections, net.Conn, net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	w := newConnections(func(context.Context, string, string) (net.Conn, error) { return near, nil }, func() bool { return watched }, 10*time.Second)
	c, err := w.dial("tcp", "server", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.closeAll(); far.Close() })
	return w, c, far
}

// exchange makes both ends write and reads what the near end receives.
func exchange(t *testing.T, near, far net.Conn, sent, answer []byte) {
	t.Helper()
	go func() {
		buf := make([]byte, 1024)
		if _, err := far.Read(buf); err == nil {
			_, _ = far.Write(answer)
		}
	}()
	if _, err := near.Write(sent); err != nil {
		t.Error(err)
	}
}

func TestAnAnswerWaitsUntilTheOldWatchesAreSetAgain(t *testing.T) {
	for name, c := range map[string]struct {
		watched, set bool
		wait         time.Duration
	}{
		"no watches":        {false, false, 0},
		"watches are set":   {true, true, 100 * time.Millisecond},
		"they never are":    {true, false, watchResetTimeout},
		"set without being": {false, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, near, far := dialled(t, c.watched)
				buf := make([]byte, 1024)
				exchange(t, near, far, packet(0, 0, 0), packet(0, 4000, 1))
				if _, err := near.Read(buf); err != nil || w.granted() != 4*time.Second {
					t.Fatalf("greeting: %v, granted %v", err, w.granted())
				}
				began := time.Now()
				exchange(t, near, far, packet(1, opPing, 0), packet(1))
				if _, err := near.Read(buf); err != nil || time.Since(began) != 0 {
					t.Fatalf("ping: %v after %v", err, time.Since(began))
				}
				exchange(t, near, far, packet(2, 4, 0), packet(2))
				if c.set {
					go func() {
						time.Sleep(100 * time.Millisecond)
						_, _ = near.Write(packet(3, opSetWatches, 0))
					}()
					go func() { _, _ = far.Read(make([]byte, 1024)) }()
				}
				if _, err := near.Read(buf); err != nil || time.Since(began) != c.wait {
					t.Errorf("answer: %v after %v, want %v", err, time.Since(began), c.wait)
				}
				time.Sleep(time.Second) // the other goroutines end
			})
		})
	}
}

func TestAServerThatSpeaksSomethingElseIsRefused(t *testing.T) {
	_, near, far := dialled(t, false)
	exchange(t, near, far, packet(0, 0, 0), []byte("HTTP/1.1 400 Bad Request\r\n"))
	if _, err := near.Read(make([]byte, 4)); err == nil || !strings.Contains(err.Error(), "protocol") {
		t.Errorf("Read: %v", err)
	}
}

func TestNoConnectionOutlivesCloseAll(t *testing.T) {
	w, near, _ := dialled(t, false)
	w.closeAll()
	if _, err := near.Read(make([]byte, 4)); err == nil {
		t.Error("a closed connection can be read")
	}
	if _, err := w.dial("tcp", "server", time.Second); err == nil {
		t.Error("a new connection is made after closeAll")
	}
}

func TestServersAreTriedInTurnWithARestAfterEachRound(t *testing.T) {
	s := &servers{}
	if err := s.Init([]string{"a", "b"}); err != nil || s.Len() != 2 {
		t.Fatal(err)
	}
	var got []string
	for i := range 6 {
		if i == 3 {
			s.Connected()
		}
		name, rest := s.Next()
		if rest {
			name = "rest " + name
		}
		got = append(got, name)
	}
	if want := "a,b,rest a,b,a,rest b"; strings.Join(got, ",") != want {
		t.Errorf("%v, want %v", strings.Join(got, ","), want)
	}
}
