package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) epochsCommand() *cobra.Command {
	return group("epochs", "Raise the epochs of restored databases", c.epochsBump())
}

func (c *ctl) epochsBump() *cobra.Command {
	var databases []int
	var all bool
	cmd := &cobra.Command{
		Use: "bump", Short: "Raise the epochs of databases that were restored or failed over", Args: cobra.NoArgs,
		Long: "Raise the epoch of every item in databases that were restored or failed over, so that no dispatcher relies on\n" +
			"what it remembers from before, and move the numbers of later tasks beyond all that were given. Programs do that by\n" +
			"themselves unless rows were put back by hand into tables that stayed; then run the command before they start.\n" +
			"Running dispatchers notice with their next transaction, read the outbox again and continue. The command does no\n" +
			"harm at other times: each dispatcher acquires its items once more.\n" +
			"With a configuration that names the servers it works there; without one it asks the API, with the token of an admin.",
		Example: "  perceptorctl epochs bump --database 3\n  perceptorctl epochs bump --all",
	}
	servers := recorded(func(cmd *cobra.Command, conf *config.Config) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		chosen, err := chosenDatabases(databases, all)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
		defer cancel()
		bumped, err := bump(ctx, conf, chosen)
		return errors.Join(c.showBumped(cmd, bumped), err)
	})
	c.eitherWay(cmd, config.NeedPostgres, servers, func(ctx context.Context, conn *grpc.ClientConn) error {
		chosen, err := chosenDatabases(databases, all)
		if err != nil {
			return err
		}
		bumped, err := bumpByAPI(ctx, perceptorv1.NewAssignmentServiceClient(conn), chosen)
		if bumped == nil {
			return err
		}
		return errors.Join(c.showBumped(cmd, bumped), err)
	}, "postgres")
	cmd.Flags().IntSliceVar(&databases, "database", nil, fmt.Sprintf("number of a database, 0 to %d; may be repeated", task.Databases-1))
	cmd.Flags().BoolVar(&all, "all", false, "raise the epochs of all databases")
	return cmd
}

func chosenDatabases(databases []int, all bool) ([]int, error) {
	if all == (len(databases) > 0) {
		return nil, cli.Usagef("set either --database or --all")
	}
	for _, d := range databases {
		if d < 0 || d >= task.Databases {
			return nil, cli.Usagef("--database: %d: must be 0 to %d", d, task.Databases-1)
		}
	}
	if all {
		for d := range task.Databases {
			databases = append(databases, d)
		}
	}
	slices.Sort(databases)
	return slices.Compact(databases), nil
}

// bumped is what was done to a database.
type bumped struct {
	Database int   `json:"database"`
	Items    int   `json:"items"`
	Lowest   int64 `json:"lowestEpoch"`
	Highest  int64 `json:"highestEpoch"`
}

func (c *ctl) showBumped(cmd *cobra.Command, list []bumped) error {
	if c.structured() {
		return c.writeData(cmd, list)
	}
	t := &table{head: []string{"DATABASE", "ITEMS", "EPOCHS"}}
	for _, b := range list {
		t.add(strconv.Itoa(b.Database), strconv.Itoa(b.Items), span64(b.Lowest, b.Highest))
	}
	return t.write(cmd.OutOrStdout())
}

// bump raises the epochs on the servers.
func bump(ctx context.Context, conf *config.Config, databases []int) ([]bumped, error) {
	cluster, err := app.OpenTool(ctx, conf, "perceptorctl")
	if err != nil {
		return nil, err
	}
	defer cluster.Close()
	store := shards.New(cluster, shards.Config{})
	done := []bumped{}
	var errs []error
	for _, d := range databases {
		owned, err := store.RaiseEpochs(ctx, d)
		if err != nil {
			errs = append(errs, &cli.Error{Code: cli.Unavailable, Err: fmt.Errorf("database %d at %s: %w", d, cluster.Address(d), err)})
			continue
		}
		b := bumped{Database: d, Items: len(owned), Lowest: owned[0].Epoch, Highest: owned[0].Epoch}
		for _, o := range owned {
			b.Lowest, b.Highest = min(b.Lowest, o.Epoch), max(b.Highest, o.Epoch)
		}
		done = append(done, b)
	}
	return done, errors.Join(errs...)
}

// bumpByAPI asks the API to do so. What was done is returned with an error that names the others.
func bumpByAPI(ctx context.Context, api perceptorv1.AssignmentServiceClient, databases []int) ([]bumped, error) {
	r := &perceptorv1.RaiseEpochsRequest{}
	for _, d := range databases {
		r.Databases = append(r.Databases, int32(d))
	}
	reply, err := api.RaiseEpochs(ctx, r)
	if err != nil {
		return nil, err
	}
	done := []bumped{}
	for _, d := range reply.Raised {
		done = append(done, bumped{Database: int(d.Database), Items: int(d.Items), Lowest: d.LowestEpoch, Highest: d.HighestEpoch})
	}
	if len(reply.MissingDatabases) > 0 {
		return done, &cli.Error{Code: cli.Unavailable, Err: fmt.Errorf("databases %v do not answer", reply.MissingDatabases), Hint: "repeat the command for them"}
	}
	return done, nil
}
