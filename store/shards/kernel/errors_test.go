package kernel

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// Lists of dead runs get this error, too: they are about no single task, and do nothing.
func TestTheErrorOfAServerThatHangsFitsCallsThatRead(t *testing.T) {
	t.Parallel()
	var known *task.Error
	err := Unavailable(fmt.Errorf("list dead runs: %w", store.ErrStalled))
	if !errors.As(err, &known) || known.Reason != task.ReasonDatabaseStalled {
		t.Fatal(err)
	}
	if text := known.Message; strings.Contains(text, "done") || strings.Contains(text, "the task's") || !strings.Contains(text, "nothing was changed") {
		t.Errorf("it says %q", text)
	}
}
