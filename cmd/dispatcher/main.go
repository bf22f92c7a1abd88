// Command dispatcher owns shards and fires what is due in them: it claims due
// runs in Postgres and publishes them on Kafka. Dispatchers share the shards
// among each other over ZooKeeper: run two or more.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/schedule"
)

func main() { os.Exit(cli.Main(newCommand())) }

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "dispatcher",
		Short: "Fire what is due",
		Long: "Own a share of the 512 shards and fire what is due in them, until SIGTERM or SIGINT; then hand the\n" +
			"shards over and end. Every key of the configuration is a flag, too: see docs/configuration.md.",
		Args: cobra.NoArgs,
	}
	cli.ConfigFlags(root, config.NeedPostgres|config.NeedKafka|config.NeedZooKeeper, serve)
	root.AddCommand(cli.VersionCommand("tzdata-" + schedule.ZoneDataVersion()))
	return root
}
