package dev

import (
	"bufio"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/pages"
)

// root is the root of the repository, in which people paste the lines.
const root = "../.."

// pasted matches the commands of the banner: lines of two blanks, with those that continue
// them.
var pasted = regexp.MustCompile(`(?m)^  ((?:export|go|curl) (?:.*\\\n)*.*)$`)

// TestTheLinesOfTheBannerAreAnswered runs what the banner says to paste: a listener in one
// shell, a call in another.
func TestTheLinesOfTheBannerAreAnswered(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	out := &output{}
	o := ephemeral(t, out)
	running(t, o)
	lines := pasted.FindAllStringSubmatch(out.String(), -1)
	if len(lines) != 3 {
		t.Fatalf("the banner has %d commands, want 3: %q", len(lines), lines)
	}
	export, listen, add := lines[0][1], lines[1][1], lines[2][1]

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // go run compiles
	defer cancel()
	second := pages.Shell(ctx, root, export+"\n"+listen)
	said, err := second.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = second.Wait() }() // the error says that it was killed
	if answer, err := pages.Shell(ctx, root, add).CombinedOutput(); err != nil || !strings.Contains(string(answer), `"id"`) {
		t.Errorf("%s\nanswers %s, %v", add, answer, err)
	}
	missing := map[string]bool{"hello, Ann!": true, "hello, Bob!": true}
	for scanner := bufio.NewScanner(said); len(missing) > 0 && scanner.Scan(); {
		greeting, _, _ := strings.Cut(scanner.Text(), " (")
		delete(missing, greeting)
	}
	for greeting := range missing {
		t.Errorf("the listener does not say %q", greeting)
	}
}
