package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (c *ctl) importResume() *cobra.Command {
	r := &runFlags{}
	var dsn string
	cmd := &cobra.Command{
		Use: "resume ID [FILE...]", Short: "Continue an import that was interrupted", Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.completeImports,
		Long: "Continue an import that was interrupted: read its input again, pass over what is stored, and send the rest. The options are those with which\n" +
			"it began. Files that have moved are named again, in the same order; files that have changed are refused. An import from standard input needs the\n" +
			"same input again, one from a query --from-sql.",
		Example: "  perceptorctl import resume 17\n  zcat tasks.csv.gz | perceptorctl import resume 17 -",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := importID(args[0])
			if err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				i := c.newImporting(cmd, conn, &importOptions{run: *r}, nil)
				err := i.retry(ctx, func(ctx context.Context) (err error) {
					i.on, err = i.api.GetImport(ctx, &perceptorv1.GetImportRequest{Id: id})
					return err
				})
				if err != nil {
					return err
				}
				on := i.on
				o, err := resumable(on)
				if err != nil {
					return err
				}
				o.dsn, o.run = dsn, *r
				if o.run.rejectFile == "" {
					o.run.rejectFile = o.RejectFile
				}
				if err := o.find(args[1:]); err != nil {
					return err
				}
				if o.Query != "" && dsn == "" {
					return cli.Usagef("the import is from a query: give its connection string again with --from-sql")
				}
				return c.resumeImport(ctx, cmd, conn, on, o)
			})
		},
	}
	cmd.Flags().StringVar(&dsn, "from-sql", "", "connection string of the query")
	r.flags(cmd)
	return cmd
}

// resumable returns the options of an import that can be resumed.
func resumable(on *perceptorv1.Import) (*importOptions, error) {
	if on.State != perceptorv1.Import_OPEN {
		return nil, &cli.Error{Code: cli.Conflict, Err: fmt.Errorf("import %d is %s; only one that is OPEN can be resumed", on.Id, on.State)}
	}
	if o, err := decodeOptions(on.Options); err == nil && o.From != "" {
		return nil, &cli.Error{Code: cli.Conflict, Err: fmt.Errorf("import %d is from the tables of %s, which change: start it anew, and what is stored is skipped by its keys", on.Id, o.From)}
	}
	if on.DryRun {
		return nil, &cli.Error{Code: cli.Conflict, Err: fmt.Errorf("import %d is a dry run, of which nothing is stored: start it anew", on.Id)}
	}
	return decodeOptions(on.Options)
}

// resumeImport sends what is not stored of an import.
func (c *ctl) resumeImport(ctx context.Context, cmd *cobra.Command, conn *grpc.ClientConn, on *perceptorv1.Import, o *importOptions) error {
	plan, err := o.planned(cmd)
	if err != nil {
		return err
	}
	i := c.newImporting(cmd, conn, o, plan)
	i.on, i.rejects.of = on, on.Id
	lines, chunk, err := i.rejects.resume()
	if err != nil {
		return err
	}
	if i.rejects.remote, i.rejects.listed = on.RejectedCount, lines; lines < on.RejectedCount {
		// The answers to some chunks were lost. Answers come in order, so those before the last one with a reject were not.
		i.resendFrom = max(1, chunk)
	}
	i.sayTime(ctx)
	i.screen.say("import %d: stored are %s with %s", on.Id, countText(on.ChunkCount, "chunk"), countText(on.LineCount, "line"))
	return i.run(ctx)
}
