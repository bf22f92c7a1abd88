package pgserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// The supported major versions.
const (
	oldestMajor = 15
	newestMajor = 18
)

// Binaries locates the programs of one PostgreSQL installation.
type Binaries struct {
	// Dir is the directory with initdb and postgres.
	Dir string
	// Major is the major version, such as 17.
	Major int
}

// places are the directories of packaged PostgreSQL programs, as patterns of [filepath.Glob].
var places = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // PGDG on Red Hat
	"/usr/libexec/postgresql*",  // Alpine
	"/opt/homebrew/opt/*/bin",   // Homebrew on Apple silicon
	"/usr/local/opt/*/bin",      // Homebrew on Intel
	"/usr/local/pgsql/bin",      // from source
	"/usr/local/pgsql-*/bin",    // from source
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

var versionWords = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// Find returns the newest supported PostgreSQL on the machine. It searches PATH and the directories of
// packages. It returns [ErrNotFound] if it finds none.
func Find(ctx context.Context) (Binaries, error) { return findMajor(ctx, 0) }

// findMajor is Find for one major version; 0 stands for the newest.
func findMajor(ctx context.Context, major int) (Binaries, error) {
	all := installed(ctx)
	slices.SortStableFunc(all, func(a, b Binaries) int { return b.Major - a.Major })
	for _, b := range all {
		if major == 0 || b.Major == major {
			return b, nil
		}
	}
	if major != 0 {
		return Binaries{}, fmt.Errorf("%w: the data directory needs %d", ErrNotFound, major)
	}
	return Binaries{}, ErrNotFound
}

func installed(ctx context.Context) []Binaries {
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range places {
		found, err := filepath.Glob(pattern)
		if err != nil {
			continue // does not happen, since the patterns are constants
		}
		dirs = append(dirs, found...)
	}
	var all []Binaries
	for _, dir := range dirs {
		if b, err := binariesIn(ctx, dir); err == nil {
			all = append(all, b)
		}
	}
	return all
}

// binariesIn returns the binaries in one directory, or an error if there are none of a supported version.
func binariesIn(ctx context.Context, dir string) (Binaries, error) {
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return Binaries{}, err
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return Binaries{}, fmt.Errorf("ask %s for its version: %w", dir, err)
	}
	words := versionWords.FindSubmatch(out)
	if words == nil {
		return Binaries{}, fmt.Errorf("ask %s for its version: it printed %q", dir, out)
	}
	major, err := strconv.Atoi(string(words[1]))
	if err != nil {
		return Binaries{}, fmt.Errorf("ask %s for its version: %w", dir, err)
	}
	if major < oldestMajor || major > newestMajor {
		return Binaries{}, fmt.Errorf("%s has PostgreSQL %d, want %d to %d", dir, major, oldestMajor, newestMajor)
	}
	return Binaries{Dir: dir, Major: major}, nil
}
