package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perceptor/perceptor/internal/tempdir"
)

const scratchPrefix = "perceptor-test-"

// newScratch makes a temporary directory that every user may enter and that does not outlive its process.
func newScratch() (*tempdir.Dir, error) { return tempdir.New(scratchPrefix, false) }

// serverDir returns the path of a server's directory within a temporary directory.
func serverDir(place *tempdir.Dir, name string) string {
	return filepath.Join(place.Path, strings.ToLower(name))
}

// private starts a server for one test and stops it when the test ends.
func private[S interface{ Stop(context.Context) error }](tb testing.TB, start func(context.Context, string) (S, error)) S {
	tb.Helper()
	place, err := newScratch()
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := start(ctx, serverDir(place, "server"))
	if err != nil {
		tb.Fatal(errors.Join(err, place.Close(ctx)))
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := errors.Join(server.Stop(ctx), place.Close(ctx)); err != nil {
			tb.Error(err)
		}
	})
	return server
}

// Root returns a ZooKeeper path that no other test uses, such as /perceptor-test-x. It does not create
// the node.
func Root(tb testing.TB) string {
	tb.Helper()
	return "/perceptor-test-" + randomName()
}

// TopicPrefix returns a prefix for names of topics and groups that no other test uses. It ends with a dot.
func TopicPrefix(tb testing.TB) string {
	tb.Helper()
	return "test-" + randomName() + "."
}

func randomName() string { return strings.ToLower(rand.Text()[:12]) }
