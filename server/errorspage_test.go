package server

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/task"
)

// errorRow is a row of docs/errors.md: reason, code, meaning, what to do, retry.
var errorRow = regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| ([A-Z_]+) \\| .+ \\| .+ \\| (yes|no) \\|$")

func TestTheErrorsPageListsEveryReasonWithItsCodeAndRetry(t *testing.T) {
	page, err := os.ReadFile("../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	reasons := task.ErrorReasons()
	for _, row := range errorRow.FindAllStringSubmatch(string(page), -1) {
		reason := task.ErrorReason(row[1])
		if _, ok := reasons[reason]; !ok {
			t.Errorf("%s stands on the page twice, or nowhere in the code", reason)
			continue
		}
		delete(reasons, reason)
		s := status.Convert(reasoned(reason, "message"))
		if want := code.Code_name[int32(s.Code())]; row[2] != want {
			t.Errorf("%s: the page says %s, the code %s", reason, row[2], want)
		}
		if retry := canRetry(s); (row[3] == "yes") != retry {
			t.Errorf("%s: the page says retry: %s, the code %v", reason, row[3], retry)
		}
	}
	for reason := range reasons {
		t.Errorf("%s stands on no row of the page", reason)
	}
}

// canRetry reports whether a caller should retry after an answer.
// DEADLINE_EXCEEDED has no delay, because the caller has already waited.
func canRetry(s *status.Status) bool {
	for _, d := range s.Details() {
		if _, ok := d.(*errdetails.RetryInfo); ok {
			return true
		}
	}
	return s.Code() == codes.DeadlineExceeded
}

func TestEveryReasonConstantHasACode(t *testing.T) {
	source, err := os.ReadFile("../task/reason.go")
	if err != nil {
		t.Fatal(err)
	}
	reasons := task.ErrorReasons()
	declared := regexp.MustCompile(`ErrorReason = "([A-Z_]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(declared) != len(reasons) {
		t.Errorf("%d reasons are declared, %d have a code", len(declared), len(reasons))
	}
	for _, d := range declared {
		if _, ok := reasons[task.ErrorReason(d[1])]; !ok {
			t.Errorf("%s has no code", d[1])
		}
		if d[1] != strings.ToUpper(d[1]) || len(d[1]) > 63 {
			t.Errorf("%s is not a reason as google.rpc.ErrorInfo wants it", d[1])
		}
	}
}
