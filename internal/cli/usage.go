package cli

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/perceptor/perceptor/internal/spelling"
)

// plainUsage makes the errors of a command and those below it, about their arguments and the values of their flags, ones
// for people: those of cobra and strconv are for programmers.
func plainUsage(root *cobra.Command) {
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
			return unknownFlag(cmd.Flags(), unknown.GetSpecifiedName())
		}
		return plainValue(err)
	})
	plainArguments(root)
}

// unknownFlag names the flags that are spelled alike, and those of a section, as --taskd.grace for --grace.
func unknownFlag(flags *pflag.FlagSet, name string) error {
	var best []string
	distance := 1 + min(len(name), maxFlag)/4
	flags.VisitAll(func(f *pflag.Flag) {
		d := spelling.Distance(name[:min(len(name), maxFlag)], f.Name)
		if strings.HasSuffix(f.Name, "."+name) {
			d = 0
		}
		switch {
		case f.Hidden || d > distance:
		case d < distance:
			best, distance = []string{"--" + f.Name}, d
		default:
			best = append(best, "--"+f.Name)
		}
	})
	text := "unknown flag: --" + name
	if len(best) > 0 && len(best) <= 3 {
		text += "; did you mean " + strings.Join(best, " or ") + "?"
	}
	return errors.New(text)
}

// maxFlag bounds the names that are compared.
const maxFlag = 60

// ofCobra matches the errors of cobra about the number of arguments, which have no type.
var ofCobra = regexp.MustCompile(`arg\(s\)|^unknown command`)

func plainArguments(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		plainArguments(c)
	}
	check := cmd.Args
	if check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		switch {
		case err == nil || !ofCobra.MatchString(err.Error()): // a command has words of its own
			return err
		case cmd.HasSubCommands() && len(args) > 0: // the argument was perhaps meant as a command
			return err
		}
		return wrongArguments(cmd, args, err)
	}
}

// wrongArguments says which argument is missing or one too many, by the line of usage of the command.
func wrongArguments(cmd *cobra.Command, args []string, otherwise error) error {
	required, most := argumentsOf(cmd.Use)
	switch {
	case len(args) < len(required):
		return fmt.Errorf("the argument %s is missing", required[len(args)])
	case len(args) > most && most == 0:
		return fmt.Errorf("%q is one argument too many: %s takes none", args[0], cmd.CommandPath())
	case len(args) > most:
		return fmt.Errorf("%q is one argument too many: %s takes %s", args[most], cmd.CommandPath(), strings.Join(required, " "))
	}
	return otherwise
}

// argumentsOf returns the arguments that a line of usage requires, such as TASK..., and how many it allows at most.
// Flags in the line do not count, and those in brackets are not required.
func argumentsOf(use string) (required []string, most int) {
	for _, word := range strings.Fields(use)[1:] {
		optional := strings.HasPrefix(word, "[")
		if strings.HasPrefix(word, "-") || word == "[flags]" {
			continue
		}
		if most++; strings.Contains(word, "...") {
			most = math.MaxInt32
		}
		if !optional {
			required = append(required, word)
		}
	}
	return required, most
}

// plainValue names the flag and the value, and says what the flag takes.
func plainValue(err error) error {
	var wrong *pflag.InvalidValueError
	if !errors.As(err, &wrong) {
		return err
	}
	f := wrong.GetFlag()
	return fmt.Errorf("--%s: %q%s", f.Name, wrong.GetValue(), plainCause(f.Value.Type(), errors.Unwrap(wrong)))
}

// plainCause says what is wrong with a value of a type, after the value.
func plainCause(of string, cause error) string {
	tooLarge := errors.Is(cause, strconv.ErrRange)
	switch {
	case of == "int32" && tooLarge:
		return fmt.Sprintf(" is not between %d and %d", math.MinInt32, math.MaxInt32)
	case (of == "int" || of == "int64") && tooLarge:
		return fmt.Sprintf(" is not between %d and %d", math.MinInt64, math.MaxInt64)
	case of == "int" || of == "int32" || of == "int64":
		return " is not a whole number"
	case of == "intSlice":
		return " is not a list of whole numbers"
	case of == "float64" && tooLarge:
		return " is too large a number"
	case of == "float64":
		return " is not a number"
	case of == "bool":
		return " is neither true nor false"
	case of == "duration" && !strings.HasPrefix(cause.Error(), "time: "): // the package duration says what it is
		return " is " + cause.Error()
	}
	return ": " + cause.Error()
}
