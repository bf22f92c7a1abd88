package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/dev"
	"github.com/perceptor/perceptor/store/storetest"
)

// mainVariable makes the test binary be perceptorctl.
const mainVariable = "PERCEPTOR_CTL_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
		return
	}
	os.Setenv(contextsVariable, filepath.Join(os.TempDir(), "perceptorctl-has-no-contexts")) //nolint:errcheck // the name is valid
	os.Exit(m.Run())
}

// TestScripts runs the command lines in testdata/*.txt against a whole
// installation. A line is one of
//
//	ctl ARGS...        run perceptorctl; it must end with 0
//	exit N ctl ARGS... run it; it must end with N
//	as TOKEN STEP      do one of these with a token
//	stdout REGEXP      what it said last on standard output has a match
//	stderr REGEXP      the same for standard error
//	!stdout REGEXP     it has none; also !stderr
//	set NAME REGEXP    NAME becomes the first group of the match in standard output
//	env NAME=VALUE     for later commands
//	file NAME TEXT     write a file
//	sql STATEMENT      run it on the server
//
// $NAME stands for a value set before; single quotes hold a word together.
func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	runScripts(t, installation(t), "testdata/*.txt")
}

func runScripts(t *testing.T, at dev.Info, pattern string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{t: t, file: file, vars: map[string]string{
				"ADDRESS": at.GRPC, "HTTP": at.HTTP, "DSN": at.Postgres, "KAFKA": at.Kafka, "TOKEN": at.Token, "ADMIN": at.Admin, "TMP": t.TempDir(),
			}}
			for i, line := range strings.Split(string(text), "\n") {
				s.line = i + 1
				s.step(strings.TrimSpace(line))
			}
		})
	}
}

// installation runs all parts in this process.
func installation(t *testing.T, configure ...func(*dev.Options)) dev.Info {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan dev.Info, 1), make(chan error, 1)
	o := dev.Options{Ephemeral: true, Out: io.Discard, Log: slog.New(slog.DiscardHandler), Ready: func(i dev.Info) { ready <- i }}
	for _, f := range configure {
		f(&o)
	}
	go func() { done <- dev.Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case i := <-ready:
		return i
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return dev.Info{}
}

// withTables makes an installation begin with tables, which is faster. The epochs of its shards are others then.
func withTables(t *testing.T) func(*dev.Options) {
	return func(o *dev.Options) { o.InitialPostgres = storetest.Initial(t) }
}

// script is one file on its way.
type script struct {
	t              *testing.T
	file           string
	line           int
	vars           map[string]string
	stdout, stderr bytes.Buffer
}

func (s *script) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s:%d: %s\nstdout: %s\nstderr: %s", s.file, s.line, fmt.Sprintf(format, args...), s.stdout.String(), s.stderr.String())
}

func (s *script) step(line string) {
	s.t.Helper()
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "", "#":
	case "ctl":
		s.run(0, rest)
	case "exit":
		code, command, _ := strings.Cut(rest, " ctl ")
		want, err := strconv.Atoi(code)
		if err != nil {
			s.fail("%q is not an exit code", code)
		}
		s.run(want, command)
	case "as":
		token, step, _ := strings.Cut(rest, " ")
		before := os.Getenv("PERCEPTOR_TOKEN")
		s.t.Setenv("PERCEPTOR_TOKEN", s.expand(token))
		s.step(step)
		s.t.Setenv("PERCEPTOR_TOKEN", before)
	case "stdout", "stderr", "!stdout", "!stderr":
		out := s.stdout.String()
		if strings.HasSuffix(verb, "stderr") {
			out = s.stderr.String()
		}
		if s.pattern(rest).MatchString(out) == strings.HasPrefix(verb, "!") {
			s.fail("%s %s", verb, rest)
		}
	case "set":
		name, pattern, _ := strings.Cut(rest, " ")
		found := s.pattern(pattern).FindStringSubmatch(s.stdout.String())
		if len(found) < 2 {
			s.fail("no match for %s", pattern)
		}
		s.vars[name] = found[1]
	case "env":
		name, value, _ := strings.Cut(s.expand(rest), "=")
		s.t.Setenv(name, value)
	case "file":
		name, text, _ := strings.Cut(rest, " ")
		if err := os.WriteFile(s.expand(name), []byte(s.expand(text)), 0o600); err != nil {
			s.fail("%v", err)
		}
	case "sql":
		s.sql(rest)
	default:
		s.fail("unknown step %q", verb)
	}
}

func (s *script) sql(statement string) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.vars["DSN"])
	if err != nil {
		s.fail("%v", err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // nothing depends on it
	if _, err := conn.Exec(s.t.Context(), statement); err != nil {
		s.fail("%v", err)
	}
}

func (s *script) expand(text string) string {
	return os.Expand(text, func(name string) string {
		v, ok := s.vars[name]
		if !ok {
			s.fail("$%s is not set", name)
		}
		return v
	})
}

// pattern compiles a regular expression in which $NAME stands for its value.
func (s *script) pattern(text string) *regexp.Regexp {
	quoted := regexp.MustCompile(`\$([A-Z]+)`).ReplaceAllStringFunc(text, func(name string) string {
		return regexp.QuoteMeta(s.expand(name))
	})
	re, err := regexp.Compile("(?m)" + quoted)
	if err != nil {
		s.fail("%v", err)
	}
	return re
}

var word = regexp.MustCompile(`'([^']*)'|(\S+)`)

func (s *script) run(want int, line string) {
	s.t.Helper()
	var args []string
	for _, m := range word.FindAllStringSubmatch(line, -1) {
		args = append(args, s.expand(m[1]+m[2]))
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute) // on a busy machine, too
	defer cancel()
	s.stdout.Reset()
	s.stderr.Reset()
	root := newCommand()
	root.SetArgs(args)
	root.SetOut(&s.stdout)
	root.SetErr(&s.stderr)
	if got := cli.Run(ctx, root); got != want {
		s.fail("ctl %s ended with %d, want %d", line, got, want)
	}
}

func TestACallThatAnOlderTaskdDoesNotKnowIsExplained(t *testing.T) {
	c := &ctl{address: "old:7070"}
	var known *cli.Error
	err := c.explain(status.Error(codes.Unimplemented, "unknown method /perceptor.v1.NewService/New"))
	if !errors.As(err, &known) || known.Code != cli.Failure || !strings.Contains(known.Hint, "the taskd at old:7070 is of another release") {
		t.Errorf("got %+v", err)
	}
}

func TestTheProgramEndsWithTheCodeOfItsError(t *testing.T) {
	for want, args := range map[int][]string{0: {"version"}, 2: {"--frobnicate"}, 5: {"--address", "127.0.0.1:1", "task", "list"}} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
		cmd.Env = append(os.Environ(), mainVariable+"=1", "PERCEPTOR_TOKEN=x")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%v ended with %d, want %d: %s", args, got, want, out)
		}
	}
}
