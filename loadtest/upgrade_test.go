package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// baseCommit is the release before this tree: a commit whose programs tolerate one version
// of difference. After a release it becomes the commit of that release. Until the first
// release, migrations may be changed in place; then it becomes a commit that has the change.
const baseCommit = "354778698c541e9b7fe0ac0c1fc8157179c7d98a"

// TestAnUpgradeAndItsRollbackUnderLoadKeepTheContract exchanges every process of the base by
// its synthetic successor, back, and forth again, one after the other, while tasks fire.
// The successor is this tree with one more migration and a newer version of packs. The listeners have
// the SDK of the base, the callers that of this tree, so each SDK works with both releases.
func TestAnUpgradeAndItsRollbackUnderLoadKeepTheContract(t *testing.T) {
	if testing.Short() {
		t.Skip("builds two versions of the programs and starts every real part; make test runs it")
	}
	t.Parallel()
	base, next := baseAndSuccessor(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	s := upgradedStack(t, ctx, base)
	to := func(version, part string, at time.Duration) scenario.Disturbance {
		return scenario.Disturbance{Action: scenario.Replace, Part: part, After: at, With: version}
	}
	o := e2eOptions(t, s, []scenario.Disturbance{
		to(next, "taskd-1", 0), to(next, "dispatcher-1", 2*time.Second), to(next, "dispatcher-2", 3500*time.Millisecond),
		to(base, "dispatcher-1", 5500*time.Millisecond), to(base, "dispatcher-2", 7*time.Second), to(base, "taskd-1", 7*time.Second),
		// The base must have its turn with packs of the successor, on a slow machine, too.
		to(next, "dispatcher-2", 13*time.Second), to(next, "dispatcher-1", 14*time.Second), to(next, "taskd-1", 14*time.Second), to(next, "taskd-2", 15*time.Second),
	})
	o.For, o.Rate, o.Delay = 20*time.Second, 100, workload.Delay{Min: time.Second, Max: 7 * time.Second}
	o.ListenerCommand = []string{filepath.Join(base, "loadtest"), harness.ListenerName}
	var beside sync.WaitGroup
	w := watchPacks(t, ctx, s.Postgres(), &beside)
	beside.Go(func() {
		if err := harness.Sleep(ctx, 7*time.Second); err == nil {
			if err := migrate(ctx, t.TempDir(), next, s.Postgres(), 1); err != nil {
				t.Error(err)
			}
		}
	})
	report, err := harness.Run(ctx, o)
	cancel()
	beside.Wait()
	if err != nil {
		t.Error(err)
	}
	if report != nil {
		judge(t, report, 0)
	}
	if w.newest < w.successor || !w.met {
		t.Errorf("the newest pack had version %d, and base programs met one of version %d: %v", w.newest, w.successor, w.met)
	}
}

// baseAndSuccessor builds the programs of both versions and returns their folders.
func baseAndSuccessor(t *testing.T) (base, next string) {
	t.Helper()
	requireBase(t)
	before, now := treeOf(t, baseCommit), treeOf(t, "")
	succeed(t, before, now)
	for _, tree := range []string{before, now} { // tests cannot wait for minutes
		change(t, tree, "internal/config/validate.go", "d >= time.Minute, ", "d >= time.Second, ")
	}
	return programs(t, before, "./loadtest"), programs(t, now)
}

// requireBase skips or fails the test if the base is not known. Nothing can replace an older
// commit: two builds of one tree would agree with each other whatever it does. So a clone
// without the commit fails, and only an archive without a history skips the test.
func requireBase(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("../.git"); err != nil && os.Getenv("CI") == "" {
		t.Skip("this is no clone of the repository, so the programs of the release before cannot be built")
	}
	if out, err := exec.CommandContext(t.Context(), "git", "cat-file", "-e", baseCommit+"^{commit}").CombinedOutput(); err != nil {
		t.Fatalf("this clone has no commit %s, of which the test builds the programs of the release before; run git fetch --unshallow (%s)", baseCommit, bytes.TrimSpace(out))
	}
}

// treeOf returns a folder with the files of a commit, or with those of this tree if it is "".
func treeOf(t *testing.T, commit string) string {
	t.Helper()
	dir := t.TempDir()
	script := `git ls-files -z --cached --others --exclude-standard | xargs -0 sh -c 'for f; do [ ! -e "$f" ] || echo "$f"; done' - | tar -cT -`
	if commit != "" {
		script = "git archive " + commit
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script+` | tar -x -C "$0"`, dir)
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("copy the files of %q: %v\n%s", commit, err, out)
	}
	return dir
}

