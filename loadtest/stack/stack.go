// Package stack starts an installation that load can be put on, and lets a load
// run hurt its parts.
//
// Three kinds: [Real] is taskd and dispatcher processes beside a real
// PostgreSQL, ZooKeeper and Kafka; [Dev] is one `taskd dev`; [External] runs
// elsewhere. Everything listens on 127.0.0.1, on ports that were free, with its
// data in one directory that goes with the stack. Children die with this
// process, whatever ends it.
package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// Server is a process, or a group of processes, that a run can disturb.
type Server interface {
	// Kill ends it with SIGKILL and returns when it is gone.
	Kill() error
	// Stop ends it in order.
	Stop(ctx context.Context) error
	// Pause freezes it with SIGSTOP, until Resume.
	Pause() error
	Resume() error
	// Restart starts it again on the same ports and data, after a Stop if it
	// runs; it returns when it serves.
	Restart(ctx context.Context) error
	// PID is the process id, that of the first process of a group; another one
	// after each start.
	PID() int
	// CPUTime is the processor time used since the last start. It may fall short
	// for a moment, when a process of a group has just ended.
	CPUTime() (time.Duration, error)
}

// Part is a named server of a stack, such as "postgres" or "dispatcher-1".
type Part struct {
	Name string
	Server
}

// Stack is a running installation.
type Stack struct {
	// Address of the API (gRPC): host:port, several separated by commas.
	Address string
	// Token of the tenant that the load is for.
	Token string
	// Parts in the order of their start.
	Parts []Part
	// Versions of the servers, by name.
	Versions map[string]string
	// Session is how long ZooKeeper waits for a dispatcher that vanished; 0: not
	// known.
	Session time.Duration

	// admin is the secret of a token of the scope ADMIN; empty: not known.
	admin       string
	postgresDSN string
	kafkaAddr   string
	owners      *Owners
	close       []func(context.Context) error // in the order of the start
}

// Postgres is the connection string of a superuser of the server that holds all
// databases; empty when it is not known.
func (s *Stack) Postgres() string { return s.postgresDSN }

// Kafka is the address of the broker; empty when it is not known.
func (s *Stack) Kafka() string { return s.kafkaAddr }

// Owners reads who owns the shards; nil when the stack's databases cannot be
// asked.
func (s *Stack) Owners() *Owners { return s.owners }

// Part returns the part of that name. A name without a number means the first
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
		return Part{}, fmt.Errorf("%q cannot be disturbed: this stack was not started here", name)
	}
	return Part{}, fmt.Errorf("%q is no part of this stack: it has %s", name, strings.Join(names, ", "))
}

// Programs returns the parts that are processes of taskd and dispatcher.
func (s *Stack) Programs() []Part {
	return slices.DeleteFunc(slices.Clone(s.Parts), func(p Part) bool {
		_, ours := p.Server.(*program)
		return !ours
	})
}

// Died returns an error that names the parts which ended without being told to.
func (s *Stack) Died() error {
	var errs []error
	for _, p := range s.Parts {
		if d, ok := p.Server.(interface{ died() error }); ok {
			errs = append(errs, d.died())
		}
	}
	return errors.Join(errs...)
}

// Revive starts the programs again that were ended, and returns when every shard
// has an owner and every dispatcher some.
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

// Close stops everything that was started, last first, and removes its data. It
// goes on after an error.
func (s *Stack) Close(ctx context.Context) error {
	var errs []error
	for _, f := range slices.Backward(s.close) {
		errs = append(errs, f(ctx))
	}
	s.close = nil
	return errors.Join(errs...)
}

// onClose adds a step to Close.
func (s *Stack) onClose(f func(context.Context) error) { s.close = append(s.close, f) }

// add makes a server that runs a part of the stack, and stops it on Close.
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

// Dev starts `taskd dev`: one process tree, which is the one part of the stack. It uses
// the options Keep and Progress only.
func Dev(ctx context.Context, o RealOptions) (*Stack, error) {
	return launch(ctx, o, func(s *Stack, dir string) error { return s.startDev(ctx, dir, o) })
}

func (s *Stack) startDev(ctx context.Context, dir string, o RealOptions) error {
	o.Progress("building and starting taskd dev")
	if err := build(ctx, filepath.Join(dir, "bin"), "taskd"); err != nil {
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
		logPath: filepath.Join(dir, "taskd-dev.log"), readyURL: fmt.Sprintf("http://127.0.0.1:%d/readyz", ops),
	}
	s.add(p.name, p)
	if err := p.start(ctx); err != nil {
		return err
	}
	return s.readBanner(ctx, p.logPath)
}

// readBanner learns from what taskd dev prints where it is.
func (s *Stack) readBanner(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, bannerWait)
	defer cancel()
	poll := time.NewTicker(readyEvery)
	defer poll.Stop()
	for {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read what taskd dev says: %w", err)
		}
		said := map[string]string{}
		for line := range strings.Lines(string(text)) {
			if words := strings.Fields(line); len(words) == 2 {
				said[words[0]] = words[1]
			}
		}
		s.Address, s.Token = said["gRPC"], said["token"]
		if s.Address != "" && s.Token != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("taskd dev does not say its address and token: %w", ctx.Err())
		case <-poll.C:
		}
	}
}
