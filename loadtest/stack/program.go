package stack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/internal/testenv"
)

const (
	readyWait  = 2 * time.Minute
	readyEvery = 20 * time.Millisecond
	probeWait  = 2 * time.Second
	lastWords  = 4 << 10
)

// program is a process of one of the project's own binaries. Its methods may be called
// concurrently.
type program struct {
	name    string
	path    string
	args    []string
	env     []string
	logPath string
	// readyURL answers 200 once the program serves.
	readyURL string
	// asks sends requests to the server for operators.
	asks *http.Client
	// tree says that the program has child processes.
	tree bool

	mu      sync.Mutex
	process *subprocess.Process
	ending  bool // Stop or Kill was called
}

// start runs the program and returns when it is ready.
func (p *program) start(ctx context.Context) error {
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: open log: %w", p.name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Env = append(plainEnviron(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	process, err := subprocess.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.process, p.ending = process, false
	p.mu.Unlock()
	return p.waitReady(ctx, process)
}

// plainEnviron returns the environment without the variables that configure Perceptor.
func plainEnviron() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PERCEPTOR_") })
}

func (p *program) waitReady(ctx context.Context, process *subprocess.Process) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	poll := time.NewTicker(readyEvery)
	defer poll.Stop()
	var last error
	for {
		if last = p.Answers(ctx); last == nil {
			return nil
		}
		select {
		case <-poll.C:
		case <-process.Done():
			return fmt.Errorf("%s ended before it was ready: %s", p.name, p.said())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%w): %s", p.name, last, p.said())
		}
	}
}

// answers returns nil if the readiness address answers 200.
func answers(ctx context.Context, asks *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := asks.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return nil
}

// Answers asks the program whether it is ready and waits a moment for the answer.
func (p *program) Answers(ctx context.Context) error { return answers(ctx, p.asks, p.readyURL) }

// said returns the end of the program's log.
func (p *program) said() string {
	text, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-lastWords):]))
}

func (p *program) running() (*subprocess.Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return nil, fmt.Errorf("%s was not started", p.name)
	}
	return p.process, nil
}

func (p *program) end() (*subprocess.Process, error) {
	process, err := p.running()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = true
	return process, nil
}

// died returns an error if the program ended without a call of Stop or Kill.
func (p *program) died() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil || p.ending || p.process.Running() {
		return nil
	}
	return fmt.Errorf("%s ended by itself (%s): %s", p.name, p.process.Exit(), p.said())
}

// Kill implements [Server].
func (p *program) Kill() error {
	process, err := p.end()
	if err != nil {
		return err
	}
	return process.Kill()
}

// Stop implements [Server]. A program that ignores SIGTERM is killed when ctx ends.
func (p *program) Stop(ctx context.Context) error {
	process, err := p.end()
	if err != nil {
		return err
	}
	if !process.Running() {
		return nil
	}
	if err := process.Signal(syscall.SIGCONT); err != nil && process.Running() {
		return err
	}
	return process.Stop(ctx, syscall.SIGTERM)
}

// Pause implements [Server].
func (p *program) Pause() error { return p.signal(syscall.SIGSTOP) }

// Resume implements [Server].
func (p *program) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *program) signal(sig syscall.Signal) error {
	process, err := p.running()
	if err != nil {
		return err
	}
	return process.Signal(sig)
}

// Restart implements [Server].
func (p *program) Restart(ctx context.Context) error {
	if err := p.Stop(ctx); err != nil {
		return err
	}
	return p.start(ctx)
}

// Replace starts a program of the stack again, with the program of the same name in
// another folder, as in an upgrade. It first stops the one that runs.
func (p Part) Replace(ctx context.Context, folder string) error {
	own, ok := p.Server.(*program)
	if !ok {
		return fmt.Errorf("%s is neither taskd nor dispatcher, so it cannot be replaced", p.Name)
	}
	if err := own.Stop(ctx); err != nil {
		return err
	}
	own.path = filepath.Join(folder, filepath.Base(own.path))
	return own.start(ctx)
}

// podGrace is how long an evicted program may take after its signal: terminationGracePeriodSeconds of the
// chart less the time before the signal.
const podGrace = 60 * time.Second

// ErrNotStopped says that an evicted program had to be killed.
var ErrNotStopped = errors.New("the program did not stop within its grace and was killed")

