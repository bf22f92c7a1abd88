package assign

import (
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/perceptor/perceptor/internal/testenv"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m) }

// testLog writes to the test's log as long as the test runs.
func testLog(t *testing.T, who string) *slog.Logger {
	w := &testWriter{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.done = true
	})
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})).With("who", who)
}

type testWriter struct {
	mu   sync.Mutex
	t    *testing.T
	done bool
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.done {
		w.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}
