// Package stack starts an installation for a load run and lets the run disturb its parts.
//
// There are three kinds of stacks. [Real] starts taskd and dispatcher processes with a real
// PostgreSQL, ZooKeeper and Kafka. [Dev] starts one `taskd dev`. [External] uses an
// installation that already runs. The processes that this package starts listen on free
// ports of 127.0.0.1 and keep their data in one directory, which is removed with the stack.
// They are killed when this process ends, whatever ends it.
package stack

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/internal/testenv"
)

// Server is a process, or a group of processes, that a run can disturb.
type Server interface {
	// Kill ends the server with SIGKILL and returns when it is gone.
	Kill() error
	// Stop ends the server gracefully.
	Stop(ctx context.Context) error
	// Pause freezes the server with SIGSTOP until Resume.
	Pause() error
	Resume() error
	// Restart starts the server again with the same ports and data and returns when it
	// serves. It first stops a server that runs.
	Restart(ctx context.Context) error
	// PID returns the process id, for a group the id of its first process. It changes with
	// each start.
	PID() int
	// CPUTime returns the processor time used since the last start. The value may be too
	// low for a moment when a process of a group has just ended.
	CPUTime() (time.Duration, error)
}

// Part is a named server of a stack, such as "postgres" or "dispatcher-1".
type Part struct {
	Name string
	Server
}

// Stack is a running installation.
type Stack struct {
	// Address is the address of the gRPC API: host:port, several separated by commas.
	Address string
	// Token is the token of the tenant that the load is for.
	Token string
	// HTTP is the base URL of the HTTP API and of the console, of the first taskd. It is empty if
	// not known.
	HTTP string
	// TLS is that of clients of the API, and CAFile the file of the CA that it trusts. Both are
	// zero if the stack's links are open.
	TLS    *tls.Config
	CAFile string
	// OpsToken is the token of the programs' servers for operators, which have TLS of the same
	// CA then. It is empty if the stack's links are open.
	OpsToken string
	// Parts are the parts in the order of their start.
	Parts []Part
	// Versions are the versions of the servers, by name.
	Versions map[string]string
	// Session is the ZooKeeper session timeout; 0 means not known.
	Session time.Duration

	// admin is the secret of a token of the scope ADMIN, empty if not known.
	admin string
	// sections are the configuration that all programs share, in the file config, with the value of
	// assignment if it is set.
	sections           map[string]map[string]any
	config, assignment string
	postgresDSN        string
	kafkaAddr          string
	zookeeper          string
	kafka              *testenv.SecureKafka // nil if its links are open
	owners             *Owners
	close              []func(context.Context) error // in the order of the start
}

// Postgres returns the connection string of a superuser of the server with all databases.
// It is empty if not known.
func (s *Stack) Postgres() string { return s.postgresDSN }

// PostgresServers returns the connection strings of all servers, in the order of their databases. It
// is empty if not known.
func (s *Stack) PostgresServers() (dsns []string) {
	switch {
	case s.owners != nil:
		for _, o := range s.owners.servers {
			dsns = append(dsns, o.dsn)
		}
	case s.postgresDSN != "":
		dsns = []string{s.postgresDSN}
	}
	return dsns
}

// Kafka returns the address of the broker. It is empty if not known.
func (s *Stack) Kafka() string { return s.kafkaAddr }

// ZooKeeper returns the address of a ZooKeeper server. It is empty if not known.
func (s *Stack) ZooKeeper() string { return s.zookeeper }

// AdminToken returns a token of the scope ADMIN. It is empty if not known.
func (s *Stack) AdminToken() string { return s.admin }

// Owners returns the reader of the shards' owners. It returns nil if the stack's databases
// cannot be queried.
func (s *Stack) Owners() *Owners { return s.owners }

// Part returns the part with the given name. A name without a number means the first part
// of its kind.
func (s *Stack) Part(name string) (Part, error) {
	for _, p := range s.Parts {
		if p.Name == name || p.Name == name+"-1" {
			return p, nil
		}
	}
	names := make([]string, len(s.Parts))
	for i, p := range s.Parts {
		names[i] = p.Name
	}
	if len(names) == 0 {
		return Part{}, fmt.Errorf("cannot disturb %q: this program did not start the stack", name)
	}
	return Part{}, fmt.Errorf("unknown part %q: the parts of this stack are %s", name, strings.Join(names, ", "))
}

