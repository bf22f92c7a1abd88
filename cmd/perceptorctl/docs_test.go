package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	markdown "github.com/perceptor/perceptor/internal/pages"
)

// Pages name commands and flags, and the alerts tell people to run them at night.
func TestTheCommandsInTheDocsExist(t *testing.T) {
	all, err := markdown.Read("../..")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`perceptorctl ([^`]+)`")
	found := 0
	for _, page := range all {
		lines := commandLines(page)
		for _, m := range named.FindAllStringSubmatch(page.Text, -1) {
			lines = append(lines, m[1])
		}
		found += len(lines)
		for _, line := range lines {
			if problem := missing(line); problem != "" {
				t.Errorf("%s: perceptorctl %s: %s", page.Path, line, problem)
			}
		}
	}
	if found < 250 {
		t.Errorf("found %d commands in the pages, which is too few to be all of them", found)
	}
}

// shellLine matches a command in a block of code, with variables of the environment or a
// prompt in front and without the flags of all commands, up to a pipe, a redirection, a substitution or a comment.
var shellLine = regexp.MustCompile(`(?m)^(?:\$ |\w+=\S+ )*perceptorctl (?:--[a-z-]+ [^-\s]\S* )*([^|>#$\n]+)`)

// commandLines returns what follows perceptorctl in the blocks of code of a page.
func commandLines(page *markdown.Page) (lines []string) {
	for _, b := range page.Blocks {
		switch language, _, _ := strings.Cut(b.Info, " "); language {
		case "", "sh", "shell":
			for _, m := range shellLine.FindAllStringSubmatch(strings.ReplaceAll(b.Text, "\\\n", " "), -1) {
				lines = append(lines, m[1])
			}
		}
	}
	return lines
}

var longFlag = regexp.MustCompile(`^--([a-z][a-z-]*)`)

// missing says what of a command line does not exist: a command or a flag.
func missing(line string) string {
	words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" |=[]", r) })
	cmd := newCommand()
	for len(words) > 0 {
		i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == words[0] })
		if i < 0 {
			break
		}
		cmd, words = cmd.Commands()[i], words[1:]
	}
	if cmd.HasSubCommands() && len(words) > 0 && !strings.HasPrefix(words[0], "-") && cmd.ValidateArgs(words) != nil {
		return "there is no command " + words[0]
	}
	for _, word := range words {
		if m := longFlag.FindStringSubmatch(word); m != nil && m[1] != "help" && cmd.Flag(m[1]) == nil {
			return "there is no flag --" + m[1]
		}
	}
	return ""
}