// Evict does to a program what Kubernetes does to a pod that it ends: it takes it out of the Services, waits (the
// hook preStop), sends SIGTERM, and kills it when its grace is over. Until the signal the program must be
// ready, and afterwards it must not be. Then a new one starts.
func (p Part) Evict(ctx context.Context, preStop time.Duration) error {
	own, ok := p.Server.(*program)
	if !ok {
		return fmt.Errorf("%s is neither taskd nor dispatcher, so it cannot be evicted", p.Name)
	}
	for _, wait := range []time.Duration{preStop, 0} {
		if err := own.Answers(ctx); err != nil {
			return fmt.Errorf("%s is not ready before its signal: %w", p.Name, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
	process, err := own.end()
	if err != nil {
		return err
	}
	if err := process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := own.awaitEnd(ctx, process); err != nil {
		return err
	}
	return own.start(ctx)
}

// awaitEnd waits for the end of a program that was told to stop, which must soon not be ready.
func (p *program) awaitEnd(ctx context.Context, process *subprocess.Process) error {
	over := time.After(podGrace)
	for ready := true; ready; ready = p.Answers(ctx) == nil {
		select {
		case <-process.Done():
			if strings.HasPrefix(p.name, "taskd") { // which serves on for a while
				return fmt.Errorf("%s ended while it said that it is ready", p.name)
			}
			return nil
		case <-over:
			return errors.Join(process.Kill(), fmt.Errorf("%w: %s is ready still: %s", ErrNotStopped, p.name, p.said()))
		case <-time.After(readyEvery):
		}
	}
	select {
	case <-process.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-over:
		return errors.Join(process.Kill(), fmt.Errorf("%w: %s: %s", ErrNotStopped, p.name, p.said()))
	}
}

// Folder returns the folder of a program of the stack, or "" for a server.
func (p Part) Folder() string {
	own, ok := p.Server.(*program)
	if !ok {
		return ""
	}
	return filepath.Dir(own.path)
}

// PID implements [Server].
func (p *program) PID() int {
	process, err := p.running()
	if err != nil {
		return 0
	}
	return process.PID()
}

// CPUTime implements [Server].
func (p *program) CPUTime() (time.Duration, error) {
	process, err := p.running()
	if err != nil {
		return 0, err
	}
	if p.tree {
		return treeTime(process.PID(), 2) // postgres and its backends
	}
	return subprocess.CPUTime(process.PID())
}

// treeTime returns the sum of the processor times of a process and its descendants, down to
// depth generations. The depth is limited because each search for children reads the whole
// process table.
func treeTime(pid, depth int) (time.Duration, error) {
	total, err := subprocess.CPUTime(pid)
	if err != nil || depth == 0 {
		return total, err
	}
	children, err := subprocess.Children(pid)
	if err != nil {
		return 0, err
	}
	for _, child := range children {
		if used, err := treeTime(child, depth-1); err == nil {
			total += used // an error means that it ended meanwhile; its time counts for its parent
		}
	}
	return total, nil
}

const (
	modulePath = "github.com/perceptor/perceptor"
	buildLimit = 5 * time.Minute
)

// built is the folder into which this process compiled programs last.
var built struct {
	sync.Mutex
	dir string
}

// buildPrograms compiles commands of this module into dir. The working directory must be inside the module.
// While an earlier stack of this process still has them, they are not linked again, which takes seconds.
func buildPrograms(ctx context.Context, dir string, commands ...string) error {
	built.Lock()
	defer built.Unlock()
	if built.dir != "" && share(built.dir, dir, commands) == nil {
		return nil
	}
	if err := build(ctx, "", dir, nil, commands...); err != nil {
		return err
	}
	built.dir = dir
	return nil
}

// share makes files of a folder files of another one, too.
func share(from, to string, names []string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Link(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return errors.Join(err, os.RemoveAll(to))
		}
	}
	return nil
}

// raceFlags are the flags to build programs with. The race detector more than doubles the processor
// time of a program, so only long tests have it in programs; packages have it in all tests.
func raceFlags() []string {
	if withRaces && testenv.Long() {
		return []string{"-race"}
	}
	return nil
}

// build compiles commands of the module in a tree, which is the working directory if it is "".
func build(ctx context.Context, tree, dir string, flags []string, commands ...string) error {
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	args := append([]string{"build", "-buildvcs=false", "-o", dir + string(filepath.Separator)}, slices.Concat(raceFlags(), flags)...)
	for _, c := range commands {
		args = append(args, modulePath+"/cmd/"+c)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.WaitDelay = tree, time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %v: %w: %s", commands, err, bytes.TrimSpace(out))
	}
	return nil
}

// program returns the program of the stack with the given name.
func (s *Stack) program(name string) (*program, error) {
	part, err := s.Part(name)
	if err != nil {
		return nil, err
	}
	p, ok := part.Server.(*program)
	if !ok {
		return nil, fmt.Errorf("%s is neither taskd nor dispatcher, so it serves no operators", part.Name)
	}
	return p, nil
}

// OpsAddress returns the address, host:port, at which a program serves operators.
func (s *Stack) OpsAddress(name string) (string, error) {
	p, err := s.program(name)
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut(p.readyURL, "://")
	return strings.TrimSuffix(rest, "/readyz"), nil
}

// BuildPrograms compiles taskd and dispatcher into dir, with more flags of go build.
func BuildPrograms(ctx context.Context, dir string, flags ...string) error {
	return build(ctx, "", dir, flags, "taskd", "dispatcher")
}

// BuildCommit compiles taskd and dispatcher of a commit into dir/bin. The working directory must
// be inside a clone that has the commit.
func BuildCommit(ctx context.Context, dir, commit string) error {
	limited, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	tree := filepath.Join(dir, "tree")
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return err
	}
	const copyFiles = `cd "$(git rev-parse --show-toplevel)" && git archive --end-of-options "$0" | tar -x -C "$1"`
	if out, err := exec.CommandContext(limited, "sh", "-c", copyFiles, commit, tree).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the files of commit %s: %w: %s", commit, err, bytes.TrimSpace(out))
	}
	return build(ctx, tree, filepath.Join(dir, "bin"), nil, "taskd", "dispatcher")
}

// Metrics reads the Prometheus metrics of a program of the stack. The keys of values are
// metric names with labels, as the program writes them.
func (s *Stack) Metrics(ctx context.Context, name string) (values map[string]float64, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read the metrics of %s: %w", name, err)
		}
	}()
	p, err := s.program(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(p.readyURL, "/readyz")+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.asks.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	values = map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Text()
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
				values[line[:i]] = v
			}
		}
	}
	return values, lines.Err()
}

// BuildCommand compiles one more command of the module into dir.
func BuildCommand(ctx context.Context, dir, name string) error { return build(ctx, "", dir, nil, name) }
