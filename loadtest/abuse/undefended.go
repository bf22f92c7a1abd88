package abuse

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/perceptor/perceptor/loadtest/stack"
)

// A removal takes a defence out of the source text of the programs. The programs themselves
// have no switch for that.
type removal struct {
	file, old, new string
}

var removals = []removal{
	// Quotas.
	{"task/quota.go", "return max(own, 0)", "return 0"},
	// What upserts, look-ups beyond the rate of adds and callers who leave are charged.
	{"store/shards/database.go", "[]*share.Pool[int32]{db.server, db.direct}", "[]*share.Pool[int32]{}"},
	{"store/shards/kernel/batch.go", "left = nil // the call ends with its group", "return nil, ctx.Err()"},
	// The budget of answers that nobody reads.
	{"server/sending.go", "answers       = 64", "answers = 1 << 20"},
	{"server/sending.go", "connAnswers   = 16", "connAnswers = 1 << 20"},
	// Throttles of unknown tokens, changes of settings, unknown runs, and refused calls.
	{"server/throttle.go", "if l.Allow() {", "if l.Allow() || true {"},
	{"server/throttle.go", "l.Tokens() < 1 {", "l.Tokens() < 1 && false {"},
	{"server/throttle.go", "settingsAtOnce = 2", "settingsAtOnce = 4096"},
	// Shares of places and of memory.
	{"internal/share/share.go", "case n > p.free, p.each > 0 && held > 0 && held+n > p.each:", "case n > p.free:"},
	{"internal/share/share.go", "return held == 0 || held+n <= p.free-n", "return held >= 0"},
	// Deadlines and budgets of requests that arrive, and calls of a connection.
	{"server/server.go", "setZero(&c.MaxStreams, 250)", "setZero(&c.MaxStreams, 1<<20)"},
	{"server/intake.go", "receiveWithin = 10 * time.Second", "receiveWithin = time.Hour"},
	{"server/intake.go", "intakeRequests     = 64", "intakeRequests = 1 << 20"},
	{"server/intake.go", "connIntakeRequests = 16", "connIntakeRequests = 1 << 20"},
}

// overlay writes the changed files into dir and returns the path of the file for the flag
// -overlay. It fails if the text of a removal does not occur exactly once.
func overlay(root, dir string) (string, error) {
	text := map[string]string{}
	for _, r := range removals {
		if text[r.file] == "" {
			b, err := os.ReadFile(filepath.Join(root, r.file))
			if err != nil {
				return "", fmt.Errorf("remove a defence: %w", err)
			}
			text[r.file] = string(b)
		}
		if n := strings.Count(text[r.file], r.old); n != 1 {
			return "", fmt.Errorf("remove a defence: %q occurs %d times in %s, want once", r.old, n, r.file)
		}
		text[r.file] = strings.Replace(text[r.file], r.old, r.new, 1)
	}
	replace := map[string]string{}
	for file, changed := range text {
		path := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			return "", fmt.Errorf("remove a defence: %w", err)
		}
		replace[filepath.Join(root, file)] = path
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, list, 0o600)
}

// moduleRoot returns the folder of the module.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// buildUndefended builds the programs without defences into a folder below dir.
func buildUndefended(ctx context.Context, dir string) (folder string, err error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return "", err
	}
	list, err := overlay(root, dir)
	if err != nil {
		return "", err
	}
	folder = filepath.Join(dir, "bin")
	return folder, stack.BuildPrograms(ctx, folder, "-overlay", list)
}
