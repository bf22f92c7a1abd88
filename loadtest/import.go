package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/perceptor/perceptor/loadtest/backlog"
	"github.com/perceptor/perceptor/loadtest/harness"
)

func importCommand() *cobra.Command {
	o, output := backlog.DefaultImport(), harness.Output{}
	cmd := &cobra.Command{
		Use: "import", Short: "the bulk path: generated tasks into packs, as fast as it goes", Args: cobra.NoArgs,
		Long: "import makes tasks and writes them through the bulk path into an empty server: what a task takes on disk, in the\n" +
			"log and of the processors, and how many a second. Making them is part of the time. Then everything is read back.",
		Example: "  loadtest import --tasks 10e6\n  loadtest import --tasks 50e6 --loaders 1 --json import.json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Progress = cmd.ErrOrStderr()
			report, err := backlog.Import(cmd.Context(), o)
			if report == nil {
				return err
			}
			if err = errors.Join(err, output.Write(cmd, report)); err == nil && report.Verified.Broken() {
				return harness.ErrBroken
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	loadFlags(f, &o.Load)
	f.IntVar(&o.Days, "days", o.Days, "tasks are due within so many days")
	f.IntVar(&o.ParamsBytes, "params-bytes", o.ParamsBytes, "size of a task's params")
	f.Uint64Var(&o.Seed, "seed", 0, "of everything random (default: a new one)")
	f.BoolVar(&o.Verify, "verify", o.Verify, "read everything back and compare count and checksum")
	f.StringVar(&o.DataDir, "data-dir", "", "where the servers keep their data (default: the directory of temporary files)")
	f.StringVar(&output.JSON, "json", "", "write the report to this file, too (-: to standard output)")
	harness.PostgresFlags(f, &o.Real)
	return cmd
}

func loadFlags(f *pflag.FlagSet, l *backlog.Load) {
	f.Var((*many)(&l.Tasks), "tasks", "how many: 1000000, 10e6, 1e9")
	f.IntVar(&l.Databases, "databases", l.Databases, "logical databases to spread them over, from the first")
	f.IntVar(&l.Loaders, "loaders", l.Loaders, "chunks that are loaded at the same time")
	f.IntVar(&l.Chunk, "chunk", l.Chunk, "tasks of one transaction; a loader holds some 500 bytes of memory for each")
}

// many is a flag for large whole numbers, which may be written as 1e9.
type many int64

func (m *many) Type() string   { return "number" }
func (m *many) String() string { return strconv.FormatInt(int64(*m), 10) }

func (m *many) Set(text string) error {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || x != math.Trunc(x) || math.Abs(x) > 1<<53 {
		return fmt.Errorf("%q is not a whole number such as 1000000 or 10e6", text)
	}
	*m = many(x)
	return nil
}
