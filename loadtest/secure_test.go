package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// badInputWait bounds an attempt that must fail.
const badInputWait = 10 * time.Second

// TestEveryLinkIsClosed adds, fires and reports over an installation whose links all have TLS
// and logins, and then tries each of them with what must be refused.
func TestEveryLinkIsClosed(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	s, err := stack.Real(t.Context(), stack.RealOptions{Taskds: 1, Dispatchers: 1, Session: 2 * time.Second, Secure: true, Progress: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	g := newGuest(t, s, "secure")
	fired := make(chan *client.Run, 1)
	g.listen(map[string]client.Handler{"k": func(_ context.Context, run *client.Run) error {
		fired <- run
		return nil
	}})
	id, err := g.AddTask(t.Context(), client.Task{Kind: "k", Type: client.OneShot, Params: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case run := <-fired:
		if run.TaskID != id || run.Params["a"] != "b" {
			t.Errorf("got the run %+v", run)
		}
	case <-time.After(awaitLimit):
		t.Fatal("the task has not fired")
	}
	await(t, "the result is stored", func() bool {
		info, err := g.GetTask(t.Context(), id)
		return err == nil && info.State == client.Completed
	})
	links := &closedLinks{t, s, testenv.NewCA(t)}
	t.Run("api", links.api)
	t.Run("ops", links.ops)
	t.Run("postgres", links.postgres)
	t.Run("zookeeper", links.zookeeper)
	t.Run("kafka", links.kafka)
	t.Run("configuration", links.configuration)
}

// closedLinks tries the links of a secure stack. other is a CA that nobody trusts.
type closedLinks struct {
	t     *testing.T
	s     *stack.Stack
	other *testenv.CA
}

// trustOfOther returns the TLS of a client that trusts the wrong servers.
func (l *closedLinks) trustOfOther() *tls.Config { return l.other.Trust() }

func (l *closedLinks) api(t *testing.T) {
	for name, cfg := range map[string]client.Config{
		"clear text":   {Address: l.s.Address, Token: l.s.Token, CallTimeout: time.Second},
		"another CA":   {Address: l.s.Address, Token: l.s.Token, CallTimeout: time.Second, TLS: l.trustOfOther()},
		"wrong secret": {Address: l.s.Address, Token: l.s.Token[:len(l.s.Token)-4] + "aaaa", CallTimeout: time.Second, TLS: l.s.TLS},
	} {
		c, err := client.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.AddTask(t.Context(), client.Task{Kind: "k", Type: client.OneShot}); err == nil {
			t.Errorf("%s: the call is answered", name)
		}
		c.Close() //nolint:errcheck // nothing depends on it
	}
	m, err := l.s.Metrics(t.Context(), "taskd")
	if n := m[`perceptor_connections_refused_total{listener="api"}`]; err != nil || n == 0 {
		t.Errorf("refused connections are not counted: %v, %v", n, err)
	}
}

func (l *closedLinks) ops(t *testing.T) {
	for _, program := range []string{"taskd", "dispatcher"} {
		address, err := l.s.OpsAddress(program)
		if err != nil {
			t.Fatal(err)
		}
		asks := &http.Client{Timeout: badInputWait, Transport: &http.Transport{TLSClientConfig: l.s.TLS, DisableKeepAlives: true}}
		for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 401} {
			code, body := httpGet(t, asks, "https://"+address+path)
			if code != want || strings.Contains(body, "tenant=") || strings.Contains(body, "127.0.0.1") {
				t.Errorf("%s%s without a token: got %d %.200s", program, path, code, body)
			}
		}
		if code, body := httpGet(t, asks, "http://"+address+"/metrics"); code == 200 {
			t.Errorf("%s answers in the clear: %.200s", program, body)
		}
		asks.Transport = &http.Transport{TLSClientConfig: l.trustOfOther(), DisableKeepAlives: true}
		if code, _ := httpGet(t, asks, "https://"+address+"/healthz"); code != 0 {
			t.Errorf("%s: its certificate is of every CA", program)
		}
	}
}

// httpGet returns the status and the body, or 0 and the error.
func httpGet(t *testing.T, asks *http.Client, url string) (int, string) {
	t.Helper()
	res, err := asks.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

func (l *closedLinks) postgres(t *testing.T) {
	dsn := l.s.Postgres()
	if !strings.Contains(dsn, "verify-full") {
		t.Fatal("the programs do not verify PostgreSQL")
	}
	for name, dsn := range map[string]string{
		"clear text": strings.ReplaceAll(dsn, "verify-full", "disable"),
		"another CA": strings.ReplaceAll(dsn, "sslrootcert=", "sslrootcert="+l.other.File+"&x="),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), badInputWait)
		conn, err := pgx.Connect(ctx, dsn)
		cancel()
		if err == nil {
			conn.Close(t.Context()) //nolint:errcheck // the test has failed
			t.Errorf("%s: connected", name)
		}
	}
}

func (l *closedLinks) zookeeper(t *testing.T) {
	for name, conf := range map[string]*tls.Config{"clear text": nil, "another CA": l.trustOfOther()} {
		if _, err := zkGet(t, l.s.ZooKeeper(), conf, 1500*time.Millisecond); err == nil {
			t.Errorf("%s: the plan is read", name)
		}
	}
	if _, err := zkGet(t, l.s.ZooKeeper(), l.s.TLS, time.Minute); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("without the user: got %v", err)
	}
}

