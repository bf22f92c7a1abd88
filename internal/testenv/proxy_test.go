package testenv

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// serving starts a server that calls serve with each connection, and closes that afterwards.
func serving(t *testing.T, serve func(net.Conn)) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// echo starts a server that sends back what it gets.
func echo(t *testing.T) (addr string) {
	t.Helper()
	return serving(t, func(conn net.Conn) {
		io.Copy(conn, conn) //nolint:errcheck // ends with the connection
	})
}

func TestAProxyTellsWhatItHarmed(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	conn, err := net.Dial("tcp", p.Addr())
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	said := func() time.Duration {
		begin := time.Now()
		_, err := conn.Write([]byte{1})
		must(t, err)
		_, err = io.ReadFull(conn, make([]byte, 1))
		must(t, err)
		return time.Since(begin)
	}
	if said(); p.Harmed() != 0 || p.Connections() != 1 {
		t.Errorf("an undisturbed proxy has %d connections and harmed %d, want 1 and 0", p.Connections(), p.Harmed())
	}
	p.Delay(50 * time.Millisecond)
	if took := said(); took < 100*time.Millisecond || p.Harmed() != 2 {
		t.Errorf("with a delay of 50 ms both ways an answer took %v, and %d pieces were harmed, want 100 ms and 2", took, p.Harmed())
	}
	p.Delay(0)
	p.Cut()
	if p.Harmed() <= 2 || p.Connections() != 0 {
		t.Errorf("after a cut the proxy has %d connections and harmed %d, want 0 and more than 2", p.Connections(), p.Harmed())
	}
}

// answering starts a server that sends letter for each byte that it gets.
func answering(t *testing.T, letter byte) (addr string) {
	t.Helper()
	return serving(t, func(conn net.Conn) {
		for one := make([]byte, 1); ; {
			if _, err := conn.Read(one); err != nil {
				return
			}
			if _, err := conn.Write([]byte{letter}); err != nil {
				return
			}
		}
	})
}

func TestNoConnectionFromBeforeARedirectReachesTheOldServer(t *testing.T) {
	t.Parallel()
	servers := []string{answering(t, 0), answering(t, 1)}
	p := NewProxy(t, servers[0])
	for round := range 100 {
		target := (round + 1) % 2
		dialed, done := make(chan net.Conn), make(chan struct{})
		go func() {
			defer close(dialed)
			for {
				conn, err := net.Dial("tcp", p.Addr())
				if err != nil {
					continue
				}
				select {
				case dialed <- conn:
				case <-done:
					conn.Close()
					return
				}
			}
		}()
		early := <-dialed
		p.Cut()
		p.Redirect(servers[target])
		p.Heal()
		for _, conn := range []net.Conn{early, <-dialed, <-dialed} {
			must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			answer := []byte{1}
			if _, err := conn.Write(answer); err == nil {
				if _, err := io.ReadFull(conn, answer); err == nil && int(answer[0]) != target {
					t.Fatalf("round %d: after the redirect to server %d, server %d answers", round, target, answer[0])
				}
			}
			conn.Close()
		}
		close(done)
		for conn := range dialed {
			conn.Close()
		}
	}
}

func TestADelayDoesNotLimitTheThroughput(t *testing.T) {
	t.Parallel()
	const delay, size = 50 * time.Millisecond, 32 << 20
	p := NewProxy(t, echo(t))
	p.Delay(delay)
	conn, err := net.Dial("tcp", p.Addr())
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(3*time.Minute)))
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * i >> 8)
	}
	begin := time.Now()
	go conn.Write(sent) //nolint:errcheck // the comparison below fails
	got := make([]byte, size)
	_, err = io.ReadFull(conn, got)
	must(t, err)
	// One piece at a time would take 100 ms for each of a thousand pieces.
	if took := time.Since(begin); took < 2*delay || took > 60*time.Second {
		t.Errorf("%d bytes took %v there and back, want more than %v and less than 60 s", size, took, 2*delay)
	}
	if !bytes.Equal(got, sent) {
		t.Error("the data came back changed")
	}
}

func TestAProxyEndsWithAPeerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	p, err := StartProxy(listener.Addr().String())
	must(t, err)
	conn, err := net.Dial("tcp", p.Addr())
	must(t, err)
	defer conn.Close()
	deaf, err := listener.Accept()
	must(t, err)
	defer deaf.Close()
	// What the peer does not read stays with the sender once the buffers are full.
	must(t, conn.SetWriteDeadline(time.Now().Add(2*time.Second)))
	n, err := conn.Write(make([]byte, 64<<20))
	if err == nil {
		t.Errorf("a proxy took %d bytes that nobody read", n)
	}
	ended := make(chan struct{})
	go func() { p.Close(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the proxy does not end")
	}
}
