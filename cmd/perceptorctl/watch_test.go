package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
)

// A look that fails for a moment shows nothing, and the next one follows.
func TestWatchShowsAgainUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	var out, hints bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetErr(&hints)
	ctx, cancel := context.WithCancel(t.Context())
	cmd.SetContext(ctx)
	looks := 0
	err := showAgain(cmd, time.Millisecond, func() error {
		looks++
		cmd.Print("hint ") //nolint:forbidigo // to standard error
		switch looks {
		case 2:
			return &cli.Error{Code: cli.Unavailable, Err: errors.New("away")}
		case 4:
			cancel()
		}
		_, err := cmd.OutOrStdout().Write([]byte("look\n"))
		return err
	})
	if got, want := out.String(), strings.Repeat("hint look\n", 1)+"\nhint look\n"; err != nil || got != want {
		t.Errorf("%q and %v, want %q", got, err, want)
	}
	if hints.Len() > 0 {
		t.Errorf("hints %q beside the frames", hints.String())
	}
}

func TestWatchEndsIfTheFirstLookFails(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	away := &cli.Error{Code: cli.Unavailable, Err: errors.New("away")}
	if err := showAgain(cmd, time.Millisecond, func() error { return away }); !errors.Is(err, away) {
		t.Errorf("%v, want %v", err, away)
	}
}
