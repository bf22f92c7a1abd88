// Command loadtest puts load on a Perceptor installation, disturbs it, checks every task
// against the contract from outside, and measures. Each subcommand is one experiment.
// README.md lists the questions that they answer.
//
//	go run ./loadtest run --stack real --type mix --rate 1000 --for 30s
//	go run ./loadtest cycle --rate 20000 --for 5m --json cycle.json --svg cycle.svg
//
// It exits with status 1 if the verdict of the experiment is a fault or the run failed.
package main

import (
	"context"
	_ "embed" // the guide
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/loadtest/abuse"
	"github.com/perceptor/perceptor/loadtest/assign"
	"github.com/perceptor/perceptor/loadtest/backlog"
	"github.com/perceptor/perceptor/loadtest/compare"
	"github.com/perceptor/perceptor/loadtest/fairness"
	"github.com/perceptor/perceptor/loadtest/fleet"
	"github.com/perceptor/perceptor/loadtest/floor"
	"github.com/perceptor/perceptor/loadtest/hang"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/idle"
	"github.com/perceptor/perceptor/loadtest/imports"
	"github.com/perceptor/perceptor/loadtest/midnight"
	"github.com/perceptor/perceptor/loadtest/operate"
	"github.com/perceptor/perceptor/loadtest/outbox"
	"github.com/perceptor/perceptor/loadtest/roundtrip"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/storm"
	"github.com/perceptor/perceptor/loadtest/tenants"
	"github.com/perceptor/perceptor/loadtest/workload"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // like taskd and dispatcher; recommended for busy listeners
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "loadtest:", err)
		os.Exit(1)
	}
}

// guide explains the experiments.
//
//go:embed README.md
var guide string

// experiments returns the subcommands in the order of the help.
func experiments() []*cobra.Command {
	return []*cobra.Command{
		harness.Command(scenario.Run(), guide),
		harness.Command(scenario.Cycle(), guide),
		harness.Command(scenario.Fire(), guide),
		harness.Command(scenario.Add(), guide),
		harness.Command(scenario.Soak(), guide),
		harness.Command(new(floor.DefaultOptions()), guide),
		harness.Command(new(idle.DefaultOptions()), guide),
		harness.Command(new(fleet.DefaultOptions()), guide),
		harness.Command(new(compare.DefaultOptions()), guide),
		harness.Command(new(imports.DefaultOptions()), guide),
		harness.Command(new(backlog.DefaultOptions()), guide),
		harness.Command(new(roundtrip.DefaultOptions()), guide),
		harness.Command(new(operate.DefaultOptions()), guide),
		harness.Command(new(midnight.DefaultOptions()), guide),
		harness.Command(new(assign.DefaultExperiment()), guide),
		harness.Command(new(fairness.DefaultOptions()), guide),
		harness.Command(new(tenants.DefaultOptions()), guide),
		harness.Command(new(storm.DefaultOptions()), guide),
		harness.Command(new(hang.DefaultOptions()), guide),
		harness.Command(new(abuse.DefaultOptions()), guide),
		harness.Command(new(outbox.DefaultOptions()), guide),
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "loadtest", Short: "Load, disturb, check and measure a Perceptor installation",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(experiments()...)
	root.AddCommand(
		process(harness.ListenerName, func(ctx context.Context, _ []string) error {
			end, err := harness.ProfileLife()
			if err != nil {
				return err
			}
			defer end()
			return workload.ServeListener(ctx, os.Stdin, os.Stdout)
		}),
		process(abuse.RivalName, func(ctx context.Context, _ []string) error {
			return abuse.ServeRival(ctx, os.Stdin, os.Stdout)
		}),
		process(assign.MemberName, func(ctx context.Context, _ []string) error {
			return assign.ServeMember(ctx, os.Stdin, os.Stderr)
		}),
		process(compare.EngineName, func(ctx context.Context, args []string) error {
			return compare.Engine(ctx, os.Getenv(compare.DSNVariable), args, os.Stdout)
		}),
	)
	return root
}

// process returns a hidden command that experiments start as a process of its own.
func process(name string, serve func(context.Context, []string) error) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: "A process of an experiment", Hidden: true, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error { return serve(cmd.Context(), args) },
	}
}
