package tempdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func gone(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func TestADirectoryGoesWithItsProcess(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	first, err := New("tempdir-", false)
	if err != nil {
		t.Fatal(err)
	}
	second, err := New("tempdir-", false)
	if err != nil {
		t.Fatal(err)
	}
	if gone(t, first.Path) {
		t.Error("the directory of a living owner was removed")
	}
	first.unlock() // the end of a process has the same effect
	third, err := New("tempdir-", true)
	if err != nil {
		t.Fatal(err)
	}
	if !gone(t, first.Path) {
		t.Error("New did not remove an orphan")
	}
	for _, d := range []*Dir{second, third} {
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if !gone(t, second.Path) {
		t.Error("Close did not remove the directory")
	}
	if gone(t, third.Path) || !gone(t, filepath.Join(third.Path, lockName)) {
		t.Error("Close removed a directory to be kept or left its lock file")
	}
}
