package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func (c *ctl) importCommand() *cobra.Command {
	f := &importFlags{}
	cmd := &cobra.Command{
		Use: "import FILE...|-", Short: "Import tasks from files, from standard input, or from a query", Args: cobra.MinimumNArgs(1),
		Long: "Import tasks from CSV, JSON Lines or Parquet files, also compressed by gzip or zstd, from standard input (-), or from a query on a PostgreSQL\n" +
			"server (--from-sql). A pattern such as 'part-*.csv.gz' stands for its files, sorted by name.\n\n" +
			"First it prints how many lines there are, about, what they take on disk, and how long it takes. Then it sends the lines in chunks,\n" +
			"each of which the service stores completely or not at all. If the service goes away, it waits and goes on. If the command ends before\n" +
			"all is stored, import resume ID goes on; import rollback ID removes what was stored and has not fired.\n\n" +
			"Columns have the names of the fields of a task: kind, type, begin_time, interval, cron, time_zone, max_count, idempotency_key, tags and so on; params.KEY is\n" +
			"one of its params. Flags such as --kind are for lines that say nothing. A line that is not valid is written to the reject file, with the rule that\n" +
			"it breaks, and the others are imported. docs/import.md has the guarantees and examples.",
		Example: "  perceptorctl import tasks.csv --kind reminder --type one-shot\n" +
			"  perceptorctl import 'part-*.jsonl.zst' --on-conflict update\n" +
			"  perceptorctl import orders.parquet --map order_time=begin_time --params-rest --kind order --type one-shot --dry-run\n" +
			"  perceptorctl import --from-sql postgres://reader@db/shop 'select id as idempotency_key, due as begin_time from orders order by id' --kind order --type one-shot\n" +
			"  perceptorctl import --from quartz postgres://reader@db/app --dry-run\n" +
			"  zcat tasks.csv.gz | perceptorctl import - --format csv",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.read(cmd, args)
			if err != nil {
				return err
			}
			return c.startImport(cmd, o)
		},
	}
	f.flags(cmd)
	cmd.AddCommand(c.importResume(), c.importList(), c.importWatch(),
		c.oneImport("get", "Show an import", func(ctx context.Context, api perceptorv1.ImportServiceClient, id int64) (*perceptorv1.Import, error) {
			return api.GetImport(ctx, &perceptorv1.GetImportRequest{Id: id})
		}),
		c.oneImport("abort", "End an import before all is stored; what it has stored remains", func(ctx context.Context, api perceptorv1.ImportServiceClient, id int64) (*perceptorv1.Import, error) {
			return api.AbortImport(ctx, &perceptorv1.AbortImportRequest{Id: id})
		}),
		c.importRollback())
	return cmd
}

// importID reads the id of an import.
func importID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, cli.Usagef("%q is not the id of an import", text)
	}
	return id, nil
}

// oneImport is a command about the import with an id.
func (c *ctl) oneImport(use, short string, call func(context.Context, perceptorv1.ImportServiceClient, int64) (*perceptorv1.Import, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " ID", Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeImports,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := importID(args[0])
			if err != nil {
				return err
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				i, err := call(ctx, perceptorv1.NewImportServiceClient(conn), id)
				if err != nil {
					return err
				}
				return c.show(cmd, i, func() *table { return importDetails(i) })
			})
		},
	}
}

// completeImports completes ids of imports.
func (c *ctl) completeImports(cmd *cobra.Command, args []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if cmd.Context() == nil {
		cmd.SetContext(context.Background())
	}
	c.timeout = min(c.timeout, completionLimit)
	_ = c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error { // without an answer there is nothing to complete
		page, err := perceptorv1.NewImportServiceClient(conn).ListImports(ctx, &perceptorv1.ListImportsRequest{})
		for _, i := range page.GetImports() {
			ids = append(ids, fmt.Sprintf("%d\t%s %s", i.Id, i.State, i.Description))
		}
		return err
	})
	return ids, cobra.ShellCompDirectiveNoFileComp
}

func (c *ctl) importList() *cobra.Command {
	p := &pages{}
	cmd := &cobra.Command{
		Use: "list", Short: "List the imports, newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
				api, all := perceptorv1.NewImportServiceClient(conn), &perceptorv1.ListImportsResponse{}
				all.Imports, all.NextPageToken, err = gather(p, (*perceptorv1.ListImportsResponse).GetImports,
					func(size int32, token string) (*perceptorv1.ListImportsResponse, error) {
						return api.ListImports(ctx, &perceptorv1.ListImportsRequest{PageSize: size, PageToken: token})
					})
				if err != nil {
					return err
				}
				return c.show(cmd, all, func() *table { return importTable(all.Imports...) })
			})
		},
	}
	p.flags(cmd)
	return watchable(cmd)
}

func (c *ctl) importRollback() *cobra.Command {
	var follow bool
	cmd := c.oneImport("rollback", "Remove the tasks of an import that have not fired", func(ctx context.Context, api perceptorv1.ImportServiceClient, id int64) (*perceptorv1.Import, error) {
		return api.RollbackImport(ctx, &perceptorv1.RollbackImportRequest{Id: id})
	})
	cmd.Long = "Remove the tasks of an import that have not fired, were not edited, and were not there before it. An open import is aborted first. It goes on in the\n" +
		"background; import watch ID shows how far it is."
	cmd.Flags().BoolVar(&follow, "follow", false, "show the progress until it ends, as import watch does")
	begin := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := begin(cmd, args); err != nil || !follow {
			return err
		}
		id, err := importID(args[0])
		if err != nil {
			return err
		}
		return c.watchImport(cmd, id)
	}
	return cmd
}

