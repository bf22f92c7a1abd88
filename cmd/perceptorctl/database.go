package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/move"
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
			"where postgres.servers says; programs follow it by themselves.",
	}
	cli.ConfigFlags(cmd, config.NeedPostgres, func(cmd *cobra.Command, conf *config.Config) error {
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
		places := readPlaces(ctx, cluster)
		if c.structured() {
			return c.writeData(cmd, places)
		}
		t := &table{head: []string{"DATABASE", "NUMBER", "ADDRESS", "MOVING TO", "STEP"}}
		for _, p := range places {
			address := p.Address
			if p.Error != "" {
				address += " (" + p.Error + ")"
			}
			t.add(strconv.Itoa(p.Database), strconv.FormatInt(p.Number, 10), address, p.Target, p.Step)
		}
		return t.write(cmd.OutOrStdout())
	}, "postgres")
	return cmd
}

func readPlaces(ctx context.Context, cluster *store.Cluster) []placed {
	places := make([]placed, task.Databases)
	_ = cluster.Each(ctx, func(ctx context.Context, d int) error { // errors are in the list
		at, says, to, err := move.Under(ctx, cluster, d)
		number, known := cluster.Place(d)
		if at == "" {
			at = known
		}
		places[d] = placed{Database: d, Number: max(number, says.Number), Address: string(at), Target: string(to), Step: says.Step}
		if to == at {
			places[d].Target, places[d].Step = "", "to be cleaned up"
		}
		if err != nil {
			places[d].Error, _, _ = strings.Cut(err.Error(), "\n")
		}
		return nil
	})
	return places
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
