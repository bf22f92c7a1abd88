package app

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/testenv"
)

// changes count what a link has told of its login.
type changes struct{ renewed, refused atomic.Int64 }

// follows runs what follows the login of a link, and returns what it tells.
func follows(t *testing.T, file string) (*kafkaLink, *changes) {
	t.Helper()
	c, err := config.Load(config.Sources{File: file, Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	told := &changes{}
	link, err := newKafkaLink(&c.Config, "test", slog.New(warnings{slog.DiscardHandler, &told.refused}))
	if err != nil {
		t.Fatal(err)
	}
	link.renewed = []func(){func() { told.renewed.Add(1) }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- link.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for limit := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := link.Ping(t.Context())
		if err == nil {
			return link, told
		}
		if time.Now().After(limit) { // brokers know a new password some time after they have confirmed it
			t.Fatal(err)
		}
	}
}

// warnings counts the warnings about logins that cannot be used yet.
type warnings struct {
	slog.Handler
	n *atomic.Int64
}

func (warnings) Enabled(context.Context, slog.Level) bool { return true }

func (w warnings) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "a changed login") {
		w.n.Add(1)
	}
	return nil
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func awaitCount(t *testing.T, what string, count *atomic.Int64, n int64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); count.Load() != n; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: told %d times, want %d", what, count.Load(), n)
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
	link, told := follows(t, file)

	put(t, password, "second\n") // the file first
	time.Sleep(2 * time.Second)  // in which it is tried
	if err := link.Ping(t.Context()); err != nil || told.renewed.Load() != 0 {
		t.Errorf("a password that the brokers do not have is used: %v, renewed %d times", err, told.renewed.Load())
	}
	change("second")
	awaitCount(t, "renewed", &told.renewed, 1)
	change("third") // the brokers first
	put(t, password, "third\n")
	awaitCount(t, "renewed", &told.renewed, 2)
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
	link, told := follows(t, file)
	issue()
	awaitCount(t, "renewed", &told.renewed, 1)
	if err := link.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestACertificateThatTheBrokersRefuseEndsNothing(t *testing.T) {
	broker, stranger := testenv.NewSecureKafka(t), testenv.NewCA(t)
	dir := t.TempDir()
	file, cert, key, ca := filepath.Join(dir, "perceptor.yaml"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem")
	copyTo := func(to, from string) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		put(t, to, string(text))
	}
	issue := func(by *testenv.CA) {
		t.Helper()
		c := by.Issue(t, testenv.Client, testenv.Subject(testenv.KafkaAdmin))
		copyTo(cert, c.CertFile)
		copyTo(key, c.KeyFile)
	}
	issue(broker.CA)
	copyTo(ca, broker.CA.File)
	put(t, file, "kafka: {brokers: ['"+broker.MTLSAddr()+"'], tls: {enabled: true, ca_file: "+ca+", cert_file: "+cert+", key_file: "+key+"}}")
	link, told := follows(t, file)
	stays := func(what string, n int64) {
		t.Helper()
		awaitCount(t, what, &told.refused, n)
		if err := link.Ping(t.Context()); err != nil || told.renewed.Load() != 0 {
			t.Errorf("%s: it is used: %v, renewed %d times", what, err, told.renewed.Load())
		}
	}
	issue(stranger)
	stays("a certificate of a CA that the brokers do not trust", 1)
	copyTo(ca, stranger.File)
	stays("a CA that has not signed the brokers' certificates", 2)
	copyTo(ca, broker.CA.File)
	issue(broker.CA)
	awaitCount(t, "renewed", &told.renewed, 1)
	if err := link.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
