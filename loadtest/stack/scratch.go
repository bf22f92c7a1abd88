package stack

import (
	"context"
	"fmt"
	"os"
)

// directory holds all data of a stack.
type directory struct {
	path string
	keep bool
	say  func(string)
}

// scratch makes a directory that every user may enter: PostgreSQL may run as
// another one.
func scratch(o RealOptions) (*directory, error) {
	path, err := os.MkdirTemp("", "perceptor-load-")
	if err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	return &directory{path: path, keep: o.Keep, say: o.Progress}, nil
}

// close removes the directory, unless it is to be kept.
func (d *directory) close(context.Context) error {
	if d.keep {
		d.say("data and logs are kept in " + d.path)
		return nil
	}
	return os.RemoveAll(d.path)
}
