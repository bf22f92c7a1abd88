package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) shardCommand() *cobra.Command {
	return group("shard", "Show the owners of shards", c.shardList())
}

// shard is who owns one, or the chores of a database.
type shard struct {
	// Shard is the item's number: 512 and the database's for chores.
	Shard      int    `json:"shard"`
	Chores     bool   `json:"chores,omitempty"`
	Database   int    `json:"database"`
	Owner      string `json:"owner"`
	Epoch      int64  `json:"epoch"`
	HintAddr   string `json:"hintAddress,omitempty"`
	AcquiredAt string `json:"acquiredAt,omitempty"`
}

func (c *ctl) shardList() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "list", Short: "List the owners of shards and chores", Args: cobra.NoArgs,
		Long: "List the owners of shards and chores as the databases know them. With a configuration that names the servers they\n" +
			"are asked; without one the API is, with the token of an admin, which does not tell the addresses for hints.",
	}
	show := func(cmd *cobra.Command, list []shard, err error) error {
		if len(list) == 0 && err != nil {
			return &cli.Error{Code: cli.Unavailable, Err: err}
		}
		if c.structured() {
			return errors.Join(err, c.writeData(cmd, list))
		}
		return errors.Join(err, shardTable(list, all).write(cmd.OutOrStdout()))
	}
	servers := func(cmd *cobra.Command, conf *config.Config) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
		defer cancel()
		list, err := readOwners(ctx, conf)
		return show(cmd, list, err)
	}
	c.eitherWay(cmd, config.NeedPostgres, servers, func(ctx context.Context, conn *grpc.ClientConn) error {
		f, err := clusterByAPI(ctx, conn)
		if err != nil {
			return err
		}
		list, err := ownersIn(f)
		return show(cmd, list, err)
	}, "postgres")
	cmd.Flags().BoolVar(&all, "all", false, "print one line for each shard instead of one for each range with the same owner")
	return cmd
}

// readOwners returns the shards of all databases that answer, by number, then the
// chores.
func readOwners(ctx context.Context, conf *config.Config) ([]shard, error) {
	cluster, err := app.OpenTool(ctx, conf, "perceptorctl")
	if err != nil {
		return nil, err
	}
	defer cluster.Close()
	store := shards.New(cluster, shards.Config{})
	var asking sync.WaitGroup
	lists, errs := make([][]shards.ItemOwner, task.Databases), make([]error, task.Databases)
	for d := range task.Databases {
		asking.Go(func() {
			if lists[d], errs[d] = store.Owners(ctx, d); errs[d] != nil {
				errs[d] = fmt.Errorf("database %d at %s: %w", d, cluster.Address(d), errs[d])
			}
		})
	}
	asking.Wait()
	var all []shard
	for d, list := range lists {
		for _, i := range list {
			all = append(all, shardOf(d, i))
		}
	}
	slices.SortFunc(all, func(a, b shard) int { return a.Shard - b.Shard })
	return all, errors.Join(errs...)
}

// clusterByAPI asks the API for the state of the databases.
func clusterByAPI(ctx context.Context, conn *grpc.ClientConn) (*perceptorv1.ClusterFigures, error) {
	return perceptorv1.NewMonitoringServiceClient(conn).GetClusterFigures(ctx, &perceptorv1.GetClusterFiguresRequest{OmitFindings: true})
}

// ownersIn returns the shards that the API has told of, by number, then the chores. The error
// names the databases that do not answer.
func ownersIn(f *perceptorv1.ClusterFigures) (all []shard, err error) {
	var missing []int32
	for _, d := range f.Databases {
		if !d.Answers {
			missing = append(missing, d.Database)
		}
		for _, o := range d.Owners {
			s := shard{Shard: int(o.Item), Chores: o.Item >= task.Shards, Database: int(d.Database), Owner: o.Owner, Epoch: o.Epoch}
			if o.AcquireTime != nil {
				s.AcquiredAt = timeCell(o.AcquireTime)
			}
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b shard) int { return a.Shard - b.Shard })
	if len(missing) > 0 {
		err = &cli.Error{Code: cli.Unavailable, Err: fmt.Errorf("databases %v do not answer", missing)}
	}
	return all, err
}

func shardOf(d int, i shards.ItemOwner) shard {
	s := shard{Shard: i.Item, Chores: i.Item >= task.Shards, Database: d, Owner: i.Name, Epoch: i.Epoch, HintAddr: i.HintAddr}
	if i.AcquiredAt > 0 {
		s.AcquiredAt = i.AcquiredAt.String()
	}
	return s
}

func shardTable(list []shard, all bool) *table {
	t := &table{head: []string{"SHARDS", "COUNT", "OWNER", "EPOCHS", "HINTS", "SINCE"}}
	for i := 0; i < len(list); {
		first, last := list[i], list[i]
		low, high := first.Epoch, first.Epoch
		n := 1
		for ; !all && i+n < len(list) && list[i+n].Owner == first.Owner && list[i+n].Chores == first.Chores && list[i+n].Shard == last.Shard+1; n++ {
			last = list[i+n]
			low, high = min(low, last.Epoch), max(high, last.Epoch)
		}
		t.add(first.span(last), strconv.Itoa(n), textCell(first.Owner), span64(low, high), textCell(first.HintAddr), textCell(first.AcquiredAt))
		i += n
	}
	return t
}

// span names neighbours: shards by their numbers, chores by those of the databases.
func (s shard) span(last shard) string {
	if s.Chores {
		return "chores " + span(s.Database, last.Database)
	}
	return span(s.Shard, last.Shard)
}

func span(a, b int) string { return span64(int64(a), int64(b)) }

func span64(a, b int64) string {
	if a == b {
		return strconv.FormatInt(a, 10)
	}
	return fmt.Sprintf("%d-%d", a, b)
}
