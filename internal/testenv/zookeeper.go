package testenv

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	defaultTick = 500 * time.Millisecond
	probeWait   = time.Second
)

// ZooKeeperServer is a standalone ZooKeeper server. Its methods may be called concurrently.
type ZooKeeperServer struct{ javaServer }

// ZooKeeperOption is an option for starting ZooKeeper servers.
type ZooKeeperOption func(*zookeeperOptions)

type zookeeperOptions struct {
	tick   time.Duration
	secure *CA
}

// TickTime sets ZooKeeper's unit of time, by default 500 ms. Sessions time out after 2 to 20 ticks.
func TickTime(tick time.Duration) ZooKeeperOption {
	return func(o *zookeeperOptions) { o.tick = tick }
}

// Secure makes the server speak only TLS, with a certificate of ca.
func Secure(ca *CA) ZooKeeperOption { return func(o *zookeeperOptions) { o.secure = ca } }

// NewZooKeeper starts a ZooKeeper server for one test. The test may stop, kill, pause and restart it.
func NewZooKeeper(tb testing.TB, opts ...ZooKeeperOption) *ZooKeeperServer {
	tb.Helper()
	return private(tb, func(ctx context.Context, dir string) (*ZooKeeperServer, error) {
		return StartZooKeeper(ctx, dir, opts...)
	})
}

// StartZooKeeper starts a ZooKeeper server with its data in dir, which it creates, and returns when the
// server serves.
func StartZooKeeper(ctx context.Context, dir string, opts ...ZooKeeperOption) (*ZooKeeperServer, error) {
	s, err := startZooKeeper(ctx, dir, opts)
	if err != nil {
		return nil, fmt.Errorf("start ZooKeeper: %w", err)
	}
	return s, nil
}

func startZooKeeper(ctx context.Context, dir string, opts []ZooKeeperOption) (*ZooKeeperServer, error) {
	o := zookeeperOptions{tick: defaultTick}
	for _, opt := range opts {
		opt(&o)
	}
	s, config, err := newZooKeeper(ctx, dir, o.secure)
	if err != nil {
		return nil, err
	}
	err = launchOnSomePort(ctx, &s.javaServer, func(port int) error {
		text, err := zookeeperConfig(dir, port, o)
		if err != nil {
			return err
		}
		return os.WriteFile(config, text, 0o600)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// newZooKeeper returns a server with its data in dir that has no address yet. The server will read its
// settings from the file config. secure, if not nil, signs its certificate.
func newZooKeeper(ctx context.Context, dir string, secure *CA) (s *ZooKeeperServer, config string, err error) {
	java, err := findJava(ctx)
	if err != nil {
		return nil, "", err
	}
	lib, err := library(ctx, "zookeeper", zookeeperList)
	if err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, "", err
	}
	config = filepath.Join(dir, "zoo.cfg")
	s = &ZooKeeperServer{javaServer{dir: dir}}
	s.program = func() *exec.Cmd {
		return exec.Command(java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(lib, "*"),
			"org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
	}
	s.answers = func(ctx context.Context) error { return serves(ctx, s.addr, secure) }
	return s, config, nil
}

func zookeeperConfig(dir string, port int, o zookeeperOptions) ([]byte, error) {
	text := fmt.Appendf(nil, `dataDir=%s
tickTime=%d
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr,ruok,cons,wchs
`, filepath.Join(dir, "data"), o.tick.Milliseconds())
	if o.secure == nil {
		return fmt.Appendf(text, "clientPort=%d\nclientPortAddress=127.0.0.1\n", port), nil
	}
	cert, err := o.secure.Sign(Server)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(text, `secureClientPort=%d
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.type=PEM
ssl.keyStore.location=%s
ssl.trustStore.type=PEM
ssl.trustStore.location=%s
ssl.clientAuth=none
`, port, cert.CombinedFile, o.secure.File), nil
}

// serves asks for the server's state, because the server accepts connections a moment before it serves.
func serves(ctx context.Context, addr string, secure *CA) error {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	dial := (&net.Dialer{}).DialContext
	if secure != nil {
		dial = (&tls.Dialer{Config: secure.Trust()}).DialContext
	}
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(probeWait)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err != nil && len(answer) == 0 {
		return err
	}
	if !strings.HasPrefix(string(answer), "Zookeeper version:") {
		return errors.New("ZooKeeper answers: " + strings.TrimSpace(string(answer)))
	}
	return nil
}
