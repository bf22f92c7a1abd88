package examples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/client/clienttest"
)

// The clients of other languages that the OpenAPI document makes. Their generators are
// installed once below bin, in the pinned versions, from the registries of the languages.
// Where that is not possible, the tests are skipped.

const openAPI = "../proto/openapi/openapi.json"

// tool runs a command in a directory and returns its output. It ends the test if it fails.
func tool(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	out, err := command(dir, env, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func command(dir string, env []string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// installed returns the directory with what a file of pinned versions names. It calls install
// if the directory is not for this file.
func installed(t *testing.T, pins string, install func(dir string) (string, error), needs ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: installs a generator")
	}
	for _, name := range needs {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is missing", name)
		}
	}
	dir := absolute(t, filepath.Join("../bin/openapi", filepath.Base(filepath.Dir(pins))))
	want := read(t, pins)
	mark := filepath.Join(dir, "installed")
	if have, err := os.ReadFile(mark); err == nil && string(have) == want {
		return dir
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := install(dir); err != nil {
		t.Skipf("cannot be installed: %v\n%s", err, out)
	}
	write(t, mark, want)
	return dir
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// copied copies files of an example into a new directory and returns that.
func copied(t *testing.T, from string, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		write(t, filepath.Join(dir, f), read(t, filepath.Join(from, f)))
	}
	return dir
}

// oldNode matches versions of Node.js that the packages do not support.
var oldNode = regexp.MustCompile(`^v1?\d\.`)

// node returns the directory of the packages of the example in TypeScript.
func node(t *testing.T) string {
	t.Helper()
	if version, err := command(".", nil, "node", "--version"); err == nil && oldNode.MatchString(version) {
		t.Skipf("Node.js %s is older than 20", version)
	}
	return installed(t, "openapi/typescript/package-lock.json", func(dir string) (string, error) {
		for _, f := range []string{"package.json", "package-lock.json"} {
			write(t, filepath.Join(dir, f), read(t, filepath.Join("openapi/typescript", f)))
		}
		return command(dir, nil, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	}, "node", "npm")
}

// addsListsUpdates checks what an example prints.
var addsListsUpdates = regexp.MustCompile(`^added (\d+)\nlisted (\d+)\nupdated 5 2\n` +
	`refused INVALID_ARGUMENT task\.interval: "soon" is not a duration; write seconds with an s, such as "3600s"\n$`)

// service starts the service that examples call, and returns the environment for them.
func service(t *testing.T) []string {
	t.Helper()
	var url string
	clienttest.New(t, clienttest.WithHTTP(&url))
	return []string{"PERCEPTOR_URL=" + url, "PERCEPTOR_TOKEN=secret"}
}

func checkPrinted(t *testing.T, out string) {
	t.Helper()
	if m := addsListsUpdates.FindStringSubmatch(out); m == nil || m[1] != m[2] {
		t.Errorf("the example prints\n%s", out)
	}
}

func TestOpenAPIDocumentHasNoFaultOfTheLinter(t *testing.T) {
	packages := node(t)
	quiet := []string{"REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true"}
	tool(t, "openapi/typescript", quiet, "node", filepath.Join(packages, "node_modules/@redocly/cli/bin/cli.js"), "lint", "--config", "redocly.yaml", absolute(t, openAPI))
}

func TestClientInTypeScriptIsMadeFromTheOpenAPIDocument(t *testing.T) {
	packages := node(t)
	dir := copied(t, "openapi/typescript", "package.json", "tsconfig.json", "tasks.ts")
	if err := os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	tool(t, dir, nil, "node", "node_modules/openapi-typescript/bin/cli.js", absolute(t, openAPI), "--output", "schema.d.ts")
	tool(t, dir, nil, "node", "node_modules/typescript/bin/tsc")
	checkPrinted(t, tool(t, dir, service(t), "node", "dist/tasks.js"))
}

func TestClientInPythonIsMadeFromTheOpenAPIDocument(t *testing.T) {
	packages := installed(t, "openapi/python/requirements.txt", func(dir string) (string, error) {
		return command("openapi/python", nil, "python3", "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile",
			"--disable-pip-version-check", "--target", dir, "--requirement", "requirements.txt")
	}, "python3")
	dir := copied(t, "openapi/python", "config.yaml", "tasks.py")
	path := []string{"PYTHONPATH=" + packages}
	tool(t, dir, path, "python3", "-m", "openapi_python_client", "generate", "--path", absolute(t, openAPI),
		"--meta", "none", "--config", "config.yaml", "--output-path", "perceptor_client", "--fail-on-warning")
	tool(t, dir, path, "python3", "-m", "compileall", "-q", ".")
	checkPrinted(t, tool(t, dir, append(service(t), path...), "python3", "tasks.py"))
}