// zkGet reads the plan of the dispatchers, in a session that must begin within a time.
func zkGet(t *testing.T, address string, conf *tls.Config, within time.Duration) ([]byte, error) {
	t.Helper()
	dial := func(network, address string, _ time.Duration) (net.Conn, error) {
		plain := &net.Dialer{Timeout: badInputWait}
		if conf == nil {
			return plain.Dial(network, address)
		}
		return tls.DialWithDialer(plain, network, address, conf)
	}
	conn, events, err := zk.Connect([]string{address}, 10*time.Second, zk.WithDialer(dial), zk.WithLogInfo(false), zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	defer func() {
		conn.Close()
		for range events { // until the client has ended
		}
	}()
	for limit := time.After(within); conn.State() != zk.StateHasSession; {
		select {
		case <-events:
		case <-limit:
			return nil, errors.New("no session")
		}
	}
	data, _, err := conn.Get("/perceptor/env/BASE/plan")
	return data, err
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func (l *closedLinks) kafka(t *testing.T) {
	topic, err := l.s.Topic(t.Context(), "load")
	if err != nil {
		t.Fatal(err)
	}
	for name, transport := range map[string]*kafka.Transport{
		"clear text": {}, "another CA": {TLS: l.trustOfOther(), SASL: l.s.SecureKafka().Admin()}, "no login": {TLS: l.s.TLS},
		"wrong password": {TLS: l.s.TLS, SASL: plain.Mechanism{Username: testenv.KafkaAdmin, Password: "guess"}},
	} {
		transport.DialTimeout = time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		c := &kafka.Client{Addr: kafka.TCP(l.s.Kafka()), Transport: transport}
		if m, err := c.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}}); err == nil && len(m.Topics) > 0 && m.Topics[0].Error == nil {
			t.Errorf("%s: the topic is seen", name)
		}
		cancel()
		transport.CloseIdleConnections()
	}
}

// configuration starts taskd with what it must refuse.
func (l *closedLinks) configuration(t *testing.T) {
	taskd, err := l.s.Part("taskd")
	if err != nil {
		t.Fatal(err)
	}
	good := l.other.Issue(t, testenv.Server)
	expired := l.other.Issue(t, testenv.Server, testenv.Valid(-2*time.Hour, -time.Hour))
	pair := func(c testenv.Certificate) []string {
		return []string{"--taskd.tls.cert-file=" + c.CertFile, "--taskd.tls.key-file=" + c.KeyFile}
	}
	another := strings.ReplaceAll(l.s.Postgres(), "sslrootcert=", "sslrootcert="+l.other.File+"&x=")
	for _, c := range []struct {
		name, want string
		args       []string
		postgres   string
	}{
		{"half a pair", "taskd.tls.key_file: is missing: taskd.tls.cert_file is given", []string{"--taskd.tls.cert-file=" + good.CertFile}, l.s.Postgres()},
		{"another key", "taskd.tls.cert_file: tls: private key does not match", pair(testenv.Certificate{CertFile: good.CertFile, KeyFile: expired.KeyFile}), l.s.Postgres()},
		{"expired", "taskd.tls.cert_file: " + expired.CertFile + ": the certificate has expired", pair(expired), l.s.Postgres()},
		{"another CA", "certificate signed by unknown authority", []string{"--start-timeout=500ms"}, another},
		{"clear text", `taskd.grpc_addr: "0.0.0.0:0" is not on loopback, and the link has no TLS`, []string{"--taskd.grpc-addr=0.0.0.0:0"}, l.s.Postgres()},
		{"unverified", "sslmode is below verify-full", nil, "postgres://u:hush@db.invalid/x?sslmode=require"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), badInputWait)
			defer cancel()
			cmd := exec.CommandContext(ctx, filepath.Join(taskd.Folder(), "taskd"), append([]string{
				"--kafka.brokers=127.0.0.1:1",
				"--taskd.grpc-addr=127.0.0.1:0", "--taskd.http-addr=", "--taskd.ops-addr=", "--log.level=error",
			}, c.args...)...)
			cmd.Env = []string{"HOME=" + os.Getenv("HOME"), "PERCEPTOR_POSTGRES_SERVERS=" + c.postgres}
			var said bytes.Buffer
			cmd.Stderr = &said
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() < 1 || !strings.Contains(said.String(), c.want) {
				t.Errorf("got %v and %s, want %q", err, &said, c.want)
			}
			if strings.Contains(said.String(), "hush") {
				t.Errorf("a password is shown: %s", &said)
			}
		})
	}
}
