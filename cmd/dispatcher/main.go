// Command dispatcher owns shards, claims their due tasks in Postgres and publishes
// the runs to Kafka. Dispatchers share the shards through Postgres or ZooKeeper: run
// two or more.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/schedule"
)

// needs says what the configuration must have.
const needs = config.NeedPostgres | config.NeedKafka | config.NeedAssignment | config.ListensDispatcher

func main() { os.Exit(cli.Main(newCommand())) }

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "dispatcher",
		Short: "Claim due tasks and publish their runs to Kafka",
		Long: "Own a share of the 512 shards, claim their due tasks and publish the runs to Kafka. On SIGTERM or SIGINT,\n" +
			"hand the shards over and exit. Run two or more dispatchers.\n\n" +
			"Every key of the configuration is also a flag; docs/configuration.md describes them.",
		Example: "  dispatcher --config /etc/perceptor.yaml\n  dispatcher --config /etc/perceptor.yaml --print-config",
		Args:    cobra.NoArgs,
	}
	cli.ConfigFlags(root, needs, serve)
	root.AddCommand(cli.VersionCommand("tzdata-"+schedule.ZoneDataVersion()), cli.HealthCommand(needs, func(c *config.Config) string { return c.Dispatcher.OpsAddr }))
	return root
}
