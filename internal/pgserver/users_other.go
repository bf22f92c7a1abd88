//go:build unix && !linux

package pgserver

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// usersOf returns pid if it is a PostgreSQL process. It does not check the directory of the process,
// which these systems do not show.
func usersOf(_ string, pid int) []int {
	out, err := exec.Command("ps", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return nil
	}
	if name := filepath.Base(strings.TrimSpace(string(out))); name != "postgres" && name != "postmaster" {
		return nil
	}
	return []int{pid}
}
