package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/move"
	places "github.com/perceptor/perceptor/store/place"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) databaseCommand() *cobra.Command {
	return group("database", "Where the databases are, and moves to other servers", c.databaseList(), c.databaseMove())
}

// placed is where a database is.
type placed struct {
	Database int    `json:"database"`
	Number   int64  `json:"number"`
	Address  string `json:"address"`
	// Target is where an unfinished move goes, and Step how far that is.
	Target string `json:"target,omitempty"`
	Step   string `json:"step,omitempty"`
	Error  string `json:"error,omitempty"`
}

func (c *ctl) databaseList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "Show where each database is, and which one is being moved", Args: cobra.NoArgs,
		Long: "Show where each database is, and which one is being moved. A number above 1 says that the database has moved away from\n" +
			"where postgres.servers says; programs follow it by themselves. With a configuration that names the servers they are\n" +
			"asked; without one the API is, with the token of an admin.",
	}
	servers := func(cmd *cobra.Command, conf *config.Config) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
		defer cancel()
		cluster, err := app.OpenCluster(ctx, conf, "perceptorctl")
		if err != nil {
			return err
		}
		defer cluster.Close()
		return c.showPlaces(cmd, readPlaces(ctx, cluster))
	}
	return c.eitherWay(cmd, config.NeedPostgres, servers, func(ctx context.Context, conn *grpc.ClientConn) error {
		f, err := clusterByAPI(ctx, conn)
		if err != nil {
			return err
		}
		return c.showPlaces(cmd, placesIn(f))
	}, "postgres")
}

func (c *ctl) showPlaces(cmd *cobra.Command, list []placed) error {
	if c.structured() {
		return c.writeData(cmd, list)
	}
	t := &table{head: []string{"DATABASE", "NUMBER", "ADDRESS", "MOVING TO", "STEP"}}
	for _, p := range list {
		address := p.Address
		if p.Error != "" {
			address += " (" + p.Error + ")"
		}
		t.add(strconv.Itoa(p.Database), strconv.FormatInt(p.Number, 10), address, p.Target, p.Step)
	}
	return t.write(cmd.OutOrStdout())
}

// placesIn returns what the API tells.
func placesIn(f *perceptorv1.ClusterFigures) []placed {
	list := []placed{}
	for _, d := range f.Databases {
		p := placed{Database: int(d.Database), Number: d.PlaceNumber, Address: d.PlaceAddress, Target: d.MoveTarget, Step: d.MoveStep}
		if !d.Answers {
			p.Error = "does not answer"
		}
		list = append(list, p)
	}
	return list
}

func readPlaces(ctx context.Context, cluster *store.Cluster) []placed {
	list := make([]placed, task.Databases)
	_ = cluster.Each(ctx, func(ctx context.Context, d int) error { // errors are in the list
		at, says, to, err := move.Under(ctx, cluster, d)
		number, known := cluster.Place(d)
		if at == "" {
			at = known
		}
		list[d] = placed{Database: d, Number: max(number, says.Number), Address: string(at), Target: string(to), Step: says.Step}
		if to == at {
			list[d].Target, list[d].Step = "", places.Uncleaned
		}
		if err != nil {
			list[d].Error, _, _ = strings.Cut(err.Error(), "\n")
		}
		return nil
	})
	return list
}

// chosenDatabase reads the number of a database.
func chosenDatabase(text string) (int, error) {
	d, err := strconv.Atoi(text)
	if err != nil || d < 0 || d >= task.Databases {
		return 0, cli.Usagef("%q is not the number of a database: must be 0 to %d", text, task.Databases-1)
	}
	return d, nil
}

// databaseName is for messages.
func databaseName(d int) string { return fmt.Sprintf("database %d", d) }
