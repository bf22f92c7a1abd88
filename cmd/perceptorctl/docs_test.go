package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Pages name commands and flags, and the alerts tell people to run them at night.
func TestTheCommandsInTheDocsExist(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`perceptorctl ([^`]+)`")
	found := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			found++
			if problem := missing(m[1]); problem != "" {
				t.Errorf("%s: perceptorctl %s: %s", filepath.Base(page), m[1], problem)
			}
		}
	}
	if found < 100 {
		t.Errorf("found %d commands in the pages, which is too few to be all of them", found)
	}
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
