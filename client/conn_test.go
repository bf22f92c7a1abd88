package client

import (
	"context"
	"crypto/tls"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestTheTokenIsNotSentInTheClearToOtherMachines(t *testing.T) {
	clear, closed := insecure.NewCredentials(), credentials.NewTLS(&tls.Config{})
	for _, c := range []struct {
		name    string
		cfg     Config
		refused bool
	}{
		{"localhost", Config{Address: "localhost:1"}, false},
		{"loopback", Config{Address: "127.0.0.1:1, [::1]:1"}, false},
		{"default", Config{}, false},
		{"another machine", Config{Address: "taskd:1"}, true},
		{"an address of another machine", Config{Address: "10.0.0.1:1"}, true},
		{"one of several", Config{Address: "127.0.0.1:1,taskd:1"}, true},
		{"a name like localhost", Config{Address: "localhost.example.com:1"}, true},
		{"TLS", Config{Address: "taskd:1", TLS: &tls.Config{}}, false},
		{"told", Config{Address: "taskd:1", Insecure: true}, false},
		{"TLS of an option", Config{Address: "taskd:1", DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(closed)}}, false},
		{"TLS that an option removes", Config{Address: "taskd:1", TLS: &tls.Config{}, DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(clear)}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.Token = "hush"
			client, err := New(c.cfg)
			if client != nil {
				defer client.Close()
			}
			if (err != nil) != c.refused {
				t.Errorf("got %v", err)
			}
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("the token is shown: %v", err)
			}
			if c.refused && c.cfg.TLS == nil && !strings.Contains(err.Error(), "is not on loopback, and the token would be sent in the clear: set TLS, or Insecure") {
				t.Errorf("got %v, want what to set", err)
			}
		})
	}
}

// countingTasks answers GetTask after some time, or does not answer until the call ends.
type countingTasks struct {
	perceptorv1.UnimplementedTaskServiceServer
	hangs bool
	takes time.Duration
	calls atomic.Int64
}

func (s *countingTasks) GetTask(ctx context.Context, _ *perceptorv1.GetTaskRequest) (*perceptorv1.Task, error) {
	s.calls.Add(1)
	if s.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(s.takes)
	return &perceptorv1.Task{}, nil
}
