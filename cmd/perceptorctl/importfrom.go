package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/transfer"
	"github.com/perceptor/perceptor/transfer/migrate"
)

// fromFlags are the flags of an import from the tables of another scheduler.
type fromFlags struct{ scheduler, prefix, of, keyPrefix string }

func (f *fromFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.scheduler, "from", "", "import the schedules of "+strings.Join(migrate.Schedulers, ", ")+" from the PostgreSQL server whose connection string is the only argument")
	cmd.Flags().StringVar(&f.prefix, "table-prefix", "", "with --from: what the names of the tables begin with, with their schema (default for quartz: qrtz_)")
	cmd.Flags().StringVar(&f.of, "of", "", "with --from: only the schedules of this scheduler of Quartz, or the jobs of this queue of River")
	cmd.Flags().StringVar(&f.keyPrefix, "key-prefix", "", keyPrefixHelp("with --from: "))
	completes(cmd, "from", migrate.Schedulers...)
}

// keyPrefixHelp describes the flag of import and convert.
func keyPrefixHelp(when string) string {
	return when + "what the keys begin with, before a colon, to tell schedules of several sources with the same names apart (default: the name of the scheduler)"
}

// setScheduler sets the scheduler whose schedules are imported. Their tasks go on where the
// schedules have come to.
func (o *importOptions) setScheduler(args []string) error {
	switch {
	case !slices.Contains(migrate.Schedulers, o.From):
		return cli.Usagef("--from: %q is not one of %s", o.From, strings.Join(migrate.Schedulers, ", "))
	case o.dsn != "":
		return cli.Usagef("--from and --from-sql exclude each other")
	case len(args) != 1:
		return cli.Usagef("--from needs one argument, the connection string of the server, and not %d", len(args))
	}
	o.dsn, o.Restore = args[0], true
	return nil
}

// openSchedules returns the schedules of another scheduler as tasks. Those without a counterpart
// are faults.
func (o *importOptions) openSchedules(ctx context.Context, defaults *perceptorv1.Task) (transfer.Source, error) {
	r, err := migrate.Open(ctx, migrate.Options{Scheduler: o.From, DSN: o.dsn, Prefix: o.prefix, Of: o.of, KeyPrefix: o.keyPrefix})
	if err != nil {
		return nil, err
	}
	at := transfer.Position{File: o.From}
	next := func(context.Context) (transfer.Found, error) {
		i, err := r.Next()
		if err != nil {
			return transfer.Found{}, err
		}
		at.Line++
		if i.Task == nil {
			return transfer.Found{}, &transfer.Fault{Position: at, Column: i.Name, Rule: i.Reason}
		}
		return transfer.Found{At: at, Task: i.Task, State: stateOf(i)}, nil
	}
	return transfer.FromTasks(defaults, next, func() error { r.Close(); return nil }), nil
}

// stateOf says how far a schedule has come.
func stateOf(i *migrate.Item) transfer.State {
	return transfer.State{Scheduled: i.Next, Anchor: i.Anchor(), Runs: i.Runs, Paused: i.Paused}
}
