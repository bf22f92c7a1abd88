// Package cli holds what the command lines of all programs share: signals, exit
// codes, the format of errors, and the flags of the configuration.
//
// Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 conflict, 5
// unavailable. Results go to standard output. Errors go to standard error as
// "PROGRAM: ERROR", followed by a hint if there is one.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	Failure     = 1
	Usage       = 2
	NotFound    = 3
	Conflict    = 4
	Unavailable = 5
)

// Error is an error with the exit code of the program.
type Error struct {
	Code int
	Err  error
	// Hint says how to correct it; it may be empty.
	Hint string
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Usagef returns an error about how the program was called.
func Usagef(format string, args ...any) error {
	return &Error{Code: Usage, Err: fmt.Errorf(format, args...)}
}

// Main runs a command and returns the exit code. The first SIGINT or SIGTERM
// cancels its context; a second one ends the process at once.
func Main(root *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return Run(ctx, root)
}

// Run is [Main] without the signals.
func Run(ctx context.Context, root *cobra.Command) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.HiddenDefaultCmd = false
	plainUsage(root)
	begun := false
	root.PersistentPreRun = func(*cobra.Command, []string) { begun = true }
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var known *Error
	if !errors.As(err, &known) {
		known = &Error{Code: Failure, Err: err}
		if !begun { // cobra refused flags or arguments
			known.Code = Usage
		}
	}
	if known.Code == Usage && known.Hint == "" {
		known.Hint = fmt.Sprintf("run %s --help", cmd.CommandPath())
	}
	fmt.Fprintf(root.ErrOrStderr(), "%s: %s\n", root.Name(), indented(suggested(err.Error())))
	if known.Hint != "" {
		fmt.Fprintf(root.ErrOrStderr(), "hint: %s\n", known.Hint)
	}
	return known.Code
}

// suggested makes the suggestions of cobra, each on a line of its own, a part of the sentence.
func suggested(text string) string {
	unknown, names, ok := strings.Cut(text, "\n\nDid you mean this?\n")
	if !ok {
		return text
	}
	return unknown + "; did you mean " + strings.Join(strings.Fields(names), " or ") + "?"
}

// UnknownCommand is for the Args of a command that only has others below it: it refuses an argument, and
// names the commands that are spelled alike.
func UnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = max(1, min(len(args[0])/2, 2)) // every word of three letters is near another one
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	alike := cmd.SuggestionsFor(args[0])
	if len(alike) == 0 {
		alike = synonyms(cmd, args[0])
	}
	if all := cmd.Commands(); len(all) == 1 { // then nothing else can be meant
		alike = []string{all[0].Name()}
	}
	if len(alike) > 0 {
		text += "; did you mean " + strings.Join(alike, " or ") + "?"
	}
	return errors.New(text)
}

// words are the names that commands of one meaning have here and in other programs.
var words = [][]string{
	{"get", "show", "describe", "inspect", "info"},
	{"list", "ls"},
	{"add", "create", "new"},
	{"update", "edit", "set", "change"},
	{"delete", "remove", "rm", "purge", "cancel", "abort", "revoke"},
	{"trigger", "run", "fire"},
	{"replay", "retry"},
	{"history", "events", "log", "logs"},
}

// synonyms returns the names of the commands below one that mean what a word does.
func synonyms(cmd *cobra.Command, word string) (names []string) {
	for _, same := range words {
		if !slices.Contains(same, word) {
			continue
		}
		for _, c := range cmd.Commands() {
			if slices.Contains(same, c.Name()) {
				names = append(names, c.Name())
			}
		}
	}
	return names
}

// indented indents all lines of an error but the first.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }

// Getenv returns the variable, or otherwise if it is empty.
func Getenv(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
