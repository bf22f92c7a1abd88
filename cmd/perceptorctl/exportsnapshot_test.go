package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
)

func TestTheEndOfASnapshotSaysWhatHasEndedIt(t *testing.T) {
	conflict := &pgconn.PgError{Code: "40001", Message: "canceling statement due to conflict with recovery"}
	for _, c := range []struct {
		name        string
		interrupted bool
		err         error
		code        int
		text, hint  string
	}{
		{"Ctrl-C", true, fmt.Errorf("database 3: %w", context.Canceled), cli.Failure, "the export was interrupted", "start it anew"},
		{"a server that hangs", false, fmt.Errorf("database 3: %w", os.ErrDeadlineExceeded), cli.Unavailable, "database 3", "is the server overloaded"},
		{"a standby that replays", false, fmt.Errorf("database 3: %w", conflict), cli.Unavailable, "conflict with recovery", "max_standby_streaming_delay"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.interrupted {
				cancel()
			}
			cmd := &cobra.Command{}
			cmd.SetContext(ctx)
			var got *cli.Error
			if err := (&snapshotSink{}).end(cmd, c.err); !errors.As(err, &got) {
				t.Fatal(err)
			}
			if got.Code != c.code || !strings.Contains(got.Error(), c.text) || !strings.Contains(got.Hint, c.hint) {
				t.Errorf("exit code %d, %q, hint %q", got.Code, got, got.Hint)
			}
		})
	}
}
