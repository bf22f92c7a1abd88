package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/migrations"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) migrateCommand() *cobra.Command {
	return group("migrate", "Create and upgrade the schema of the databases", c.migrateUp(), c.migrateStatus())
}

func (c *ctl) migrateUp() *cobra.Command {
	cmd := &cobra.Command{
		Use: "up", Short: "Upgrade the schema of every database", Args: cobra.NoArgs,
		Long: "Create or upgrade the schema of every database. It is safe to repeat the command and to run it concurrently.\n" +
			"A step may take 5 minutes. It waits for locks of others, such as a dump, for 2 s at a time and for 3 minutes in all, so that claims do not wait behind it.",
	}
	cli.ConfigFlags(cmd, config.NeedPostgres, recorded(func(cmd *cobra.Command, conf *config.Config) error {
		cluster, err := app.OpenTool(cmd.Context(), conf, "perceptorctl")
		if err != nil {
			return err
		}
		defer cluster.Close()
		err = cluster.Migrate(cmd.Context(), func(d, applied int) {
			fmt.Fprintf(cmd.OutOrStdout(), "database %2d: %d versions applied, now at %d\n", d, applied, migrations.Latest())
		})
		switch {
		case errors.Is(err, migrations.ErrOutdated):
			return &cli.Error{Code: cli.Failure, Err: err}
		case err != nil:
			return migrationError(err)
		}
		return nil
	}), "postgres")
	return cmd
}

// migrationError tells what to do about an error of a migration.
func migrationError(err error) error {
	var sent *pgconn.PgError
	if cure := store.Cure(err); cure != "" {
		return &cli.Error{Code: cli.Unavailable, Err: err, Hint: cure + "; then run the command again: what was applied stays"}
	}
	// Classes 22, 23 and 42: what the schema has does not fit the statement.
	if errors.As(err, &sent) && slices.Contains([]string{"22", "23", "42"}, sent.Code[:min(2, len(sent.Code))]) {
		return &cli.Error{Code: cli.Failure, Err: err, Hint: "the schema is not as the migrations have left it, so running the command again does not help: has something else changed it? What was applied stays"}
	}
	return &cli.Error{Code: cli.Unavailable, Err: err, Hint: "what was applied stays; run the command again when the server answers"}
}

func (c *ctl) migrateStatus() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show the schema version of every database", Args: cobra.NoArgs}
	cli.ConfigFlags(cmd, config.NeedPostgres, func(cmd *cobra.Command, conf *config.Config) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
		defer cancel()
		cluster, err := app.OpenTool(ctx, conf, "perceptorctl")
		if err != nil {
			return err
		}
		defer cluster.Close()
		states := versions(ctx, cluster)
		if err := c.showVersions(cmd, states); err != nil {
			return err
		}
		return verdict(states)
	}, "postgres")
	return cmd
}

// version is the state of one database.
type version struct {
	Database int    `json:"database"`
	Address  string `json:"address"`
	Version  int64  `json:"version"`
	Wanted   int64  `json:"wanted"`
	State    string `json:"state"`
	Error    string `json:"error,omitempty"`
}

func versions(ctx context.Context, cluster *store.Cluster) []version {
	states := make([]version, task.Databases)
	var asking sync.WaitGroup
	for d := range states {
		asking.Go(func() {
			s := version{Database: d, Address: cluster.Address(d), Wanted: migrations.Latest(), State: "current"}
			v, err := cluster.Version(ctx, d)
			switch s.Version = v; {
			case errors.Is(err, migrations.ErrOutdated):
				s.State, s.Error = "outdated", err.Error()
			case err != nil:
				s.State, s.Error = "away", err.Error()
			case v < s.Wanted:
				s.State = "behind"
			case v > s.Wanted:
				s.State = "ahead"
			}
			states[d] = s
		})
	}
	asking.Wait()
	return states
}

func (c *ctl) showVersions(cmd *cobra.Command, states []version) error {
	if c.structured() {
		return c.writeData(cmd, states)
	}
	t := &table{head: []string{"DATABASE", "VERSION", "WANTED", "STATE", "ADDRESS"}}
	for _, s := range states {
		t.add(strconv.Itoa(s.Database), strconv.FormatInt(s.Version, 10), strconv.FormatInt(s.Wanted, 10), s.State, s.Address)
	}
	return t.write(cmd.OutOrStdout())
}

// verdict is an error unless all are current.
func verdict(states []version) error {
	counts, first := map[string]int{}, ""
	for _, s := range states {
		counts[s.State]++
		if first == "" {
			first = s.Error
		}
	}
	switch {
	case counts["away"] > 0:
		return &cli.Error{Code: cli.Unavailable, Err: fmt.Errorf("%d of %d databases do not answer: %s", counts["away"], len(states), first)}
	case counts["outdated"] > 0:
		return &cli.Error{Code: cli.Failure, Err: fmt.Errorf("%d of %d databases cannot be upgraded: %s", counts["outdated"], len(states), first)}
	case counts["behind"] > 0:
		return &cli.Error{Code: cli.Failure, Err: fmt.Errorf("%d of %d databases are behind", counts["behind"], len(states)), Hint: "run perceptorctl migrate up"}
	case counts["ahead"] > 0:
		return &cli.Error{Code: cli.Failure, Err: errors.New("the databases are newer than this program"), Hint: "use a newer perceptorctl"}
	}
	return nil
}
