package harness

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// ProfileVariable is the environment variable with the folder in which this program's listener
// processes leave profiles of their lives. It is unset without --profile.
const ProfileVariable = "LOADTEST_PROFILE"

// Profile declares --profile: what each program spends its processor time on.
func (f *Flags) Profile() {
	f.StringVar(&f.common.Profile, "profile", f.common.Profile, "folder for CPU profiles of the programs in the window, and list their packages and Kafka's threads; costs some percent itself")
}

// prepareProfile makes the programs of the stack serve profiles.
func (s *Setup) prepareProfile() error {
	if err := os.MkdirAll(s.Profile, 0o755); err != nil {
		return fmt.Errorf("use --profile: %w", err)
	}
	path, err := filepath.Abs(s.Profile)
	if err != nil {
		return fmt.Errorf("use --profile: %w", err)
	}
	s.Profile = path
	s.Real.Settings = maps.Clone(s.Real.Settings)
	if s.Real.Settings == nil {
		s.Real.Settings = map[string]string{}
	}
	s.Real.Settings["ops.pprof"] = "true"
	return os.Setenv(ProfileVariable, path)
}

// ProfileLife profiles this process until the returned function is called, if
// [ProfileVariable] is set.
func ProfileLife() (end func(), err error) {
	dir := os.Getenv(ProfileVariable)
	if dir == "" {
		return func() {}, nil
	}
	file, err := os.Create(filepath.Join(dir, fmt.Sprintf("listener-%d.pprof", os.Getpid())))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close()
	}, nil
}

// Share is what part of a program's processor time belongs to something.
type Share struct {
	Of      string  `json:"of"`
	Percent float64 `json:"percent"`
}

// ProfileWindow profiles taskd, dispatcher, this process and Kafka's threads for a time. Nothing
// is returned for a program that does not answer.
func ProfileWindow(ctx context.Context, s *stack.Stack, dir string, length time.Duration) map[string][]Share {
	ctx, cancel := context.WithTimeout(ctx, length+probeMargin)
	defer cancel()
	shares := map[string][]Share{}
	var mu sync.Mutex
	var all sync.WaitGroup
	put := func(name string, list []Share, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			shares[name] = list
		}
	}
	for _, part := range s.Programs() {
		all.Go(func() {
			list, err := profileProgram(ctx, s, part.Name, dir, length)
			put(part.Name, list, err)
		})
	}
	for _, part := range s.Parts {
		if strings.HasPrefix(part.Name, "kafka") {
			all.Go(func() {
				list, err := threads(ctx, part.Server.PID(), length)
				put(part.Name, list, err)
			})
		}
	}
	all.Wait()
	return shares
}

// probeMargin is the time for an answer beside the profile itself.
const probeMargin = 10 * time.Second

// profileProgram profiles a program of the stack and leaves the profile in dir.
func profileProgram(ctx context.Context, s *stack.Stack, name, dir string, length time.Duration) ([]Share, error) {
	path := filepath.Join(dir, name+".pprof")
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	err = s.AskOps(ctx, name, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(max(length.Seconds(), 1))), file)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	return PackagesOf(ctx, path)
}

// mostShares is the number of entries of a list; the rest is summed up.
const mostShares = 14

// PackagesOf returns the packages in which a profile was taken, the most expensive first.
func PackagesOf(ctx context.Context, path string) ([]Share, error) {
	out, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-top", "-nodecount=100000", "-nodefraction=0", "-unit=ms", path).Output()
	if err != nil {
		return nil, fmt.Errorf("read profile %s: %w", filepath.Base(path), err)
	}
	by, err := packages(out)
	if err != nil {
		return nil, fmt.Errorf("read profile %s: %w", filepath.Base(path), err)
	}
	return sharesOf(by), nil
}

