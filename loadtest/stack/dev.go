package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
)

const bannerWait = 30 * time.Second

// Dev starts `taskd dev`: one process tree, which is the one part of the stack.
// Of the options only Keep and Progress count.
func Dev(ctx context.Context, o RealOptions) (*Stack, error) {
	dir, err := newScratch(o)
	if err != nil {
		return nil, err
	}
	s := &Stack{Versions: map[string]string{}}
	s.onClose(dir.Close)
	if err := s.startDev(ctx, dir.Path, o); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
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
