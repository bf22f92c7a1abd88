package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) bulkWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch ID", Short: "Show the progress of an operation until it ends", Args: cobra.ExactArgs(1),
		Long: "Show the progress of an operation until it ends: on a terminal in its last line, elsewhere as a line every 5 s. It is a\n" +
			"bar if a dry run has counted what there is to do (bulk create --counted-by), or else the number of tasks that are done.\n" +
			"Then show what it did. Ctrl-C ends the command and not the operation.",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return cli.Usagef("%q is not the id of an operation", args[0])
			}
			return c.watchBulk(cmd, id)
		},
	}
}

// watchBulk shows the progress of an operation until it ends, or the command is
// interrupted.
func (c *ctl) watchBulk(cmd *cobra.Command, id int64) error {
	bar := cli.NewProgress(cmd.ErrOrStderr(), "operation "+strconv.FormatInt(id, 10))
	defer bar.End()
	return watch(cmd.Context(), watchEvery, func() (done bool, err error) {
		var o *perceptorv1.BulkOperation
		err = c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			o, err = perceptorv1.NewBulkServiceClient(conn).GetBulkOperation(ctx, &perceptorv1.GetBulkOperationRequest{Id: id})
			return err
		})
		if err != nil || cmd.Context().Err() != nil {
			return false, err
		}
		if o.State != perceptorv1.BulkOperation_DONE && o.State != perceptorv1.BulkOperation_ABORTED {
			done, total := bulkDone(o)
			bar.Show(done, total, bulkProgress(o))
			return false, nil
		}
		bar.End()
		if why := whyAborted(o); why != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), why)
		}
		return true, c.show(cmd, o, func() *table { return bulkTable(o) })
	})
}

// whyAborted tells why the service has aborted an operation. It returns "" for one that was not aborted, or by a caller.
func whyAborted(o *perceptorv1.BulkOperation) string {
	for _, p := range o.Parts {
		if o.State == perceptorv1.BulkOperation_ABORTED && p.State == perceptorv1.BulkOperation_ABORTED && p.Error != "" {
			return fmt.Sprintf("operation %d was aborted: database %d: %s", o.Id, p.Database, p.Error)
		}
	}
	return ""
}

// bulkDone returns how many tasks or runs an operation has dealt with, and of how many, if a dry run has counted
// them; 0 if nobody knows. A dry run counts each database at once.
func bulkDone(o *perceptorv1.BulkOperation) (done, total int64) {
	if o.DryRun {
		return int64(o.FinishedParts), task.Databases
	}
	return o.Done + o.Failed, o.Counted
}

// bulkProgress tells in a few words what an operation has done.
func bulkProgress(o *perceptorv1.BulkOperation) string {
	text := fmt.Sprintf("%s: %d matched", o.State, o.Matched)
	if !o.DryRun {
		text += fmt.Sprintf(", %d done, %d failed", o.Done, o.Failed)
	}
	text += fmt.Sprintf(", %d of %d databases ended", o.FinishedParts, task.Databases)
	for _, p := range o.Parts {
		if p.Error != "" && p.State != perceptorv1.BulkOperation_DONE {
			return text + fmt.Sprintf("; database %d: %s", p.Database, p.Error)
		}
	}
	return text
}
