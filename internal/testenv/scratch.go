package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perceptor/perceptor/internal/subprocess"
)

const (
	scratchPattern = "perceptor-test-*"
	ownerName      = "owner.lock"
)

// scratch is a directory of temporary data that goes with its process: close removes it, and when the
// process was killed first, the next one that makes a scratch directory does.
type scratch struct {
	dir    string
	unlock func()
}

// newScratch makes a scratch directory that every user may enter.
func newScratch() (*scratch, error) {
	removeOrphans()
	dir, err := os.MkdirTemp("", scratchPattern)
	if err != nil {
		return nil, fmt.Errorf("create scratch directory: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open scratch directory: %w", err)
	}
	unlock, err := subprocess.TryLockFile(filepath.Join(dir, ownerName))
	if err != nil {
		return nil, fmt.Errorf("own scratch directory: %w", err)
	}
	return &scratch{dir: dir, unlock: unlock}, nil
}

func (s *scratch) path(name string) string { return filepath.Join(s.dir, strings.ToLower(name)) }

func (s *scratch) close() error {
	s.unlock()
	return os.RemoveAll(s.dir)
}

// removeOrphans removes the scratch directories whose owner is gone: its lock went with it.
func removeOrphans() {
	locks, err := filepath.Glob(filepath.Join(os.TempDir(), scratchPattern, ownerName))
	if err != nil {
		return
	}
	for _, lock := range locks {
		unlock, err := subprocess.TryLockFile(lock)
		if err != nil {
			continue
		}
		os.RemoveAll(filepath.Dir(lock)) // if not now, the next one tries again
		unlock()
	}
}

// private starts a server for one test and stops it at the test's end.
func private[S interface{ Stop(context.Context) error }](tb testing.TB, start func(context.Context, string) (S, error)) S {
	tb.Helper()
	place, err := newScratch()
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := start(ctx, place.path("server"))
	if err != nil {
		tb.Fatal(errors.Join(err, place.close()))
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := errors.Join(server.Stop(ctx), place.close()); err != nil {
			tb.Error(err)
		}
	})
	return server
}

// Root returns a ZooKeeper path that no other test uses, such as /perceptor-test-x. It is not created.
func Root(tb testing.TB) string {
	tb.Helper()
	return "/perceptor-test-" + randomName()
}

// TopicPrefix returns a prefix of topic and group names that no other test uses, with a dot at its end.
func TopicPrefix(tb testing.TB) string {
	tb.Helper()
	return "test-" + randomName() + "."
}

func randomName() string { return strings.ToLower(rand.Text()[:12]) }
