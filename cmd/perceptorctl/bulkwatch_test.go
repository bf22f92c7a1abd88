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
