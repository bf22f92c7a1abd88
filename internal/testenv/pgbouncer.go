package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// PgBouncer is a pooler in front of a PostgreSQL server.
type PgBouncer struct{ javaServer }

// bouncerPackages are what PgBouncer needs beyond a minimal Debian.
var bouncerPackages = []string{"pgbouncer", "libevent-2.1-7", "libc-ares2"}

const noBouncer = "PgBouncer is needed; install it with: apt-get install pgbouncer"

// NewPgBouncer starts a pooler for one test in front of the server of dsn, a URL. mode is session,
// transaction or statement; size is how many connections to the server it makes at most. It
// returns the connection string that leads through the pooler.
func NewPgBouncer(tb testing.TB, dsn, mode string, size int) string {
	tb.Helper()
	server, err := url.Parse(dsn)
	if err != nil {
		tb.Fatal("the connection string is not a URL")
	}
	p := private(tb, func(ctx context.Context, dir string) (*PgBouncer, error) {
		p, err := startPgBouncer(ctx, dir, server, mode, size)
		if err != nil {
			return nil, fmt.Errorf("start PgBouncer: %w", err)
		}
		return p, nil
	})
	through := *server
	through.Host, through.RawQuery = p.Addr(), "sslmode=disable"
	return through.String()
}

func startPgBouncer(ctx context.Context, dir string, server *url.URL, mode string, size int) (*PgBouncer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	program, lib, err := findPgBouncer(ctx, dir)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "pgbouncer.ini")
	p := &PgBouncer{javaServer{dir: dir}}
	p.program = func() *exec.Cmd {
		cmd := exec.Command(program, config)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+lib)
		cmd.SysProcAttr = unprivileged()
		return cmd
	}
	p.answers = func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	err = launchOnSomePort(ctx, &p.javaServer, func(port int) error {
		// The account of the pooler reads it, and the directory above is this process's own.
		return os.WriteFile(config, bouncerConfig(server, port, mode, size), 0o644)
	})
	return p, err
}

// bouncerConfig lets everybody who reaches the pooler in, as the user of the connection string.
func bouncerConfig(server *url.URL, port int, mode string, size int) []byte {
	password, _ := server.User.Password()
	var text bytes.Buffer
	fmt.Fprintf(&text, "[databases]\n* = host=%s port=%s user=%s password=%s\n", server.Hostname(), server.Port(), server.User.Username(), password)
	fmt.Fprintf(&text, "[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\nauth_type = any\n", port)
	fmt.Fprintf(&text, "pool_mode = %s\ndefault_pool_size = %d\nmax_client_conn = 500\nserver_tls_sslmode = prefer\n", mode, size)
	return text.Bytes()
}

// unprivileged makes a program of root run as nobody, since PgBouncer refuses to run as root.
func unprivileged() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{}
	if os.Geteuid() != 0 {
		return attr
	}
	if u, err := user.Lookup("nobody"); err == nil {
		uid, _ := strconv.ParseUint(u.Uid, 10, 32)
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attr
}

// findPgBouncer returns the program that is installed, or a copy in dir of the one that apt
// fetches once for this user, and the folder of its libraries.
func findPgBouncer(ctx context.Context, dir string) (program, lib string, err error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if program, err := exec.LookPath(name); err == nil {
			return program, "", nil
		}
	}
	root, err := bouncerPackage(ctx)
	if err != nil {
		return "", "", err
	}
	// The folder of the user may be closed to the account that runs the program.
	files, _ := filepath.Glob(filepath.Join(root, "usr/lib/*/lib*.so*")) // its only error is a bad pattern
	for _, file := range append(files, filepath.Join(root, "usr/sbin/pgbouncer")) {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", "", err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), content, 0o755); err != nil { //nolint:gosec // a program
			return "", "", err
		}
	}
	return filepath.Join(dir, "pgbouncer"), dir, nil
}

// bouncerPackage returns the folder with the unpacked packages. apt verifies what it fetches by
// the signed lists of the distribution.
func bouncerPackage(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	dir := filepath.Join(cache, "perceptor", "pgbouncer")
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	unlock, err := subprocess.LockFile(ctx, dir+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	draft, err := os.MkdirTemp(filepath.Dir(dir), "pgbouncer-draft-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(draft)
	if err := fetchPackages(ctx, draft); err != nil {
		return "", errors.Join(errors.New(noBouncer), err)
	}
	return dir, os.Rename(filepath.Join(draft, "root"), dir)
}

func fetchPackages(ctx context.Context, draft string) error {
	run := func(name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = draft
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out[:min(len(out), lastWords)]))
		}
		return nil
	}
	if err := run("apt-get", append([]string{"download"}, bouncerPackages...)...); err != nil {
		return err
	}
	packages, _ := filepath.Glob(filepath.Join(draft, "*.deb")) // its only error is a bad pattern
	for _, p := range packages {
		if err := run("dpkg-deb", "--extract", p, "root"); err != nil {
			return err
		}
	}
	return nil
}
