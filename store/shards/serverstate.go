package shards

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # The disk of a server
//
// PostgreSQL tells no user how much of its disk is free. So the space is known in two cases only, and
// of both the smaller one counts:
//
//   - The operator has configured the size of the disk. What the databases and the log do not use is
//     free. Of databases that this program may not connect to nothing is known. The log counts as max_wal_size if
//     this program may not read its size.
//   - The server is on this machine, and this program may read its directory: the file systems of
//     the data and of the log are asked.

// ServerOf returns the lowest database on the server of database d. It changes when databases move.
func (s *Store) ServerOf(d int) int { return s.db.FirstOfServer(d) }

// ServerLoad returns what the server of database d has to do with its log.
func (s *Store) ServerLoad(ctx context.Context, d int) (l task.ServerLoad, err error) {
	err = sql.ServerLoad.QueryRow(ctx, s.db.Pool(d)).Scan(&l.SinceCheckpoint, &l.MaxLog, &l.Unarchived, &l.Retained, &l.Unreplayed)
	if err != nil {
		return l, kernel.Unavailable(fmt.Errorf("read the load of a server: %w", err))
	}
	return l, nil
}

// ServerSpace returns what is known of the disk of the server of database d. After an error that is
// which databases it has.
func (s *Store) ServerSpace(ctx context.Context, d int) (task.ServerSpace, error) {
	at := s.ServerOf(d)
	var out task.ServerSpace
	for other := range task.Databases {
		if s.ServerOf(other) == at {
			out.Databases = append(out.Databases, other)
		}
	}
	var used, start int64
	var mayReadLog bool
	var directory, port string
	err := sql.ServerSpace.QueryRow(ctx, s.db.Pool(d)).Scan(&used, &mayReadLog, &out.MaxLog, &directory, &port, &start)
	if err != nil {
		return task.ServerSpace{Databases: out.Databases}, kernel.Unavailable(fmt.Errorf("read the space of a server: %w", err))
	}
	if size := s.db.Storage(d); size > 0 {
		log := out.MaxLog
		if mayReadLog {
			if err := sql.ServerLogBytes.QueryRow(ctx, s.db.Pool(d)).Scan(&log); err != nil {
				return out, kernel.Unavailable(fmt.Errorf("read the space of a server: %w", err))
			}
		}
		out.Total, out.Free = size, max(size-used-log, 0)
	}
	if !s.db.Local(d) || directory == "" || !isDirectoryOf(directory, port, start) {
		return out, nil
	}
	for _, dir := range []string{directory, filepath.Join(directory, "pg_wal")} {
		total, free, err := fileSystem(dir)
		if err != nil {
			continue // what is not known does not count
		}
		if out.Total == 0 || free < out.Free {
			out.Total, out.Free = total, free
		}
	}
	return out, nil
}

// startSlack is the most seconds between the start that a server writes into its directory and the
// one that it tells.
const startSlack = 60

// isDirectoryOf reports whether a directory of this machine is that of a server with a port that was
// started at an instant, in Unix seconds. A server in a container, or behind a tunnel, has its directory
// elsewhere.
func isDirectoryOf(directory, port string, start int64) bool {
	text, err := os.ReadFile(filepath.Join(directory, "postmaster.pid")) // pid, directory, start, port, ...
	lines := strings.Split(string(text), "\n")
	if err != nil || len(lines) < 4 || strings.TrimSpace(lines[3]) != port {
		return false
	}
	written, err := strconv.ParseInt(strings.TrimSpace(lines[2]), 10, 64)
	return err == nil && written <= start+startSlack && start <= written+startSlack
}

var errNoFileSystem = errors.New("the file system tells no size")

// fileSystem returns the size of a file system and what is free of it for this user, in bytes.
func fileSystem(dir string) (total, free int64, err error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, 0, err
	}
	block := int64(fs.Bsize) //nolint:unconvert // other systems have another type
	total, free = int64(fs.Blocks)*block, int64(fs.Bavail)*block
	if total <= 0 {
		return 0, 0, errNoFileSystem
	}
	return total, free, nil
}
