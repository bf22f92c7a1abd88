package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) packCommand() *cobra.Command {
	return group("pack", "List and restore quarantined packs of the far tier", c.packList(), c.packRestore())
}

// quarantined is a quarantined pack.
type quarantined struct {
	Database int    `json:"database"`
	Pack     int64  `json:"pack,string"`
	Tasks    int    `json:"tasks"`
	Reason   string `json:"reason"`
}

func (c *ctl) packList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List quarantined packs, at most 1,000 of each database", Args: cobra.NoArgs}
	cli.ConfigFlags(cmd, config.NeedPostgres, func(cmd *cobra.Command, conf *config.Config) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		return c.withShards(cmd.Context(), conf, func(ctx context.Context, store *shards.Store) error {
			found, err := store.FarDamaged(ctx)
			if err != nil {
				return &cli.Error{Code: cli.Unavailable, Err: err}
			}
			list, t := []quarantined{}, &table{head: []string{"DATABASE", "PACK", "TASKS", "REASON"}}
			for _, p := range found {
				list = append(list, quarantined{p.Database, p.Pack, p.Tasks, p.Reason})
				t.add(strconv.Itoa(p.Database), strconv.FormatInt(p.Pack, 10), strconv.Itoa(p.Tasks), p.Reason)
			}
			if c.structured() {
				return c.writeData(cmd, list)
			}
			return t.write(cmd.OutOrStdout())
		})
	}, "postgres")
	return cmd
}

// withShards calls f with the databases of the configuration, within the time limit.
func (c *ctl) withShards(ctx context.Context, conf *config.Config, f func(context.Context, *shards.Store) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cluster, err := app.OpenTool(ctx, conf, "perceptorctl")
	if err != nil {
		return err
	}
	defer cluster.Close()
	return f(ctx, shards.New(cluster, shards.Config{}))
}

func (c *ctl) packRestore() *cobra.Command {
	var databases []int
	var packs []int64
	var all bool
	cmd := &cobra.Command{
		Use: "restore", Short: "End the quarantine of packs", Args: cobra.NoArgs,
		Long: "End the quarantine of packs, for example after an upgrade to a program that can read them. Their tasks that are\n" +
			"due fire at once. A pack that cannot be read is quarantined again, so the command does no harm.",
		Example: "  perceptorctl pack restore --database 3 --pack 17\n  perceptorctl pack restore --all",
	}
	cli.ConfigFlags(cmd, config.NeedPostgres, recorded(func(cmd *cobra.Command, conf *config.Config) error {
		chosen, err := chosenDatabases(databases, all)
		if err != nil {
			return err
		}
		if len(packs) > 0 && len(chosen) > 1 {
			return cli.Usagef("--pack needs exactly one --database")
		}
		return c.withShards(cmd.Context(), conf, func(ctx context.Context, store *shards.Store) error {
			return errors.Join(restorePacks(ctx, cmd, store, chosen, packs)...)
		})
	}), "postgres")
	cmd.Flags().IntSliceVar(&databases, "database", nil, fmt.Sprintf("number of a database, 0 to %d; may be repeated", task.Databases-1))
	cmd.Flags().Int64SliceVar(&packs, "pack", nil, "number of a pack of the database; may be repeated (default: all of its quarantined packs)")
	cmd.Flags().BoolVar(&all, "all", false, "restore the packs of all databases")
	return cmd
}

func restorePacks(ctx context.Context, cmd *cobra.Command, store *shards.Store, databases []int, packs []int64) (errs []error) {
	for _, d := range databases {
		n, err := store.Restore(ctx, d, packs)
		if err != nil {
			errs = append(errs, &cli.Error{Code: cli.Unavailable, Err: err})
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "database %2d: %d packs restored\n", d, n)
	}
	return errs
}