func (c *ctl) importWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch ID", Short: "Show the progress of an import, or of its rollback, until it ends", Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeImports,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := importID(args[0])
			if err != nil {
				return err
			}
			return c.watchImport(cmd, id)
		},
	}
}

// watchImport shows the progress of an import until it ends, or the command is interrupted.
func (c *ctl) watchImport(cmd *cobra.Command, id int64) error {
	bar := cli.NewProgress(cmd.ErrOrStderr(), "import "+strconv.FormatInt(id, 10))
	defer bar.End()
	return watch(cmd.Context(), watchEvery, func() (done bool, err error) {
		var i *perceptorv1.Import
		var paused string
		err = c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			i, err = perceptorv1.NewImportServiceClient(conn).GetImport(ctx, &perceptorv1.GetImportRequest{Id: id})
			if i.GetState() == perceptorv1.Import_ROLLING_BACK {
				paused = pausedRollback(ctx, conn, id)
			}
			return err
		})
		if err != nil || cmd.Context().Err() != nil {
			return false, err
		}
		switch i.State {
		case perceptorv1.Import_OPEN:
			more := fmt.Sprintf("lines, %d rejected", i.RejectedCount)
			if what := waitsFor[i.PauseReason]; what != "" {
				more += ", waits for " + what
			}
			bar.Show(i.LineCount, 0, more)
			return false, nil
		case perceptorv1.Import_ROLLING_BACK:
			bar.Show(int64(i.RolledBackDatabases), importDatabases, fmt.Sprintf("%d tasks removed", i.RemovedCount)+paused)
			return false, nil
		}
		bar.End()
		return true, c.show(cmd, i, func() *table { return importDetails(i) })
	})
}

// pausedRollback says that the operation which rolls an import back is paused, and how it goes on; "" if it is not, or if
// that is not known. It looks among the newest operations.
func pausedRollback(ctx context.Context, conn *grpc.ClientConn, id int64) string {
	page, err := perceptorv1.NewBulkServiceClient(conn).ListBulkOperations(ctx, &perceptorv1.ListBulkOperationsRequest{})
	if err != nil {
		return ""
	}
	for _, o := range page.Operations {
		if o.ImportId == id && o.State == perceptorv1.BulkOperation_PAUSED {
			return fmt.Sprintf(", paused: perceptorctl bulk resume %d goes on", o.Id)
		}
	}
	return ""
}

// importDatabases is the number of databases of an installation.
const importDatabases = 16

func importTable(list ...*perceptorv1.Import) *table {
	t := &table{narrow: 8, head: []string{"ID", "STATE", "LINES", "ADDED", "SKIPPED", "UPDATED", "REJECTED", "CREATED", "FINISHED", "REMOVED", "DESCRIPTION"}}
	n := func(x int64) string { return strconv.FormatInt(x, 10) }
	for _, i := range list {
		t.add(n(i.Id), importState(i), n(i.LineCount), n(i.AddedCount), n(i.SkippedCount), n(i.UpdatedCount), n(i.RejectedCount),
			timeCell(i.CreateTime), timeCell(i.FinishTime), n(i.RemovedCount), textCell(i.Description))
	}
	return t
}

func importState(i *perceptorv1.Import) string {
	if i.DryRun {
		return i.State.String() + " (dry run)"
	}
	return i.State.String()
}

// importDetails lists the fields of an import below each other.
func importDetails(i *perceptorv1.Import) *table {
	t := &table{head: []string{"FIELD", "VALUE"}}
	n := func(name string, x int64) { t.add(name, strconv.FormatInt(x, 10)) }
	n("id", i.Id)
	t.add("description", textCell(i.Description))
	t.add("state", importState(i))
	n("lines", i.LineCount)
	n("added", i.AddedCount)
	n("skipped", i.SkippedCount)
	n("updated", i.UpdatedCount)
	n("rejected", i.RejectedCount)
	n("chunks", i.ChunkCount)
	t.add("checksum", fmt.Sprintf("%016x", i.Checksum))
	if i.State == perceptorv1.Import_OPEN && waitsFor[i.PauseReason] != "" {
		t.add("waits for", waitsFor[i.PauseReason])
	}
	t.add("on conflict", max(i.OnConflict, perceptorv1.Import_SKIP).String())
	if i.MaxRate > 0 {
		n("max rate", int64(i.MaxRate))
	}
	if i.State == perceptorv1.Import_ROLLING_BACK || i.State == perceptorv1.Import_ROLLED_BACK || i.RemovedCount > 0 {
		n("removed", i.RemovedCount)
		t.add("databases", fmt.Sprintf("%d of %d rolled back", i.RolledBackDatabases, importDatabases))
	}
	t.add("creator", textCell(i.Creator))
	t.add("created", timeCell(i.CreateTime))
	t.add("finished", timeCell(i.FinishTime))
	return t
}
