package backlog

import (
	"fmt"
	"os"
	"path/filepath"
)

// UseDataDir makes dir, if given, the place of everything temporary: the servers'
// data too, which goes with the run.
func UseDataDir(dir string) error {
	if dir == "" {
		return nil
	}
	path, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(path, 0o755)
	}
	if err == nil {
		err = os.Setenv("TMPDIR", path)
	}
	if err != nil {
		return fmt.Errorf("use --data-dir: %w", err)
	}
	return nil
}
