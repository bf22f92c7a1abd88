package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/move"
	places "github.com/perceptor/perceptor/store/place"
	"github.com/perceptor/perceptor/task"
)

// moveFlags are those of perceptorctl database move.
type moveFlags struct {
	to, source             string
	free                   int64
	resume, abort, dropOld bool
}

func (c *ctl) databaseMove() *cobra.Command {
	f := &moveFlags{}
	cmd := &cobra.Command{
		Use: "move N", Short: "Move a database to another PostgreSQL server while programs use it", Args: cobra.ExactArgs(1),
		Long: "Move a database to another PostgreSQL server while programs use it. The command checks both servers, copies the database by\n" +
			"logical replication, lets calls for it wait for about half a second, and switches. All programs follow. It may be interrupted: the\n" +
			"copy goes on, --resume continues at every point, and --abort ends the move at every point before the switch.\n" +
			"docs/moving-a-database.md says what to prepare.",
		Example: "  perceptorctl database move 3 --to db2.example.com:5432/perceptor\n  perceptorctl database move 3 --resume\n  perceptorctl database move 3 --abort",
	}
	cli.ConfigFlags(cmd, config.NeedPostgres, func(cmd *cobra.Command, conf *config.Config) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		d, err := chosenDatabase(cmd.Flags().Arg(0))
		if err == nil {
			err = f.check()
		}
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		cluster, err := app.OpenCluster(ctx, conf, "perceptorctl")
		if err != nil {
			return err
		}
		defer cluster.Close()
		object, err := c.moveDatabase(ctx, cmd, cluster, d, f)
		record(cmd, conf, task.AuditEvent{Object: object}, err) // without the flags, which may have passwords
		return moveError(err)
	}, "postgres")
	fl := cmd.Flags()
	fl.StringVar(&f.to, "to", "", "the new place: host:port/database, with the login in the configuration, or a connection string")
	fl.StringVar(&f.source, "source", "", "connection string by which the new server reaches the old one (default: that of the configuration)")
	fl.Int64Var(&f.free, "free", 0, "bytes that are free on the disk of the new server; PostgreSQL cannot tell (default: what postgres.servers[].storage of that server leaves, if it is set)")
	fl.BoolVar(&f.resume, "resume", false, "continue a move that was interrupted")
	fl.BoolVar(&f.abort, "abort", false, "end a move before the switch, and remove what it has copied")
	fl.BoolVar(&f.dropOld, "drop-old", false, "drop the old rows when the move is done and the rows were counted")
	return cmd
}

func (f *moveFlags) check() error {
	switch {
	case f.resume && f.abort:
		return cli.Usagef("set either --resume or --abort")
	case f.to == "" && !f.resume && !f.abort:
		return cli.Usagef("--to: set the new place, or --resume or --abort")
	case f.free < 0:
		return cli.Usagef("--free: %d: must be a number of bytes", f.free)
	}
	return nil
}

// moveDatabase does what the flags say. It returns what the audit log tells.
func (c *ctl) moveDatabase(ctx context.Context, cmd *cobra.Command, cluster *store.Cluster, d int, f *moveFlags) (object string, err error) {
	object = databaseName(d)
	target, err := f.target(ctx, cluster, d)
	if err != nil {
		return object, err
	}
	bar := cli.NewProgress(cmd.ErrOrStderr(), "moving "+object)
	m, err := move.New(move.Config{Cluster: cluster, Database: d, Target: target, Source: f.source, Free: f.free, Tell: func(p move.Progress) {
		bar.Show(min(p.Bytes, p.Total), p.Total, moveRemark(p))
	}})
	if err != nil {
		return object, cli.Usagef("--to: %v", err)
	}
	to, _ := places.AddressOf(target) // New has read it
	object += " to " + string(to)
	if f.abort {
		warnings, err := m.Abort(ctx)
		c.warn(cmd, warnings)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s stays where it is\n", databaseName(d))
		}
		return object, err
	}
	result, err := m.Run(ctx)
	bar.End()
	if err == nil && f.dropOld && result.Counted {
		if err = m.DropOld(ctx, result); err == nil {
			result.OldSchema = ""
		}
	}
	if err != nil {
		c.warn(cmd, result.Warnings)
		return object, err
	}
	return object, c.showMove(cmd, d, &result)
}

// target returns the connection string of the new place.
func (f *moveFlags) target(ctx context.Context, cluster *store.Cluster, d int) (string, error) {
	to := places.Address(f.to)
	if f.to == "" {
		var err error
		if _, _, to, err = move.Under(ctx, cluster, d); err != nil {
			return "", err
		}
		if to == "" {
			return "", move.ErrNone
		}
	} else if strings.Contains(f.to, "=") || strings.Contains(f.to, "://") {
		return f.to, nil
	}
	dsn, err := cluster.DSNAt(d, to)
	if err != nil {
		return "", cli.Usagef("--to: %v", err)
	}
	return dsn, nil
}

func moveRemark(p move.Progress) string {
	remark := p.Step
	switch p.Step {
	case move.Copying:
		remark = fmt.Sprintf("%d of %d tables", p.Copied, p.Tables)
	case move.Following:
		remark = sizeText(p.Lag) + " behind"
	}
	if p.Errors > 0 {
		remark += fmt.Sprintf(", %d errors, see the log of the new server", p.Errors)
	}
	return remark
}

func (c *ctl) warn(cmd *cobra.Command, warnings []string) {
	for _, w := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
	}
}

func (c *ctl) showMove(cmd *cobra.Command, d int, r *move.Result) error {
	c.warn(cmd, r.Warnings)
	if c.structured() {
		return c.writeData(cmd, r)
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s is at %s, place %d\n", databaseName(d), r.To, r.Number)
	if r.Pause > 0 {
		fmt.Fprintf(out, "calls waited for %d ms, in the last of %d pauses\n", r.PauseMS, r.Attempts)
	}
	switch {
	case r.Counted:
		fmt.Fprintf(out, "%d rows of %d tables were counted in both copies and agree\n", r.Rows, r.Tables)
	case r.OldSchema != "":
		fmt.Fprintln(out, "the rows were not counted, because the move was interrupted after the switch")
	}
	if r.OldSchema != "" {
		fmt.Fprintf(out, "the old rows are in schema %s at %s; drop it when you do not need them\n", r.OldSchema, r.From)
	}
	return nil
}

// moveError gives an error its exit code and says what to do.
func moveError(err error) error {
	var refused *move.Refused
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return &cli.Error{Code: cli.Failure, Err: fmt.Errorf("the move cannot begin: %w", err), Hint: `nothing was changed; the page "Moving a database" says what both servers need`}
	case errors.Is(err, move.ErrNone):
		return &cli.Error{Code: cli.NotFound, Err: err}
	case errors.Is(err, move.ErrOther), errors.Is(err, move.ErrElsewhere), errors.Is(err, move.ErrThere), errors.Is(err, move.ErrDecided):
		return &cli.Error{Code: cli.Conflict, Err: err}
	case errors.Is(err, move.ErrDiffer):
		return &cli.Error{Code: cli.Failure, Err: err, Hint: `keep the old schema; the page "Moving a database" says how to compare`}
	}
	var known *cli.Error
	if errors.As(err, &known) {
		return err
	}
	return &cli.Error{Code: cli.Unavailable, Err: err, Hint: "the database is in use at one place; continue with --resume, or give up with --abort"}
}
