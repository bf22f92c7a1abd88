package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/task"
)

// leastMove bounds from below how long a move waits for dispatchers.
const leastMove = time.Minute

func (c *ctl) assignMove() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "move", Short: "Make running dispatchers agree in Postgres instead of ZooKeeper, or the other way round", Args: cobra.NoArgs,
		Long: "Make running dispatchers agree on the owners of shards in Postgres instead of ZooKeeper, or the other way round.\n" +
			"All of them must be configured for both. The strategy is taken along. Shards stay owned meanwhile. If the\n" +
			"command is interrupted the move goes on; repeating it waits for the end. Afterwards set assignment in the\n" +
			"configuration of all programs.",
		Example: "  perceptorctl assign move --to postgres",
	}
	cli.ConfigFlags(cmd, config.NeedPostgres|config.NeedAssignment, func(cmd *cobra.Command, conf *config.Config) error {
		if to != config.InPostgres && to != config.InZooKeeper {
			return cli.Usagef("--to: %q: must be %s or %s", to, config.InPostgres, config.InZooKeeper)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), max(c.timeout, leastMove))
		defer cancel()
		where, closeConnections, err := openAssignment(ctx, conf, c.timeout)
		if err != nil {
			return err
		}
		defer closeConnections()
		err = where.Move(ctx, to, func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) })
		if errors.Is(err, app.ErrUnmovable) {
			err = &cli.Error{Code: cli.Conflict, Err: err}
		}
		record(cmd, conf, task.AuditEvent{}, assignError(err))
		return assignError(err)
	}, "assignment", "leases", "zookeeper", "postgres")
	cmd.Flags().StringVar(&to, "to", "", "postgres or zookeeper")
	return cmd
}
