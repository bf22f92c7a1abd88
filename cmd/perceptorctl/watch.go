package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/duration"
)

const (
	// watchEvery is the distance between two looks.
	watchEvery = time.Second
	// watchAway is how many looks in a row may find the API away.
	watchAway = 60
	// clearScreen moves to the upper left corner and clears what is below.
	clearScreen = "\x1b[H\x1b[J"
)

// watch looks again and again until a look is the last one, or the command is interrupted. An
// API that is away for a moment does not end it.
func watch(ctx context.Context, every time.Duration, look func() (done bool, err error)) error {
	for away := 0; ; {
		done, err := look()
		var known *cli.Error
		switch {
		case ctx.Err() != nil:
			return nil
		case done:
			return err
		case err == nil:
			away = 0
		case away == watchAway || !errors.As(err, &known) || known.Code != cli.Unavailable:
			return err
		default:
			away++
		}
		if !ctxtime.Sleep(ctx, every) {
			return nil
		}
	}
}

// watchable adds --watch to a command that shows something.
func watchable(cmd *cobra.Command) *cobra.Command {
	var every time.Duration
	duration.Var(cmd.Flags(), &every, "watch", 0, "show it again and again after this time (--watch alone: 2s), until Ctrl-C")
	cmd.Flags().Lookup("watch").NoOptDefVal = "2s"
	show := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("watch") {
			return show(cmd, args)
		}
		if every < time.Second {
			return cli.Usagef("--watch: %v is below 1s", every)
		}
		return showAgain(cmd, every, func() error { return show(cmd, args) })
	}
	return cmd
}

// showAgain shows something again and again, until the command is interrupted or the first look
// fails.
func showAgain(cmd *cobra.Command, every time.Duration, show func() error) error {
	out, hints, first := cmd.OutOrStdout(), cmd.ErrOrStderr(), true
	defer func() { cmd.SetOut(out); cmd.SetErr(hints) }()
	return watch(cmd.Context(), every, func() (done bool, err error) {
		var frame bytes.Buffer // a screen changes at once
		cmd.SetOut(&frame)
		cmd.SetErr(&frame)
		if err := show(); err != nil || cmd.Context().Err() != nil {
			return first, err // the first look tells of a wrong address at once
		}
		err = nextFrame(out, first)
		first = false
		_, failed := frame.WriteTo(out)
		return false, errors.Join(err, failed)
	})
}

// nextFrame makes room for the next look: on a terminal it takes the place of the one before.
func nextFrame(out io.Writer, first bool) (err error) {
	switch {
	case cli.IsTerminal(out):
		_, err = fmt.Fprint(out, clearScreen)
	case !first:
		_, err = fmt.Fprintln(out)
	}
	return err
}