// succeed makes the tree now a release after before: it has one more migration and a newer
// version of packs.
func succeed(t *testing.T, before, now string) {
	t.Helper()
	old, present := migrationsOf(t, before), migrationsOf(t, now)
	for name, text := range old {
		if present[name] != text {
			t.Fatalf("migration %s was changed since %s, and installations of that version exist: add a new one, or set baseCommit if nothing is released", name, baseCommit)
		}
	}
	switch len(present) - len(old) {
	case 0:
		text := "-- +goose Up\nALTER TABLE task ADD COLUMN synthetic int8;\nALTER TABLE outbox ADD COLUMN synthetic text NOT NULL DEFAULT '';\nCREATE TABLE synthetic (id int8);\n"
		name := fmt.Sprintf("%05d_synthetic.sql", len(present)+1)
		if err := os.WriteFile(filepath.Join(now, "migrations/sql", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	case 1:
	default:
		t.Fatalf("this tree has %d more migrations than %s: a release has at most one", len(present)-len(old), baseCommit)
	}
	if v := packVersion(t, now); v == packVersion(t, before) {
		change(t, now, "store/pack/blob.go", fmt.Sprintf("version    = %d", v), fmt.Sprintf("version    = %d", v+1))
		change(t, now, "store/pack/blob.go", "case blob[1] != version:", fmt.Sprintf("case blob[1] < %d:", v))
	}
}

func migrationsOf(t *testing.T, tree string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(tree, "migrations/sql/*.sql"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	texts := map[string]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(f)] = string(text)
	}
	return texts
}

func packVersion(t *testing.T, tree string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(tree, "store/pack/blob.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`\n\tversion    = (\d+)\n`).FindSubmatch(text)
	if found == nil {
		t.Fatal("store/pack/blob.go does not define the version of packs as this test expects")
	}
	v, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// change replaces the only occurrence of a text in a file.
func change(t *testing.T, tree, file, before, after string) {
	t.Helper()
	path := filepath.Join(tree, file)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), before); n != 1 {
		t.Fatalf("%q occurs %d times in %s, want once", before, n, file)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), before, after, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// programs builds the programs of a tree, and others, and returns their folder.
func programs(t *testing.T, tree string, others ...string) string {
	t.Helper()
	args := append([]string{"build", "-buildvcs=false", "-trimpath", "-o", "bin/", "./cmd/taskd", "./cmd/dispatcher", "./cmd/perceptorctl"}, others...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = tree
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
	}
	return filepath.Join(tree, "bin")
}

// upgradedStack starts a stack of the base's programs whose tasks pass through packs.
func upgradedStack(t *testing.T, ctx context.Context, base string) *stack.Stack { //nolint:revive // t comes first in helpers
	t.Helper()
	o := harness.DefaultStack()
	o.Taskds, o.Dispatchers, o.Session, o.Programs = 2, 2, e2eSession, base
	o.Progress = func(what string) { t.Log(what) }
	o.Postgres["fsync"], o.Postgres["shared_buffers"] = "off", "256MB"
	o.Settings = map[string]string{"chores.share": "1", "far.horizon": "2s", "taskd.drain_delay": "200ms"}
	versions := len(migrationsOf(t, filepath.Dir(base)))
	o.Migrate = func(ctx context.Context, dsn string) error { return migrate(ctx, t.TempDir(), base, dsn, versions) }
	s, err := stack.Real(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := harness.CloseStack(context.Background(), s); err != nil {
			t.Error(err)
		}
	})
	return s
}

// migrate applies the migrations that programs have and the server does not, which must be as
// many as versions.
func migrate(ctx context.Context, dir, programs, dsn string, versions int) error {
	config := filepath.Join(dir, "perceptor.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "{postgres: {servers: [{dsn: %q}]}}", dsn), 0o600); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(programs, "perceptorctl"), "migrate", "up", "--config", config).CombinedOutput()
	if err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, out)
	}
	if want := fmt.Sprintf(": %d versions applied", versions); strings.Count(string(out), want) != task.Databases {
		return fmt.Errorf("migrate: want %q for each database\n%s", want, out)
	}
	return nil
}

// seenPacks is what a watcher of packs has seen.
type seenPacks struct {
	newest, successor int
	met               bool // a base program has met a pack of the successor
}

// watchPacks looks at the packs of all databases until ctx ends.
func watchPacks(t *testing.T, ctx context.Context, dsn string, group *sync.WaitGroup) *seenPacks { //nolint:revive // t comes first in helpers
	t.Helper()
	var text strings.Builder
	text.WriteString("SELECT coalesce(max(get_byte(p.keys, 1)), 0), coalesce(bool_or(p.newer), false) FROM (SELECT NULL::bytea AS keys, false AS newer")
	for d := range task.Databases {
		for _, table := range []string{"far_level0", "far_pack"} {
			fmt.Fprintf(&text, " UNION ALL SELECT keys, newer FROM %s.%s", store.SchemaName(d), table)
		}
	}
	text.WriteString(") p")
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	w := &seenPacks{successor: packVersion(t, "..") + 1}
	group.Go(func() {
		defer conn.Close(context.Background()) //nolint:errcheck // nothing is written
		for harness.Sleep(ctx, 200*time.Millisecond) == nil {
			var newest int
			var newer bool
			if err := conn.QueryRow(ctx, text.String()).Scan(&newest, &newer); err == nil {
				w.newest, w.met = max(w.newest, newest), w.met || newer
			}
		}
	})
	return w
}