// Programs returns the parts that are processes of taskd and dispatcher.
func (s *Stack) Programs() []Part {
	return slices.DeleteFunc(slices.Clone(s.Parts), func(p Part) bool {
		_, ours := p.Server.(*program)
		return !ours
	})
}

// Died returns an error that names the parts which ended without a call of Stop or Kill.
func (s *Stack) Died() error {
	var errs []error
	for _, p := range s.Parts {
		if d, ok := p.Server.(interface{ died() error }); ok {
			errs = append(errs, d.died())
		}
	}
	return errors.Join(errs...)
}

// Revive restarts the programs that were ended. It returns when every shard has an owner
// and every dispatcher owns a shard.
func (s *Stack) Revive(ctx context.Context) error {
	var dispatchers []string
	for _, part := range s.Parts {
		p, ours := part.Server.(*program)
		if !ours {
			continue
		}
		if process, err := p.running(); err != nil || !process.Running() {
			if err := p.start(ctx); err != nil {
				return err
			}
		}
		if strings.HasPrefix(p.name, "dispatcher") {
			dispatchers = append(dispatchers, p.name)
		}
	}
	if s.owners == nil {
		return nil
	}
	return s.owners.AwaitAll(ctx, dispatchers)
}

// Close stops all parts in the reverse order of their start and removes their data. It
// continues after an error.
func (s *Stack) Close(ctx context.Context) error {
	var errs []error
	for _, f := range slices.Backward(s.close) {
		errs = append(errs, f(ctx))
	}
	s.close = nil
	return errors.Join(errs...)
}

func (s *Stack) onClose(f func(context.Context) error) { s.close = append(s.close, f) }

// add makes server a part of the stack. Close stops it.
func (s *Stack) add(name string, server Server) {
	s.Parts = append(s.Parts, Part{name, server})
	s.onClose(func(ctx context.Context) error {
		if err := server.Stop(ctx); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
		return nil
	})
}

const bannerWait = 30 * time.Second

// Dev starts `taskd dev`: one process tree, which is the only part of the stack. It uses
// only the options Keep and Progress.
func Dev(ctx context.Context, o RealOptions) (*Stack, error) {
	return launch(ctx, o, func(s *Stack, dir string) error { return s.startDev(ctx, dir, o) })
}

func (s *Stack) startDev(ctx context.Context, dir string, o RealOptions) error {
	if o.Secure {
		return errors.New("the links of taskd dev cannot be closed: use --stack real")
	}
	o.Progress("building and starting taskd dev")
	if err := buildPrograms(ctx, filepath.Join(dir, "bin"), "taskd"); err != nil {
		return err
	}
	args := []string{"dev", "--data-dir", filepath.Join(dir, "data")}
	var ops int
	for _, name := range []string{"grpc", "http", "kafka", "postgres", "ops"} {
		port, err := subprocess.FreePort()
		if err != nil {
			return err
		}
		args = append(args, fmt.Sprintf("--%s-port=%d", name, port))
		ops = port
	}
	p := &program{
		name: "taskd-dev", path: filepath.Join(dir, "bin", "taskd"), args: args, tree: true,
		logPath: filepath.Join(dir, "taskd-dev.log"), readyURL: fmt.Sprintf("http://127.0.0.1:%d/readyz", ops), asks: http.DefaultClient,
	}
	s.add(p.name, p)
	if err := p.start(ctx); err != nil {
		return err
	}
	return s.readBanner(ctx, p.logPath)
}

// readBanner reads the addresses and the token from the output of taskd dev.
func (s *Stack) readBanner(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, bannerWait)
	defer cancel()
	poll := time.NewTicker(readyEvery)
	defer poll.Stop()
	for {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the output of taskd dev: %w", err)
		}
		said := map[string]string{}
		for line := range strings.Lines(string(text)) {
			if words := strings.Fields(line); len(words) == 2 {
				said[words[0]] = words[1]
			}
		}
		s.Address, s.HTTP, s.Token = said["gRPC"], said["HTTP"], said["token"]
		if s.Address != "" && s.Token != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("taskd dev does not print its address and token: %w", ctx.Err())
		case <-poll.C:
		}
	}
}
