package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/store/control"
)

// tenantProvision goes to the brokers of its own configuration, which taskd may not have yet.
func (c *ctl) tenantProvision() *cobra.Command {
	cmd := &cobra.Command{
		Use: "provision", Short: "Create the Kafka topics, and users, that tenants lack on the configured brokers", Args: cobra.NoArgs,
		Long: "Create the topics of all tenants that the brokers of kafka.brokers lack, and with kafka.users.mode: managed the users of\n" +
			"the tenants with their access lists: before programs move to another Kafka cluster, or after a cluster was emptied. Topics that\n" +
			"exist stay as they are. There is no time limit unless --timeout is set. The command reads Postgres, and needs the configuration that taskd has or will have.",
		Example: "  PERCEPTOR_KAFKA_BROKERS=new-1:9092,new-2:9092 perceptorctl tenant provision",
	}
	cli.ConfigFlags(cmd, 0, recorded(func(cmd *cobra.Command, conf *config.Config) error {
		if err := needPostgres(conf); err != nil {
			return err
		}
		ctx := cmd.Context()
		if cmd.Flags().Changed("timeout") {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.timeout)
			defer cancel()
		}
		cluster, err := app.OpenTool(ctx, conf, "perceptorctl")
		if err != nil {
			return err
		}
		defer cluster.Close()
		done, err := app.ProvisionTenants(ctx, conf, control.New(cluster, nil))
		fmt.Fprintf(cmd.OutOrStdout(), "%d tenants have their topics at %v\n", done, conf.Kafka.Brokers)
		return domainError(err)
	}), "postgres", "kafka")
	return cmd
}
