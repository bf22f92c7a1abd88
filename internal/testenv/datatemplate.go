package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/perceptor/perceptor/internal/pgserver"
)

// TemplatesVariable is an environment variable with the directory of the data directories that
// servers start with. [Run] sets it for the command.
const TemplatesVariable = "PERCEPTOR_TEST_TEMPLATES"

// filling are settings for a server that fills a template: it leaves little log to copy.
var filling = map[string]string{"min_wal_size": "32MB", "max_wal_size": "64MB"}

// InitialData returns the data directory of a stopped PostgreSQL server whose database named postgres t has
// filled. A server that starts with a copy of it starts in less than a second; initdb and a migration take many.
// The servers share the system identifier. InitialData returns "" unless [Run] has started this process.
func InitialData(ctx context.Context, t Template) (dir string, err error) {
	all := os.Getenv(TemplatesVariable)
	if all == "" {
		return "", nil
	}
	dir = filepath.Join(all, t.Name)
	if err := ensureData(ctx, dir, t); err != nil {
		return "", fmt.Errorf("make the data directory %s: %w", t.Name, err)
	}
	return dir, nil
}

// StartsWith makes a new PostgreSQL server begin with a copy of [InitialData], if there is any.
func StartsWith(dir string) PostgresOption {
	return func(o *pgserver.Options) { o.Initial = dir }
}

// ensureData makes a filled data directory unless it exists. Concurrent processes wait for the first.
func ensureData(ctx context.Context, path string, t Template) error {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // nothing was written
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	draft := path + ".draft"
	if err := os.RemoveAll(draft); err != nil {
		return err
	}
	options := []PostgresOption{forTests}
	for name, value := range filling {
		options = append(options, Setting(name, value))
	}
	server, err := StartPostgres(ctx, draft, options...)
	if err != nil {
		return err
	}
	err = t.Fill(ctx, server.DSN())
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := errors.Join(err, server.Stop(stop)); err != nil {
		return err
	}
	return os.Rename(draft, path)
}
