package kernel

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestABlockThatCannotBeReadIsNoLostValue: the rows of a claim would wait for an hour because of it.
func TestABlockThatCannotBeReadIsNoLostValue(t *testing.T) {
	for file, want := range map[string]bool{"heaptoast.c": true, "toast_compression.c": true, "md.c": false, "bufmgr.c": false} {
		err := fmt.Errorf("claim: %w", &pgconn.PgError{Code: "XX001", File: file})
		if DataCorrupted(err) != want {
			t.Errorf("an error of %s: %t", file, !want)
		}
	}
}
