package testenv

import (
	"io"
	"net"
	"testing"
	"time"
)

// echo starts a server that sends back what it gets.
func echo(t *testing.T) (addr string) {
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
				io.Copy(conn, conn) //nolint:errcheck // ends with the connection
			}()
		}
	}()
	return listener.Addr().String()
}

func TestAProxyTellsWhatItHarmed(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	conn, err := net.Dial("tcp", p.Addr())
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
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
