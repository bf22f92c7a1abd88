package pgserver

import (
	"os"
	"path/filepath"
	"strconv"
)

// usersOf returns the PostgreSQL processes whose working directory is dir. All processes of a server work
// in its data directory. The process id in the pid file is not needed on Linux.
func usersOf(dir string, _ int) []int {
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil
	}
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return nil
	}
	var pids []int
	for _, link := range links {
		if cwd, err := os.Readlink(link); err != nil || cwd != resolved {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil && isPostgres(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isPostgres(pid int) bool {
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	return err == nil && (string(name) == "postgres\n" || string(name) == "postmaster\n")
}
