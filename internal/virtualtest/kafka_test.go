package virtualtest

import (
	"context"
	"crypto/tls"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/testenv"
)

// TestATenantHasALoginToASecureKafkaThatIsRotated runs the real processes on a Kafka with TLS,
// logins and access lists. The SDK is told nothing but the CA.
func TestATenantHasALoginToASecureKafkaThatIsRotated(t *testing.T) {
	t.Parallel()
	brokers := testenv.NewSecureKafka(t)
	s := Start(t, Options{Configure: func(c *config.Config) {
		c.Kafka.Brokers = []string{brokers.Addr()}
		c.Kafka.TLS = config.KafkaTLS{Enabled: true, CAFile: brokers.CA.File}
		c.Kafka.SASL = config.KafkaSASL{Username: testenv.KafkaAdmin, Password: testenv.KafkaPassword}
		c.Kafka.Users.Mode = config.UsersManaged
		c.Kafka.SigningSecret = "the secret of this installation"
	}})
	tenant := s.Tenant(t)
	called := make(chan int64, 10)
	stop := listenOver(t, s, tenant, brokers.CA.Trust(), called)
	first := tenant.Add(t, client.Task{Kind: "k", Type: client.OneShot})
	awaitCall(t, called, first)

	if _, err := s.api.Control().RotateKey(t.Context(), tenant.Name, 0); err != nil {
		t.Fatal(err)
	}
	stop()
	time.Sleep(12 * time.Second) // dispatchers have the new key, and tokens are read again
	stop = listenOver(t, s, tenant, brokers.CA.Trust(), called)
	defer stop()
	second := tenant.Add(t, client.Task{Kind: "k", Type: client.OneShot})
	awaitCall(t, called, second)

	admin, closeAdmin := brokers.Client(brokers.Admin())
	defer closeAdmin()
	users, err := admin.DescribeUserScramCredentials(t.Context(), &kafka.DescribeUserScramCredentialsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, user := range users.Results {
		names = append(names, user.User)
	}
	// The login of the first key is removed some time after its end.
	for _, want := range []string{testenv.KafkaAdmin, "perceptor.1." + tenant.Name + ".2"} {
		if !slices.Contains(names, want) {
			t.Errorf("users = %v, want %s among them", names, want)
		}
	}
}

// listenOver starts a listener and returns a function that stops it.
func listenOver(t *testing.T, s *Stack, tenant *Tenant, trust *tls.Config, called chan<- int64) (stop func()) {
	t.Helper()
	c, err := client.New(client.Config{Address: s.GRPC, Token: tenant.Token, Kafka: client.KafkaConfig{TLS: trust}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.NewListener(client.ListenerConfig{Events: client.Events{Forged: func(_ int, _ int64, err error) { t.Error(err) }}})
	if err != nil {
		t.Fatal(err)
	}
	l.Handle("k", func(_ context.Context, r *client.Run) error { called <- r.TaskID; return nil })
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = c.Close()
	}
}

func awaitCall(t *testing.T, called <-chan int64, want int64) {
	t.Helper()
	select {
	case id := <-called:
		if id != want {
			t.Errorf("the handler was called for task %d, want %d", id, want)
		}
	case <-time.After(patience):
		t.Fatalf("the handler was not called within %s", patience)
	}
}