// packages sums the table of pprof -top by package. Its lines are: flat, flat%, sum%, cum, cum%,
// function.
func packages(table []byte) (map[string]float64, error) {
	by := map[string]float64{}
	lines := bufio.NewScanner(bytes.NewReader(table))
	lines.Buffer(nil, 1<<20)
	for begun := false; lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if !begun {
			begun = len(fields) > 0 && fields[0] == "flat"
			continue
		}
		if len(fields) < 6 {
			continue
		}
		ms, err := strconv.ParseFloat(strings.TrimSuffix(fields[0], "ms"), 64)
		if err != nil {
			return nil, fmt.Errorf("unexpected line %q", lines.Text())
		}
		by[packageOf(fields[5])] += ms
	}
	return by, lines.Err()
}

// packageOf returns the package of a function: without the dots of its path, everything before
// the first dot after the last slash. Parts of the runtime are one package, and system
// calls another.
func packageOf(function string) string {
	slash := strings.LastIndexByte(function, '/') + 1
	if bracket := strings.IndexByte(function, '['); bracket >= 0 && bracket < slash { // type arguments
		slash = strings.LastIndexByte(function[:bracket], '/') + 1
	}
	name, _, _ := strings.Cut(function[slash:], ".")
	name = function[:slash] + name
	switch {
	case strings.HasPrefix(name, "internal/runtime/syscall"), name == "syscall", function == "runtime.futex", function == "runtime.epollwait":
		return "system calls"
	case strings.HasPrefix(name, "runtime"), strings.HasPrefix(name, "internal/runtime/"):
		return "runtime"
	}
	name = strings.TrimPrefix(name, "github.com/perceptor/perceptor/")
	if vendor, rest, ok := strings.Cut(name, "/"); ok && strings.Contains(vendor, ".") {
		parts := strings.SplitN(rest, "/", 3)
		return strings.Join(parts[:min(len(parts), 2)], "/")
	}
	return name
}

// threads returns how the processor time of a process is divided between the names of its
// threads.
func threads(ctx context.Context, pid int, length time.Duration) ([]Share, error) {
	before, err := subprocess.Threads(pid)
	if err != nil {
		return nil, err
	}
	if err := Sleep(ctx, length); err != nil {
		return nil, err
	}
	after, err := subprocess.Threads(pid)
	if err != nil {
		return nil, err
	}
	by := map[string]float64{}
	for id, t := range after {
		by[t.Name] += float64((t.Used - before[id].Used).Milliseconds())
	}
	return sharesOf(by), nil
}

// sharesOf returns the parts of a sum, the largest first.
func sharesOf(by map[string]float64) (list []Share) {
	sum := 0.0
	for _, v := range by {
		sum += v
	}
	if sum <= 0 {
		return nil
	}
	for of, v := range by {
		list = append(list, Share{of, Round(100 * v / sum)})
	}
	slices.SortFunc(list, func(a, b Share) int {
		return cmp.Or(-cmp.Compare(a.Percent, b.Percent), strings.Compare(a.Of, b.Of))
	})
	if len(list) > mostShares {
		rest := Share{Of: fmt.Sprintf("%d others", len(list)-mostShares)}
		for _, s := range list[mostShares:] {
			rest.Percent += s.Percent
		}
		rest.Percent = Round(rest.Percent)
		list = append(list[:mostShares], rest)
	}
	return list
}

// Shares adds a line for each share of each process.
func (t *Table) Shares(by map[string][]Share) {
	for _, name := range slices.Sorted(maps.Keys(by)) {
		t.Line("  %s", name)
		for _, s := range by[name] {
			t.Line("    %6.1f %%  %s", s.Percent, s.Of)
		}
	}
}

// ListenerProfiles returns what listener processes, which have ended, have left in the folder.
func ListenerProfiles(ctx context.Context, dir string) map[string][]Share {
	shares := map[string][]Share{}
	paths, _ := filepath.Glob(filepath.Join(dir, "listener-*.pprof")) // the pattern is well formed
	for _, path := range paths {
		if list, err := PackagesOf(ctx, path); err == nil {
			shares[strings.TrimSuffix(filepath.Base(path), ".pprof")] = list
		}
	}
	return shares
}
