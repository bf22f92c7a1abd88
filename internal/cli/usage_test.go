package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/duration"
)

// commands are commands with arguments and flags of every type.
func commands() *cobra.Command {
	run := func(*cobra.Command, []string) error { return nil }
	root := &cobra.Command{Use: "prog"}
	one := &cobra.Command{Use: "one ID", Args: cobra.ExactArgs(1), RunE: run}
	one.Flags().Int("int", 0, "")
	one.Flags().Int32("int32", 0, "")
	one.Flags().Int64P("int64", "n", 0, "")
	one.Flags().Float64("float", 0, "")
	one.Flags().Bool("bool", false, "")
	one.Flags().IntSlice("list", nil, "")
	var wait time.Duration
	duration.Var(one.Flags(), &wait, "wait", 0, "")
	one.Flags().Func("own", "", func(string) error { return errors.New("not mine") })
	group := &cobra.Command{Use: "group FILE...|-", Args: cobra.MinimumNArgs(1), RunE: run}
	group.AddCommand(&cobra.Command{Use: "sub", Args: cobra.NoArgs, RunE: run})
	root.AddCommand(one, group, &cobra.Command{Use: "none", Args: cobra.NoArgs, RunE: run},
		&cobra.Command{Use: "two [flags] -- A B", Args: cobra.ExactArgs(2), RunE: run},
		&cobra.Command{Use: "words TEXT", Args: func(*cobra.Command, []string) error { return errors.New("quote it") }, RunE: run},
		&cobra.Command{Use: "more ID [FILE...]", Args: cobra.MinimumNArgs(1), RunE: run})
	return root
}

func TestErrorsOfUsageAreForPeople(t *testing.T) {
	for line, want := range map[string]string{
		"one":                               "the argument ID is missing",
		"one a b":                           `"b" is one argument too many: prog one takes ID`,
		"none extra":                        `"extra" is one argument too many: prog none takes none`,
		"two a":                             "the argument B is missing",
		"two a b c d":                       `"c" is one argument too many: prog two takes A B`,
		"words a b":                         "quote it",
		"more":                              "the argument ID is missing",
		"group":                             "the argument FILE...|- is missing",
		"one a --int x":                     `--int: "x" is not a whole number`,
		"one a --int32 2147483648":          `--int32: "2147483648" is not between -2147483648 and 2147483647`,
		"one a --int64 9223372036854775808": `--int64: "9223372036854775808" is not between -9223372036854775808 and 9223372036854775807`,
		"one a -n 1.5":                      `--int64: "1.5" is not a whole number`,
		"one a --float x":                   `--float: "x" is not a number`,
		"one a --float 1e999":               `--float: "1e999" is too large a number`,
		"one a --bool=perhaps":              `--bool: "perhaps" is neither true nor false`,
		"one a --own x":                     `--own: "x": not mine`,
		"one a --wait 5":                    `--wait: "5" is not a duration such as 250ms, 90s, 36h, 3d or 1d12h`,
		"one a --list 1,x":                  `--list: "1,x" is not a list of whole numbers`,
	} {
		var errs bytes.Buffer
		root := commands()
		root.SetArgs(strings.Fields(line))
		root.SetErr(&errs)
		if code := Run(t.Context(), root); code != Usage || !strings.HasPrefix(errs.String(), "prog: "+want+"\n") {
			t.Errorf("%s ended with %d: %q, want %q", line, code, errs.String(), want)
		}
	}
	for _, line := range []string{"one a", "none", "two a b", "more a", "more a b c", "group a b"} {
		root := commands()
		root.SetArgs(strings.Fields(line))
		if code := Run(t.Context(), root); code != 0 {
			t.Errorf("%s ended with %d", line, code)
		}
	}
}
