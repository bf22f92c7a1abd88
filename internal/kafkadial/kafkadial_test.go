package kafkadial_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/internal/kafkadial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server accepts connections until the test ends, and answers each of them after its first byte unless answer is "".
func server(t *testing.T, answer string) (address string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for b := make([]byte, 1); ; {
					if _, err := conn.Read(b); err != nil {
						return
					}
					if answer != "" {
						io.WriteString(conn, answer) //nolint:errcheck // the reader notices
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// dial opens connections, except to black holes, which never answer.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	if address == blackHole {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

const blackHole = "192.0.2.1:9092"

func TestTheFirstBrokerThatAnswersIsTaken(t *testing.T) {
	healthy := server(t, "abc")
	all := []string{server(t, ""), blackHole, "127.0.0.1:1", healthy, server(t, "")}
	asked := make(chan string, 100)
	brokers := kafkadial.NewBrokers(all, func(ctx context.Context, network, address string) (net.Conn, error) {
		asked <- address
		return dial(ctx, network, address)
	})
	for try := range 3 {
		for len(asked) > 0 {
			<-asked
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began, any := time.Now(), kafkadial.Addr(all)
		conn, err := brokers.Dial(ctx, any.Network(), any.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(began.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := io.WriteString(conn, "?"); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 3)
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != "abc" || conn.RemoteAddr().String() != healthy {
				t.Fatalf("%q from %v, %v", got, conn.RemoteAddr(), err)
			}
		}
		if limit := 20 * time.Second; time.Since(began) > limit {
			t.Errorf("the answer took %v", time.Since(began))
		}
		if first := <-asked; try > 0 && first != healthy {
			t.Errorf("%s is asked first, not the broker that is known to answer", first)
		}
	}
}

func TestWithoutAnAnswerTheDeadlineEndsTheWait(t *testing.T) {
	all := []string{server(t, ""), blackHole}
	brokers, any := kafkadial.NewBrokers(all, dial), kafkadial.Addr(all)
	conn, err := brokers.Dial(t.Context(), any.Network(), any.String())
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(100 * time.Millisecond)) //nolint:errcheck // Read says it
	if _, err := io.WriteString(conn, "?"); err != nil {
		t.Fatal(err)
	}
	_, err = conn.Read(make([]byte, 1))
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("the read ended with %v", err)
	}
	conn.Close()
	if _, err := io.WriteString(conn, "?"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a write after the end: %v", err)
	}
}

func TestAConnectionIsClosedWhenTheLoginTakesTooLong(t *testing.T) {
	silent := server(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	conn, err := kafkadial.Bounded(dial)(ctx, "tcp", silent)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the read ended with %v", err)
	}
}

func TestAConnectionOutlivesItsLogin(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	conn, err := kafkadial.Bounded(dial)(ctx, "tcp", server(t, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	if _, err := io.WriteString(conn, "?"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}
