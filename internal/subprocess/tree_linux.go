package subprocess

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// clockTicks is the kernel's USER_HZ, 100 on every architecture that Go runs on.
const clockTicks = 100

// Children returns the ids of the processes whose parent is pid. It returns none if pid has ended.
func Children(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var children []int
	for _, path := range stats {
		fields, err := statFields(path)
		if err != nil {
			continue // the process has ended since the listing
		}
		if parent, _ := strconv.Atoi(fields[1]); parent != pid {
			continue
		}
		if child, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			children = append(children, child)
		}
	}
	return children, nil
}

// Alive reports whether pid is a running process. A zombie is not running.
func Alive(pid int) bool {
	fields, err := statFields(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && fields[0] != "Z" && fields[0] != "X"
}

// stopped reports whether every thread of a process is stopped or has ended.
func stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range threads {
		fields, err := statFields(path)
		if err == nil && !slices.Contains(stoppedStates, fields[0]) {
			return false
		}
	}
	return err == nil
}

// stoppedStates are the states of threads that do not run again by themselves: stopped by a signal,
// stopped by a debugger, zombie, dead.
var stoppedStates = []string{"T", "t", "Z", "X"}

// CPUTime returns the user and system processor time that pid and those of its children that it has
// waited for have used.
func CPUTime(pid int) (time.Duration, error) {
	fields, err := statFields(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read processor time of pid %d: %w", pid, err)
	}
	var ticks int64
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor time of pid %d: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / clockTicks, nil
}

// Memory returns the resident memory of a process now and its peak, in bytes.
func Memory(pid int) (now, peak int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read memory of pid %d: %w", pid, err)
	}
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		to := map[string]*int64{"VmRSS": &now, "VmHWM": &peak}[string(name)]
		if to == nil {
			continue
		}
		if *to, err = strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))), 10, 64); err != nil {
			return 0, 0, fmt.Errorf("read memory of pid %d: %w", pid, err)
		}
		*to <<= 10
	}
	return now, peak, nil
}

// TreeMemory returns the memory of a process and its children in bytes. What several of them share,
// such as the shared buffers of PostgreSQL, counts once (their proportional set sizes, added up).
func TreeMemory(pid int) (sum int64, err error) {
	children, err := Children(pid)
	if err != nil {
		return 0, err
	}
	if sum, err = proportional(pid); err != nil {
		return 0, err
	}
	for _, child := range children {
		if n, err := proportional(child); err == nil { // otherwise it has just ended
			sum += n
		}
	}
	return sum, nil
}

// proportional returns the proportional set size of a process: its own memory, and its part of what
// it shares.
func proportional(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, fmt.Errorf("read memory of pid %d: %w", pid, err)
	}
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte("Pss:")); ok {
			kb, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read memory of pid %d: %w", pid, err)
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("read memory of pid %d: it has no set size", pid)
}

// statFields returns the fields of a /proc stat file that follow the command's name, state first.
func statFields(path string) ([]string, error) {
	line, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(line, ')') // the name may hold spaces and parentheses
	var fields []string
	for _, field := range bytes.Fields(line[end+1:]) {
		fields = append(fields, string(field))
	}
	if len(fields) < 15 {
		return nil, errors.New("unexpected format of " + path)
	}
	return fields, nil
}

// Thread is a thread of a process.
type Thread struct {
	Name string
	// Used is its user and system processor time.
	Used time.Duration
}

// Threads returns the threads of a process by their ids.
func Threads(pid int) (map[int]Thread, error) {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("list the threads of pid %d: %w", pid, errors.Join(err, os.ErrNotExist))
	}
	threads := make(map[int]Thread, len(paths))
	for _, path := range paths {
		name, err := os.ReadFile(filepath.Join(path, "comm"))
		if err != nil {
			continue // it has ended since the listing
		}
		fields, err := statFields(filepath.Join(path, "stat"))
		if err != nil {
			continue
		}
		id, _ := strconv.Atoi(filepath.Base(path))
		user, _ := strconv.ParseInt(fields[11], 10, 64)
		system, _ := strconv.ParseInt(fields[12], 10, 64)
		threads[id] = Thread{Name: string(bytes.TrimSpace(name)), Used: time.Duration(user+system) * time.Second / clockTicks}
	}
	return threads, nil
}
