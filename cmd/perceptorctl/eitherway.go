package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
)

// eitherWay makes a command that goes to the servers if the configuration names them, so that it
// works while no taskd does, and else asks the API.
func (c *ctl) eitherWay(cmd *cobra.Command, needs config.Need, servers func(*cobra.Command, *config.Config) error,
	api func(ctx context.Context, conn *grpc.ClientConn) error, sections ...string) *cobra.Command {
	cli.ConfigFlags(cmd, 0, func(cmd *cobra.Command, conf *config.Config) error {
		if len(conf.Postgres.Servers) > 0 || len(conf.ZooKeeper.Servers) > 0 && needs&config.NeedAssignment != 0 {
			if err := conf.Validate(needs); err != nil {
				return &cli.Error{Code: cli.Usage, Err: err}
			}
			return servers(cmd, conf)
		}
		err := c.withAPI(cmd, api)
		var known *cli.Error
		if errors.As(err, &known) && known.Hint == tokenHint {
			known.Hint += "; with a configuration that names the servers (--config) the command needs no API"
		}
		return err
	}, sections...)
	return cmd
}
