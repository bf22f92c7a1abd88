package cli

import (
	"bytes"
	"errors"
	"testing"

	"github.com/spf13/cobra"
)

func TestErrorsDecideTheExitCode(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		args []string
		code int
		text string
	}{
		{"done", nil, nil, 0, ""},
		{"failure", errors.New("broken"), nil, Failure, "prog: broken\n"},
		{"several lines", errors.Join(errors.New("a"), errors.New("b")), nil, Failure, "prog: a\n  b\n"},
		{"known", &Error{Code: NotFound, Err: errors.New("gone"), Hint: "look elsewhere"}, nil, NotFound, "prog: gone\nhint: look elsewhere\n"},
		{"usage", Usagef("--x: %d", 1), nil, Usage, "prog: --x: 1\nhint: run prog --help\n"},
		{"flag", nil, []string{"--nothing"}, Usage, "prog: unknown flag: --nothing\nhint: run prog --help\n"},
		{"misspelled flag", nil, []string{"--wordz"}, Usage, "prog: unknown flag: --wordz; did you mean --word or --words?\nhint: run prog --help\n"},
		{"flag of a section", nil, []string{"--grace=1s"}, Usage, "prog: unknown flag: --grace; did you mean --part.grace?\nhint: run prog --help\n"},
		{"flag of one letter", nil, []string{"-z"}, Usage, "prog: unknown shorthand flag: 'z' in -z\nhint: run prog --help\n"},
		{"argument", nil, []string{"nothing"}, Usage, "prog: \"nothing\" is one argument too many: prog takes none\nhint: run prog --help\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := &cobra.Command{Use: "prog", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return c.err }}
			for _, name := range []string{"word", "words", "part.grace"} {
				root.Flags().String(name, "", "")
			}
			var errs bytes.Buffer
			root.SetArgs(append([]string{}, c.args...))
			root.SetErr(&errs)
			if code := Run(t.Context(), root); code != c.code || errs.String() != c.text {
				t.Errorf("got %d and %q, want %d and %q", code, errs.String(), c.code, c.text)
			}
		})
	}
}
