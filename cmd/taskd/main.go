// Command taskd serves the API: tasks, what listeners say about runs, tenants
// and tokens, over gRPC and HTTP/JSON. It keeps no state: run as many as you
// like. `taskd dev` runs a whole installation in one process tree.
package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/schedule"
)

// needs says what the configuration must have.
const needs = config.NeedPostgres | config.NeedKafka | config.ListensTaskd

func main() { os.Exit(cli.Main(newCommand())) }

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "taskd",
		Short: "Serve the API of Perceptor",
		Long: "Serve the gRPC and HTTP API of Perceptor. On SIGTERM or SIGINT, finish the calls in progress and exit.\n" +
			"Run as many as you like behind a load balancer.\n\n" +
			"Every key of the configuration is also a flag; docs/configuration.md describes them.",
		Example: "  taskd --config /etc/perceptor.yaml\n  taskd --config /etc/perceptor.yaml --print-config\n  taskd dev --demo",
		Args:    cobra.NoArgs,
	}
	cli.ConfigFlags(root, needs, serve)
	load := root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error { return hinted(load(cmd, args)) }
	root.AddCommand(newDevCommand(), cli.VersionCommand("tzdata-"+schedule.ZoneDataVersion()), cli.HealthCommand(needs, func(c *config.Config) string { return c.Taskd.OpsAddr }))
	return root
}

// hinted tells somebody who has started taskd without servers of the command that brings its own.
func hinted(err error) error {
	var known *cli.Error
	if devHint != "" && errors.As(err, &known) && errors.Is(err, config.ErrNoServers) {
		known.Hint += "; " + devHint
	}
	return err
}
