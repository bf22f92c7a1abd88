package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/deploy/release"
)

// programs is the folder with the built programs, and plan the release that they are of.
var (
	programs string
	plan     *release.Plan
	native   = release.Platform{OS: runtime.GOOS, Arch: runtime.GOARCH}
)

func TestMain(m *testing.M) {
	os.Exit(withPrograms(m.Run))
}

// withPrograms builds the programs as releases have them, and calls f.
func withPrograms(f func() int) int {
	dir, err := os.MkdirTemp("", "perceptor-deploy-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	root, err := filepath.Abs("..")
	if err == nil {
		plan, err = release.NewPlan(context.Background(), root, "v1.2.3")
	}
	if err == nil {
		programs, err = dir, plan.Build(context.Background(), native, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return f()
}

// A tree holds files by the paths that a program sees. It stands for the file system of a
// machine or a container.
type tree map[string]string

// roots begin the paths that are moved into a test's own folder.
var roots = regexp.MustCompile(`/(etc/perceptor|run/secrets|run/perceptor)/`)

// write writes the files below root, and puts root before the paths in them.
func (f tree) write(t *testing.T, root string) {
	t.Helper()
	for path, text := range f {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(moved(root, text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func moved(root, text string) string { return roots.ReplaceAllString(text, root+"$0") }

// configured returns what a program says of its configuration, in a file system of these
// files, or its complaints. A dispatcher without ZooKeeper gets one if its version knows
// no other way to agree.
func (f tree) configured(t *testing.T, program string, env map[string]string, args ...string) (string, error) {
	t.Helper()
	root := t.TempDir()
	f.write(t, root)
	environ := []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range env {
		environ = append(environ, name+"="+moved(root, value))
	}
	for i := range args {
		args[i] = moved(root, args[i])
	}
	out, err := run(t, environ, program, append(args, "--print-config")...)
	if err != nil && strings.Contains(err.Error(), "zookeeper.servers: is missing") && !knowsPostgresAssignment(t) {
		out, err = run(t, append(environ, "PERCEPTOR_ZOOKEEPER_SERVERS=localhost:2181"), program, append(args, "--print-config")...)
	}
	return out, err
}

// knowsPostgresAssignment reports whether dispatchers of this version can agree without ZooKeeper.
func knowsPostgresAssignment(t *testing.T) bool {
	t.Helper()
	help, err := run(t, nil, "dispatcher", "--help")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(help, "--assignment")
}

// run runs a built program and returns its standard output; the error has the other one.
func run(t *testing.T, environ []string, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(programs, program), args...)
	cmd.Env = environ
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// setting returns the value of a key in what --print-config says, such as taskd.grace.
func setting(t *testing.T, printed, key string) string {
	t.Helper()
	section, name, _ := strings.Cut(key, ".")
	m := regexp.MustCompile(`(?ms)^` + section + `:$.*?^  ` + name + `: (\S+)`).FindStringSubmatch(printed)
	if m == nil {
		t.Fatalf("%s is not in:\n%s", key, printed)
	}
	return strings.Trim(m[1], `"`)
}

// stopTime returns how long a program with this configuration takes to stop at most.
func stopTime(t *testing.T, program, printed string) time.Duration {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("..", "cmd", program, "serve.go"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`const stopMargin = (\d+) \* time\.Second`).FindSubmatch(source)
	if m == nil {
		t.Fatalf("the source of %s does not say what its stop may take beyond its grace", program)
	}
	total := parse(t, string(m[1])+"s") + parse(t, setting(t, printed, program+".grace"))
	if program == "taskd" {
		total += parse(t, setting(t, printed, "taskd.drain_delay"))
	}
	return total
}

func parse(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestABadConfigurationIsNoticed(t *testing.T) {
	t.Parallel()
	files := tree{"/etc/perceptor/perceptor.yaml": "taskd: {grcp_addr: x}"}
	_, err := files.configured(t, "taskd", nil, "--config", "/etc/perceptor/perceptor.yaml")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(err.Error(), "unknown key taskd.grcp_addr") {
		t.Errorf("got %v", err)
	}
}
