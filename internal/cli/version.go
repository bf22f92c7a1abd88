package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// What a release says of itself. The linker sets them (-X); a program that was built
// otherwise says what the go command has noted about the clone.
var version, commit, date string

// Build is where a program comes from.
type Build struct {
	Program string `json:"program" yaml:"program"`
	// Version is the version of the release, or that of the module.
	Version string `json:"version" yaml:"version"`
	// Commit is the whole hash, with the suffix -dirty if files differed from it.
	Commit string `json:"commit" yaml:"commit"`
	// Date is the time of the commit in RFC 3339, UTC.
	Date string `json:"date" yaml:"date"`
	Go   string `json:"go" yaml:"go"`
	// Parts are what else has a version, such as "tzdata-2025c".
	Parts []string `json:"parts" yaml:"parts"`
}

const unknown = "unknown"

// NewBuild returns where this program comes from.
func NewBuild(program string, parts ...string) Build {
	b := Build{Program: program, Version: "devel", Commit: unknown, Date: unknown, Go: unknown, Parts: parts}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.fromModule(info)
	}
	for _, said := range []struct {
		by   string
		into *string
	}{{version, &b.Version}, {commit, &b.Commit}, {date, &b.Date}} {
		if said.by != "" {
			*said.into = said.by
		}
	}
	return b
}

func (b *Build) fromModule(info *debug.BuildInfo) {
	b.Go = info.GoVersion
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	dirty := ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "-dirty"
			}
		}
	}
	if b.Commit != unknown {
		b.Commit += dirty
	}
}

func (b Build) String() string {
	return strings.Join(slices.Concat([]string{b.Program, b.Version, "commit", b.Commit, "of", b.Date, b.Go}, b.Parts), " ")
}

func (b Build) write(w io.Writer, format string) error {
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(b)
	case "yaml":
		text, err := yaml.Marshal(b)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	case "table", "wide":
		_, err := fmt.Fprintln(w, b)
		return err
	}
	return Usagef("--output: %q is none of table, wide, json, yaml", format)
}

// Version returns the version of the program, or its commit if it has none.
func Version() string {
	b := NewBuild("")
	if b.Version == "devel" && b.Commit != unknown {
		return "devel-" + b.Commit[:min(12, len(b.Commit))]
	}
	return b.Version
}

// VersionCommand returns a command that prints the version of the program and of
// parts, such as "tzdata-2025c".
func VersionCommand(parts ...string) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print version, commit and date", Args: cobra.NoArgs}
	format := cmd.Flags().StringP("output", "o", "table", "output format: table (one line), json or yaml")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return NewBuild(cmd.Root().Name(), parts...).write(cmd.OutOrStdout(), *format)
	}
	return cmd
}
