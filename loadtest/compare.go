package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/loadtest/compare"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// compareEngine is the command of this program that is Perceptor's own engine.
const compareEngine = "compare-engine"

func compareCommand() *cobra.Command {
	o := compare.DefaultOptions()
	var out harness.Output
	cmd := &cobra.Command{
		Use: "compare", Short: "Drive other schedulers on PostgreSQL with the same work", Args: cobra.NoArgs,
		Example: "  loadtest compare --only graphile-worker,engine --json out.json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return runCompare(cmd, o, out) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&o.Jobs, "jobs", o.Jobs, "jobs that are added, fired and completed")
	flags.DurationVar(&o.Spread, "spread", o.Spread, "the jobs are due evenly over this; jobs / spread bounds cycles/s")
	flags.IntVar(&o.ParamsBytes, "params-bytes", o.ParamsBytes, "size of each job's params")
	flags.IntVar(&o.Waiting, "waiting", o.Waiting, "jobs that wait in the table while others run; 0: not measured")
	flags.IntVar(&o.LatenessRate, "lateness-rate", o.LatenessRate, "jobs per second for the measurement of lateness; 0: not measured")
	flags.DurationVar(&o.LatenessFor, "lateness-for", o.LatenessFor, "how long that goes on")
	flags.StringSliceVar(&o.Only, "only", nil, "who takes part: "+strings.Join(compare.Names(), ", ")+" (default: all)")
	flags.StringVar(&out.JSON, "json", "", "write the report to this file, too (-: to standard output)")
	harness.PostgresFlags(flags, &o.Stack)
	return cmd
}

func runCompare(cmd *cobra.Command, o compare.Options, out harness.Output) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	o.EngineCommand = []string{self, compareEngine}
	if o.ListenerCommand, err = harness.ListenerCommand(); err != nil {
		return err
	}
	o.Progress = cmd.ErrOrStderr()
	report, err := compare.Run(cmd.Context(), o)
	if report == nil {
		return err
	}
	err = errors.Join(err, out.Write(cmd, report))
	switch {
	case err != nil:
		return err
	case report.Broken() > 0:
		return fmt.Errorf("%w: %d jobs did not run exactly once", harness.ErrBroken, report.Broken())
	case len(report.Failed()) > 0:
		return fmt.Errorf("not complete: %s", strings.Join(report.Failed(), ", "))
	}
	return nil
}

// compareEngineCommand does one phase of compare.
func compareEngineCommand() *cobra.Command {
	return &cobra.Command{
		Use: compareEngine, Short: "One phase of compare; compare starts it", Hidden: true, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return compare.Engine(cmd.Context(), os.Getenv(compare.DSNVariable), args, os.Stdout)
		},
	}
}
