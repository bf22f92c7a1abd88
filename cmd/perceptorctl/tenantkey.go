package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/duration"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store/control"
)

func (c *ctl) tenantRotateKey() *cobra.Command {
	var overlap time.Duration
	cmd := &cobra.Command{
		Use: "rotate-key NAME", Short: "Give a tenant a new key, which signs its records and is its login to Kafka", Args: cobra.ExactArgs(1),
		Long: "Give a tenant a new key. Listeners learn it by themselves. The previous key remains valid for the overlap; with\n" +
			"--overlap 0s, for a key that has leaked, runs that are on their way are delivered late, by their ack_timeout.",
		Example: "  perceptorctl tenant rotate-key acme --overlap 48h",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				a, err := perceptorv1.NewAdminServiceClient(conn).RotateTenantKey(ctx, &perceptorv1.RotateTenantKeyRequest{
					Name: args[0], Overlap: durationpb.New(overlap),
				})
				if err != nil {
					return err
				}
				return c.show(cmd, a, func() *table {
					t := &table{head: []string{"KEY", "START", "EXPIRES"}}
					for _, k := range a.Keys {
						t.add(strconv.Itoa(int(k.Id)), keyStart(k), timeCell(k.ExpireTime))
					}
					return t
				})
			})
		},
	}
	duration.Var(cmd.Flags(), &overlap, "overlap", 24*time.Hour, "how long the previous key remains valid")
	return c.completesTenants(cmd, "")
}

// keyStart shows since when a key is used. The first key of a tenant has been used from its beginning, and the API has an instant
// at the beginning of time for it.
func keyStart(k *perceptorv1.TenantKey) string {
	if k.StartTime.AsTime().Unix() <= 0 {
		return "-"
	}
	return timeCell(k.StartTime)
}

// tenantKafka reads Postgres, because no call of the API shows passwords to an operator.
func (c *ctl) tenantKafka() *cobra.Command {
	var file, name string
	cmd := &cobra.Command{
		Use: "kafka NAME", Short: "Print the commands that create the Kafka users of a tenant, with their passwords", Args: cobra.ExactArgs(1),
		Long: "Print the commands of Kafka's tools that create the users of a tenant, with access lists and quotas, for brokers on which\n" +
			"taskd may not create them (kafka.users.mode: manual). Run them after the creation of a tenant and after each rotation of its\n" +
			"key, within a minute. The command reads Postgres, and needs the configuration of taskd.",
	}
	cli.ConfigFlags(cmd, 0, func(cmd *cobra.Command, conf *config.Config) error {
		if err := needPostgres(conf); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
		defer cancel()
		cluster, err := app.OpenTool(ctx, conf, "perceptorctl")
		if err != nil {
			return err
		}
		defer cluster.Close()
		commands, err := app.KafkaCommands(ctx, conf, control.New(cluster, nil), name, file)
		if err != nil {
			return domainError(err)
		}
		for _, line := range commands {
			fmt.Fprintln(cmd.OutOrStdout(), line)
		}
		return nil
	}, "postgres", "kafka")
	load := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name = args[0]
		return load(cmd, nil)
	}
	cmd.Flags().StringVar(&file, "command-config", "admin.properties", "file with the client settings for Kafka's tools")
	return cmd
}
