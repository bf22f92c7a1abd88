package main

import (
	"testing"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// TestTheBarOfABulkOperationCountsTasks uses operations that have begun everywhere and ended in one database.
func TestTheBarOfABulkOperationCountsTasks(t *testing.T) {
	for name, c := range map[string]struct {
		o           *perceptorv1.BulkOperation
		done, total int64
	}{
		"counted":     {&perceptorv1.BulkOperation{FinishedParts: 1, Matched: 70, Done: 60, Failed: 10, Counted: 140}, 70, 140},
		"not counted": {&perceptorv1.BulkOperation{FinishedParts: 1, Matched: 70, Done: 60, Failed: 10}, 70, 0},
		"dry run":     {&perceptorv1.BulkOperation{FinishedParts: 1, Matched: 70, DryRun: true}, 1, 16},
	} {
		if done, total := bulkDone(c.o); done != c.done || total != c.total {
			t.Errorf("%s: %d of %d, want %d of %d", name, done, total, c.done, c.total)
		}
	}
}

func TestAWatchTellsWhyTheServiceHasAbortedAnOperation(t *testing.T) {
	o := &perceptorv1.BulkOperation{Id: 7, State: perceptorv1.BulkOperation_ABORTED, Parts: []*perceptorv1.BulkOperation_Part{
		{Database: 0, State: perceptorv1.BulkOperation_DONE, Error: "that was repeated"},
		{Database: 1, State: perceptorv1.BulkOperation_ABORTED, Error: "aborted by operation 9"},
	}}
	if got, want := whyAborted(o), "operation 7 was aborted: database 1: aborted by operation 9"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if o.Parts[1].Error = ""; whyAborted(o) != "" {
		t.Errorf("aborted by a caller: %q", whyAborted(o))
	}
}
