package delivery

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// TestPingIsAnsweredBesideBrokersThatAreDownAndThatHang pings often, because a ping that
// asked one broker only would succeed by chance.
func TestPingIsAnsweredBesideBrokersThatAreDownAndThatHang(t *testing.T) {
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	down, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down.Close()
	others := []string{hangs.Addr().String(), down.Addr().String()}
	ping := func(brokers []string, within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return publisher(t, brokers, names{}, nil).Ping(ctx)
	}
	up := broker(t, names{1: "t-1"}).ListenAddrs()
	for range 10 {
		if err := ping(append(up, others...), 8*time.Second); err != nil {
			t.Error(err)
		}
	}
	err = ping(others, 500*time.Millisecond)
	if err == nil {
		t.Fatal("a ping succeeded although no broker answers")
	}
	if said := err.Error(); !strings.Contains(said, others[0]+": the broker does not answer") || strings.Contains(said, "closed") || !strings.Contains(said, "connection refused") {
		t.Errorf("%v; want that one broker does not answer and that the other one refuses connections", err)
	}
}
