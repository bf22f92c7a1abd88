package app

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/testenv"
)

// follows runs what follows the login of a link, and returns how often it was renewed.
func follows(t *testing.T, file string) (*kafkaLink, *atomic.Int64) {
	t.Helper()
	c, err := config.Load(config.Sources{File: file, Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	link, err := newKafkaLink(&c.Config, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	renewed := &atomic.Int64{}
	link.renewed = []func(){func() { renewed.Add(1) }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- link.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := link.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	return link, renewed
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func awaitRenewal(t *testing.T, renewed *atomic.Int64, n int64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); renewed.Load() != n; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("renewed %d times, want %d", renewed.Load(), n)
		}
	}
}

func TestALoginToKafkaIsReplacedInAnyOrder(t *testing.T) {
	broker := testenv.NewSecureKafka(t)
	dir := t.TempDir()
	file, password := filepath.Join(dir, "perceptor.yaml"), filepath.Join(dir, "password")
	put(t, file, "kafka: {brokers: ['"+broker.Addr()+"'], tls: {enabled: true, ca_file: "+broker.CA.File+"}, sasl: {username: someone, password_file: "+password+"}}")
	change := func(to string) {
		t.Helper()
		if err := broker.SetPassword(t.Context(), "someone", to); err != nil {
			t.Fatal(err)
		}
	}
	change("first")
	put(t, password, "first\n")
	link, renewed := follows(t, file)

	put(t, password, "second\n") // the file first
	time.Sleep(2 * time.Second)  // in which it is tried
	if err := link.Ping(t.Context()); err != nil || renewed.Load() != 0 {
		t.Errorf("a password that the brokers do not have is used: %v, renewed %d times", err, renewed.Load())
	}
	change("second")
	awaitRenewal(t, renewed, 1)
	change("third") // the brokers first
	put(t, password, "third\n")
	awaitRenewal(t, renewed, 2)
	if err := link.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestACertificateForKafkaIsReplaced(t *testing.T) {
	broker := testenv.NewSecureKafka(t)
	dir := t.TempDir()
	file, cert, key := filepath.Join(dir, "perceptor.yaml"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	issue := func() {
		t.Helper()
		c := broker.CA.Issue(t, testenv.Client, testenv.Subject(testenv.KafkaAdmin))
		for to, from := range map[string]string{cert: c.CertFile, key: c.KeyFile} {
			text, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			put(t, to, string(text))
		}
	}
	issue()
	put(t, file, "kafka: {brokers: ['"+broker.MTLSAddr()+"'], tls: {enabled: true, ca_file: "+broker.CA.File+", cert_file: "+cert+", key_file: "+key+"}}")
	link, renewed := follows(t, file)
	issue()
	awaitRenewal(t, renewed, 1)
	if err := link.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
