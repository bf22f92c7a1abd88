package app

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/store"
)

// TestAStepThatGoesOnToFailIsLoggedEachMinute has ten failures per second for 150 s.
func TestAStepThatGoesOnToFailIsLoggedEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newStepLog(slog.New(slog.NewTextHandler(&out, nil)))
		for range 1500 {
			l.failed(3, "claim", errors.New("connection refused"))
			l.failed(4, "claim", fmt.Errorf("begin: %w", store.ErrStalled))
			time.Sleep(100 * time.Millisecond)
		}
		if n := strings.Count(out.String(), "database=3"); n != 3 {
			t.Errorf("%d warnings in 150 s, want 3", n)
		}
		if !strings.Contains(out.String(), "suppressed=599") {
			t.Errorf("no warning says how many were not logged:\n%s", &out)
		}
		if strings.Contains(out.String(), "database=4") {
			t.Error("there is a warning of a step whose server does not answer")
		}
		out.Reset()
		l.failed(3, "peek", errors.New("connection refused"))
		if n := strings.Count(out.String(), "database=3"); n != 1 {
			t.Errorf("%d warnings of the first failure of another step, want 1", n)
		}
	})
}
