//go:build unix && !linux

package subprocess

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"time"
)

// Children returns the ids of the processes whose parent is pid. It returns none if pid has ended.
func Children(pid int) ([]int, error) {
	out, err := exec.Command("ps", "-axo", "pid=,ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var children []int
	for line := range bytes.Lines(out) {
		fields := bytes.Fields(line)
		if len(fields) != 2 || string(fields[1]) != strconv.Itoa(pid) {
			continue
		}
		if child, err := strconv.Atoi(string(fields[0])); err == nil {
			children = append(children, child)
		}
	}
	return children, nil
}

// Alive reports whether pid is a running process. A zombie is not running.
func Alive(pid int) bool {
	out, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !bytes.HasPrefix(out, []byte("Z"))
}

// stopped always returns true. These systems do not show the states of threads, but a process stops
// soon after SIGSTOP.
func stopped(int) bool { return true }

// CPUTime is supported on Linux only. Here it returns [errors.ErrUnsupported].
func CPUTime(int) (time.Duration, error) {
	return 0, fmt.Errorf("read processor time: %w", errors.ErrUnsupported)
}

// Memory is supported on Linux only. Here it returns [errors.ErrUnsupported].
func Memory(int) (now, peak int64, err error) {
	return 0, 0, fmt.Errorf("read memory: %w", errors.ErrUnsupported)
}

// Thread is a thread of a process.
type Thread struct {
	Name string
	// Used is its user and system processor time.
	Used time.Duration
}

// Threads is supported on Linux only. Here it returns [errors.ErrUnsupported].
func Threads(int) (map[int]Thread, error) {
	return nil, fmt.Errorf("list threads: %w", errors.ErrUnsupported)
}

// TreeMemory is supported on Linux only. Here it returns [errors.ErrUnsupported].
func TreeMemory(int) (sum int64, err error) {
	return 0, fmt.Errorf("read memory: %w", errors.ErrUnsupported)
}
