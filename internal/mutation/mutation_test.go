package mutation_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/perceptor/perceptor/internal/mutation"
)

const storms = "./loadtest/assign"

// known lists every bug that can be planted, with the tests that must find it.
var known = []struct{ bug, pkg, tests string }{
	{"epoch-without-lock", "./store/shards", "TestTakeOverWaits"},
	{"cancel-without-lock", "./store/shards", "TestCancelWaits"},
	{"report-without-seq", "./store/shards", "TestResultOfAnOldRun"},
	{"report-without-holder-and-attempt", "./store/shards", "TestResultOfAnotherHolder"},
	{"start-without-holder", "./store/shards", "TestBlockingGoesOn"},
	{"outbox-list-written-back", "./store/shards", "TestOutboxRowLoses"},
	{"no-key-row", "./store/shards", "TestRepeatedRequest"},
	{"open-bit-ends-task", "./store/shards", "TestEarlyEndOfTheLastRun"},
	{"heartbeat-without-bit", "./store/shards", "TestLateHeartbeat"},
	{"fail-twice", "./store/shards", "TestOneExecutionSpends"},
	{"skip-settled-runs", "./client", "TestNoHistory"},
	{"old-fail-under-new-attempt", "./client", "TestNoHistory"},
	{"offset-before-report", "./client", "TestNoHistory"},
	{"commit-highest-offset", "./client", "TestNoHistory"},
	{"lease-from-answer", "./client", "TestLeaseIsCounted"},
	{"unknown-commit-kept", "./dispatch", "TestCommitOfUnknownOutcome|TestNothingCommitted"},
	{"take-over-without-outbox", "./dispatch", "TestRunOfADispatcherThatDied|TestNothingCommitted"},
	{"outbox-before-bump", "./dispatch", "TestCommitOfUnknownOutcome|TestNothingCommitted"},
	{"taken-off-before-publish", "./dispatch", "TestShardTakenAnew|TestNothingCommitted"},
	{"bit-pushed-out", "./store/shards", "TestRunWhoseBit"},
	{"plan-without-version", storms, "TestAStorm"},
	{"work-without-epoch", storms, "TestAStorm"},
	{"work-without-lock", storms, "TestAStorm"},
}

// TestEveryPlantedBugIsFound builds the tests with each bug in turn and demands
// that they fail. They must pass without one: the ordinary run shows that.
func TestEveryPlantedBugIsFound(t *testing.T) {
	binaries := map[string]string{}
	for _, k := range known {
		if binaries[k.pkg] == "" {
			binaries[k.pkg] = build(t, k.pkg)
		}
	}
	for _, k := range known {
		t.Run(k.bug, func(t *testing.T) {
			if k.pkg != storms { // each of those has a dozen processes
				t.Parallel()
			}
			run := exec.CommandContext(t.Context(), binaries[k.pkg], "-test.run", k.tests, "-test.timeout", "2m")
			run.Dir = "../../" + k.pkg
			run.Env = append(os.Environ(), mutation.Variable+"="+k.bug)
			out, err := run.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL") {
				t.Errorf("%s of %s did not find the bug: %v\n%s", k.tests, k.pkg, err, out)
			}
		})
	}
}

// build returns the tests of a package with all bugs in them.
func build(t *testing.T, pkg string) string {
	t.Helper()
	binary := t.TempDir() + "/tests"
	run := exec.CommandContext(t.Context(), "go", "test", "-tags", "planted", "-c", "-o", binary, pkg)
	run.Dir = "../.."
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return binary
}
