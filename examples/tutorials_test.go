package examples_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/dev"
	"github.com/perceptor/perceptor/internal/pages"
	"github.com/perceptor/perceptor/store/storetest"
)

// root is the root of the repository, in which readers type the commands.
const root = ".."

// TestTheTutorialsDoWhatTheySay runs the commands of each tutorial and compares what they
// print. A block of "sh" is run to its end and must succeed, one of "sh again" until it prints
// what follows, and one of "sh background" runs until the end of the page. A block of "text" has lines, or parts of lines, that the command before it prints, in this
// order, and one of "text background" those of the background; other numbers are as good. Blocks of "shell" are not run: the
// test has an installation and perceptorctl already.
func TestTheTutorialsDoWhatTheySay(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	all, err := pages.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	r := startReader(t)
	ran := 0
	for _, p := range all {
		if filepath.Dir(p.Path) != "docs/tutorials" {
			continue
		}
		t.Run(filepath.Base(p.Path), func(t *testing.T) { ran += r.follow(t, p) })
	}
	t.Run("orders", r.orders)
	if ran < 10 {
		t.Errorf("ran %d commands, which is too few to be all of them", ran)
	}
}

// reader follows tutorials beside an installation.
type reader struct{ environ []string }

// startReader starts an installation and builds perceptorctl.
func startReader(t *testing.T) *reader {
	t.Helper()
	bin := t.TempDir()
	ctl := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-o", bin, "./cmd/perceptorctl")
	ctl.Dir = root
	if out, err := ctl.CombinedOutput(); err != nil {
		t.Fatalf("build perceptorctl: %v\n%s", err, out)
	}
	ctx, cancel := context.WithCancel(context.Background())
	initial := storetest.Initial(t)
	ready, done := make(chan dev.Info, 1), make(chan error, 1)
	go func() {
		done <- dev.Run(ctx, dev.Options{
			Ephemeral: true, InitialPostgres: initial, Version: "test", Out: io.Discard, Log: slog.New(slog.DiscardHandler),
			Ready: func(i dev.Info) { ready <- i },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case at := <-ready:
		return &reader{[]string{"PERCEPTOR_ADDRESS=" + at.GRPC, "PERCEPTOR_TOKEN=" + at.Token, "SHOP_DSN=" + at.Postgres, "PATH=" + bin + ":" + os.Getenv("PATH")}}
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return nil
}

// orders runs an example that no tutorial explains: of two orders, the one that is not paid gets a
// reminder.
func (r *reader) orders(t *testing.T) {
	printed := r.run(t, "examples/orders", pages.Block{Text: "go run ./examples/orders -after 2s\n"})
	if n := strings.Count(printed, "is not paid yet"); n != 1 {
		t.Errorf("%d reminders, want 1:\n%s", n, printed)
	}
}

// compiling is the time that a command has to print something, since go run compiles.
const compiling = 3 * time.Minute

// follow does what a page says and returns the number of commands.
func (r *reader) follow(t *testing.T, p *pages.Page) (ran int) {
	ctx, cancel := context.WithCancel(t.Context())
	background := &output{}
	var running []*exec.Cmd
	defer func() {
		cancel()
		for _, cmd := range running {
			_ = cmd.Wait() // it was stopped
		}
	}()
	printed, wait := background.String, time.Duration(0)
	for _, b := range p.Blocks {
		switch b.Info {
		case "sh":
			ran++
			once := r.run(t, p.Path, b)
			printed, wait = func() string { return once }, 0
		case "sh again":
			ran++
			printed, wait = func() string { return r.run(t, p.Path, b) }, time.Minute
		case "sh background":
			ran++
			cmd := r.command(ctx, b.Text)
			cmd.Stdout, cmd.Stderr = background, background
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			running = append(running, cmd)
			printed, wait = background.String, compiling
		case "text":
			compare(t, p.Path, b, printed, wait)
		case "text background":
			compare(t, p.Path, b, background.String, compiling)
		}
	}
	return ran
}

// run runs the commands of a block to their end and returns what they print.
func (r *reader) run(t *testing.T, page string, b pages.Block) string {
	ctx, cancel := context.WithTimeout(t.Context(), compiling)
	defer cancel()
	cmd := r.command(ctx, "set -e\n"+b.Text)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s:%d: %v\n%s%s", page, b.Line, err, b.Text, out)
	}
	return string(out)
}

func (r *reader) command(ctx context.Context, script string) *exec.Cmd {
	return pages.Shell(ctx, root, script, r.environ...)
}

// compare waits until the output has the lines of a block.
func compare(t *testing.T, page string, b pages.Block, output func() string, wait time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(wait); ; time.Sleep(20 * time.Millisecond) {
		missing := firstMissing(b.Text, output())
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s:%d: the line %q is missing in:\n%s", page, b.Line, missing, output())
		}
	}
}

// firstMissing returns the first line of want that does not follow in got; "" if all do.
func firstMissing(want, got string) string {
	lines := strings.Split(got, "\n")
	for wanted := range strings.Lines(want) {
		wanted = strings.TrimSpace(wanted)
		found := false
		for !found && len(lines) > 0 {
			found, lines = strings.Contains(form(lines[0]), form(wanted)), lines[1:]
		}
		if !found {
			return wanted
		}
	}
	return ""
}

var (
	numbers = regexp.MustCompile(`\d+`)
	blanks  = regexp.MustCompile(`\s+`)
)

// form returns a line with all numbers and widths of columns alike.
func form(line string) string {
	return blanks.ReplaceAllString(numbers.ReplaceAllString(line, "0"), " ")
}

// output collects what programs print.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
