package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// ZooKeeperEnsemble is a group of ZooKeeper servers that elect a leader. Each server may be killed,
// paused and restarted separately. The ensemble serves while a majority of its servers runs.
type ZooKeeperEnsemble struct{ Servers []*ZooKeeperServer }

// NewZooKeeperEnsemble starts an ensemble for one test.
func NewZooKeeperEnsemble(tb testing.TB, servers int, opts ...ZooKeeperOption) *ZooKeeperEnsemble {
	tb.Helper()
	return private(tb, func(ctx context.Context, dir string) (*ZooKeeperEnsemble, error) {
		return StartZooKeeperEnsemble(ctx, dir, servers, opts...)
	})
}

// StartZooKeeperEnsemble starts an ensemble with its data in dir and returns when all servers serve. If
// another process binds one of the chosen ports first, it tries again with other ports, a few times.
func StartZooKeeperEnsemble(ctx context.Context, dir string, servers int, opts ...ZooKeeperOption) (e *ZooKeeperEnsemble, err error) {
	for try := range bindTries {
		if e, err = startEnsemble(ctx, filepath.Join(dir, strconv.Itoa(try)), servers, opts); err == nil || !strings.Contains(err.Error(), "Address already in use") {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("start ZooKeeper ensemble: %w", err)
	}
	return e, nil
}

func startEnsemble(ctx context.Context, dir string, servers int, opts []ZooKeeperOption) (*ZooKeeperEnsemble, error) {
	e := &ZooKeeperEnsemble{}
	var peers strings.Builder
	ports := make([]int, servers)
	for i := range servers {
		var own [3]int // for clients, for followers, for elections
		for j := range own {
			port, err := subprocess.FreePort()
			if err != nil {
				return nil, err
			}
			own[j] = port
		}
		ports[i] = own[0]
		fmt.Fprintf(&peers, "server.%d=127.0.0.1:%d:%d\n", i+1, own[1], own[2])
	}
	peers.WriteString("initLimit=20\nsyncLimit=10\n")
	for i, port := range ports {
		s, err := prepareMember(ctx, filepath.Join(dir, strconv.Itoa(i+1)), i+1, port, peers.String(), opts)
		if err != nil {
			return nil, err
		}
		e.Servers = append(e.Servers, s)
	}
	if err := e.each(func(s *ZooKeeperServer) error { return s.launch(ctx) }); err != nil {
		return nil, errors.Join(err, e.Stop(ctx))
	}
	return e, nil
}

// prepareMember writes the files of a server but does not start it.
func prepareMember(ctx context.Context, dir string, id, port int, peers string, opts []ZooKeeperOption) (*ZooKeeperServer, error) {
	o := zookeeperOptions{tick: defaultTick}
	for _, opt := range opts {
		opt(&o)
	}
	s, config, err := newZooKeeper(ctx, dir, o.secure)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "myid"), []byte(strconv.Itoa(id)), 0o600); err != nil {
		return nil, err
	}
	s.addr = fmt.Sprintf("127.0.0.1:%d", port)
	text, err := zookeeperConfig(dir, port, o)
	if err != nil {
		return nil, err
	}
	return s, os.WriteFile(config, append(text, peers...), 0o600)
}

// Addrs returns host:port of each server.
func (e *ZooKeeperEnsemble) Addrs() []string {
	addrs := make([]string, len(e.Servers))
	for i, s := range e.Servers {
		addrs[i] = s.Addr()
	}
	return addrs
}

// Kill ends all servers with SIGKILL.
func (e *ZooKeeperEnsemble) Kill() error { return e.each((*ZooKeeperServer).Kill) }

// Stop kills all servers, because their data is not needed afterwards.
func (e *ZooKeeperEnsemble) Stop(context.Context) error {
	return e.each(func(s *ZooKeeperServer) error {
		if s.PID() == 0 {
			return nil // the server was never started
		}
		return s.Kill()
	})
}

// Restart concurrently starts all servers that do not run, resumes paused ones, and returns when all
// servers serve. After a pause a server may take half a minute to find its leader.
func (e *ZooKeeperEnsemble) Restart(ctx context.Context) error {
	return e.each(func(s *ZooKeeperServer) error {
		if !s.running() {
			return s.launch(ctx)
		}
		if err := s.Resume(); err != nil {
			return err
		}
		for {
			err := s.answers(ctx)
			if err == nil {
				return nil
			}
			select {
			case <-ctx.Done():
				return err
			case <-time.After(pollEvery):
			}
		}
	})
}

func (s *javaServer) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process != nil && s.process.Running()
}

func (e *ZooKeeperEnsemble) each(f func(*ZooKeeperServer) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(e.Servers))
	for i, s := range e.Servers {
		wg.Go(func() { errs[i] = f(s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
