package stack

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/internal/testenv"
)

// Service is what a service has beside the installation: a PostgreSQL server of its own with an outbox, and
// relays of that.
type Service struct {
	stack *Stack
	dir   string
	// DSN is the connection string of a superuser of its server.
	DSN string
}

// AddService starts a PostgreSQL server for a service, as the part "shop". settings are those of
// postgresql.conf.
func (s *Stack) AddService(ctx context.Context, settings map[string]string) (*Service, error) {
	dir, err := tempdir.New("perceptor-shop-", false)
	if err != nil {
		return nil, err
	}
	s.onClose(dir.Close)
	server, err := startPostgres(ctx, dir.Path, RealOptions{Postgres: settings})
	if err != nil {
		return nil, err
	}
	s.add("shop", server)
	return &Service{stack: s, dir: dir.Path, DSN: server.DSN()}, nil
}

var _ Server = (*testenv.PostgresServer)(nil)

// Perceptorctl runs perceptorctl of this tree with the configuration of the programs, and returns what it
// has printed. It builds the program first.
func (s *Stack) Perceptorctl(ctx context.Context, environ []string, args ...string) (string, error) {
	bin := filepath.Dir(s.config)
	if err := build(ctx, "", bin, nil, "perceptorctl"); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "perceptorctl"), args...)
	cmd.Env = append(append(plainEnviron(), "PERCEPTOR_CONFIG="+s.config), environ...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("perceptorctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// AddRelays starts n processes of `perceptorctl relay`, as the parts relay-1, relay-2 and so on, with more
// flags. The outbox must exist.
func (v *Service) AddRelays(ctx context.Context, n int, flags ...string) error {
	bin := filepath.Join(v.dir, "bin")
	if err := build(ctx, "", bin, nil, "perceptorctl"); err != nil {
		return err
	}
	for i := range n {
		addr, err := freeAddresses(1)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("relay-%d", i+1)
		args := []string{"relay", "--address", v.stack.Address, "--metrics-address", addr[0], "--name", name}
		if v.stack.CAFile != "" {
			args = append(args, "--tls-ca-file", v.stack.CAFile)
		}
		p := &program{
			name: name, asks: http.DefaultClient, path: filepath.Join(bin, "perceptorctl"), args: append(args, flags...),
			logPath: filepath.Join(v.dir, name+".log"), readyURL: "http://" + addr[0] + "/readyz",
			env: []string{"PERCEPTOR_TOKEN=" + v.stack.Token, "PERCEPTOR_OUTBOX_DSN=" + v.DSN, "PERCEPTOR_CONTEXTS=" + filepath.Join(v.dir, "no-contexts")},
		}
		v.stack.add(name, p)
		if err := p.start(ctx); err != nil {
			return err
		}
	}
	return nil
}
