package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/dispatch"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m) }

var quiet = slog.New(slog.DiscardHandler)

func TestWhatIsBehindStopsAfterTheFront(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var events []string
	behind := make(chan struct{})
	err := RunBefore(ctx, func(ctx context.Context) error {
		<-behind
		cancel()
		<-ctx.Done()
		events = append(events, "front")
		return nil
	}, func(ctx context.Context) error {
		close(behind)
		<-ctx.Done()
		events = append(events, "behind")
		return nil
	})
	if err != nil || strings.Join(events, ",") != "front,behind" {
		t.Errorf("got %v, %v", events, err)
	}
}

func TestTheFrontStopsWhenAPartBehindItEnds(t *testing.T) {
	broken := errors.New("broken")
	err := RunBefore(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return nil },
		func(context.Context) error { return broken },
		func(ctx context.Context) error { <-ctx.Done(); return nil })
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestReachTriesAgainUntilItsPatienceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, tries := time.Now(), 0
		err := reach(t.Context(), quiet, "kafka", 10*time.Second, func(context.Context) error {
			tries++
			return errors.New("no\n\troute")
		})
		if err == nil || err.Error() != fmt.Sprintf("kafka: no route (tried %d times within 10s)", tries) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took > 10*time.Second || took < 5*time.Second || tries < 5 {
			t.Errorf("%d tries within %s", tries, took)
		}
		tries = 0
		err = reach(t.Context(), quiet, "kafka", 10*time.Second, func(context.Context) error {
			if tries++; tries < 4 {
				return errors.New("not yet")
			}
			return nil
		})
		if err != nil || tries != 4 {
			t.Errorf("got %v after %d tries", err, tries)
		}
		tries = 0
		err = reach(t.Context(), quiet, "kafka", 10*time.Second, func(context.Context) error { tries++; return finalError{errors.New("never")} })
		if err == nil || tries != 1 {
			t.Errorf("got %v after %d tries: waiting does not help", err, tries)
		}
	})
}

func TestServeDoesNotWaitForAStopWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		hang := make(chan struct{})
		defer close(hang)
		err := Serve(ctx, Process{
			Reach: func(context.Context) error { return nil }, Ready: cancel, StopWithin: 3 * time.Second,
			Run: func(context.Context) error { <-hang; return nil },
		})
		if err == nil || err.Error() != "did not stop within 3s" {
			t.Errorf("got %v", err)
		}
	})
}

func TestAStopDuringTheStartIsNoError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ops := telemetry.NewOps(listener, telemetry.NewRegistry(), nil, telemetry.OpsOptions{}, quiet)
	err = Serve(ctx, Process{
		Reach: func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() }, Ops: ops,
		Ready: func() { t.Error("it is not ready") }, Run: func(context.Context) error { t.Error("it runs"); return nil },
	})
	if err != nil {
		t.Error(err)
	}
}

func TestOneLineSaysNothingTwice(t *testing.T) {
	if got := oneLine(errors.New("a:\n\tb\n\tb\n  c")); got != "a: b c" {
		t.Errorf("got %q", got)
	}
}

func TestOwnersOfDatabasesThatAnswerAreKnown(t *testing.T) {
	o := owners{of: func(_ context.Context, d int) ([]shards.ItemOwner, error) {
		if d == 3 {
			return nil, errors.New("away")
		}
		return []shards.ItemOwner{{Item: 32 * d, Owner: task.Owner{Name: "a"}}, {Item: 32*d + 1}, {Item: 512 + d, Owner: task.Owner{Name: "a"}}}, nil
	}}
	got, err := o.Owners(t.Context())
	if err != nil || len(got) != 15 || got[32].Name != "a" {
		t.Errorf("got %v, %v: want one shard of each database but one", got, err)
	}
	o.of = func(context.Context, int) ([]shards.ItemOwner, error) { return nil, errors.New("away") }
	if _, err := o.Owners(t.Context()); err == nil {
		t.Error("no database answers, and that is no error")
	}
}

func TestCallersMustShowACertificateWhereOneIsAskedFor(t *testing.T) {
	ours, theirs := testenv.NewCA(t), testenv.NewCA(t)
	cert := ours.Issue(t, testenv.Server)
	files := config.ServerTLS{CertFile: cert.CertFile, KeyFile: cert.KeyFile, ClientCAFile: ours.File}
	none, right, wrong := (*testenv.Certificate)(nil), ours.Issue(t, testenv.Client), theirs.Issue(t, testenv.Client)
	for _, c := range []struct {
		mode     string
		shown    *testenv.Certificate
		accepted bool
	}{
		{"required", none, false}, {"required", &wrong, false}, {"required", &right, true},
		{"optional", none, true}, {"optional", &wrong, false}, {"optional", &right, true},
	} {
		files.ClientCerts = c.mode
		if err := handshake(t, files, c.shown); (err == nil) != c.accepted {
			t.Errorf("%s, %v: got %v", c.mode, c.shown, err)
		}
	}
	if conf, err := serverTLS(config.ServerTLS{}, quiet, func() {}); conf != nil || err != nil {
		t.Errorf("no TLS is configured: got %v, %v", conf, err)
	}
	files.ClientCAFile = files.KeyFile
	if _, err := serverTLS(files, quiet, func() {}); err == nil || !strings.Contains(err.Error(), "taskd.tls.client_ca_file") {
		t.Errorf("a key is no certificate: got %v", err)
	}
}

// handshake returns the server's error about a caller that shows a certificate.
func handshake(t *testing.T, files config.ServerTLS, shown *testenv.Certificate) error {
	t.Helper()
	conf, err := serverTLS(files, quiet, func() {})
	if err != nil {
		t.Fatal(err)
	}
	caller := &tls.Config{InsecureSkipVerify: true}
	if shown != nil {
		pair, err := tls.LoadX509KeyPair(shown.CertFile, shown.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		caller.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	front, back := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn := tls.Client(front, caller)
		_ = conn.Handshake()
		_, _ = conn.Read(make([]byte, 1)) // what the server says at the end
	}()
	err = tls.Server(back, conf).Handshake()
	_ = back.Close()
	_ = front.Close()
	<-done
	return err
}

func TestHintsAreAdvertisedWhereTheyCanBeReached(t *testing.T) {
	d := &Dispatcher{o: DispatcherOptions{Options: Options{Config: &config.Config{}}}}
	if got, err := d.hintAddress(); err != nil || got != "" {
		t.Errorf("without hints: got %q, %v", got, err)
	}
	for listen, want := range map[string]string{"127.0.0.1:0": "127.0.0.1:", ":0": hostname(t) + ":"} {
		hints, err := dispatch.ListenHints(listen)
		if err != nil {
			t.Fatal(err)
		}
		d.o.Hints = hints
		got, err := d.hintAddress()
		if _, port, _ := net.SplitHostPort(hints.Addr()); err != nil || got != want+port {
			t.Errorf("listening on %s: got %q, %v", hints.Addr(), got, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := hints.Run(ended, d); err != nil { // closes it
			t.Error(err)
		}
	}
	d.o.Config.Dispatcher.HintAdvertise = "elsewhere:1"
	if got, err := d.hintAddress(); err != nil || got != "elsewhere:1" {
		t.Errorf("got %q, %v", got, err)
	}
}

func hostname(t *testing.T) string {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return host
}
