package assign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == MemberName {
		os.Exit(serveMember())
	}
	testenv.MainWithoutLeaks(m)
}

func serveMember() (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := ServeMember(ctx, os.Stdin, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// options returns the default options with a random seed, or with that of
// ASSIGN_STORM_SEED.
func options(t *testing.T) Options {
	t.Helper()
	o := DefaultOptions()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Member, o.Seed = []string{path, MemberName}, rand.Uint64()
	if text := os.Getenv("ASSIGN_STORM_SEED"); text != "" {
		if o.Seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	o.Progress = func(format string, args ...any) {
		t.Logf("%s  %s", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
	}
	t.Logf("ASSIGN_STORM_SEED=%d", o.Seed)
	return o
}

// length returns the length of the storm: ASSIGN_STORM if it is set, otherwise 10 minutes
// in the long tests, 10 seconds in the short ones and 30 seconds by default.
func length(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("ASSIGN_STORM")
	switch {
	case text != "":
	case testenv.Long():
		return 10 * time.Minute
	case testing.Short():
		return 10 * time.Second
	default:
		return 30 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestAStormBreaksNothing disturbs members, servers, connections and nodes at random
// while processes share items, and wants no violation. ASSIGN_STORM=10m sets the length,
// ASSIGN_STORM_SEED repeats a storm.
func TestAStormBreaksNothing(t *testing.T) {
	report, err := Storm(t.Context(), options(t), length(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range report.Violations {
		t.Error(v)
	}
	t.Logf("%+v", report)
	if len(report.Violations) == 0 && (report.Calms == 0 || report.Looks < 10) {
		t.Errorf("report = %+v, want at least one calm and 10 checks of the work", report)
	}
}
