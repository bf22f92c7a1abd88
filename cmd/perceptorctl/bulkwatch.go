package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

const (
	// watchEvery is the distance between two looks.
	watchEvery = time.Second
	// watchAway is how many looks in a row may find the API away.
	watchAway = 60
)

func (c *ctl) bulkWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch ID", Short: "Show the progress of an operation until it ends", Args: cobra.ExactArgs(1),
		Long: "Show the progress of an operation until it ends, one line for each change. Ctrl-C ends the command and\n" +
			"not the operation. With --output json the lines go to standard error.",
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
	lines, last := cmd.OutOrStdout(), ""
	if c.structured() {
		lines = cmd.ErrOrStderr()
	}
	return watch(cmd.Context(), watchEvery, func() (done bool, err error) {
		var o *perceptorv1.BulkOperation
		err = c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			o, err = perceptorv1.NewBulkServiceClient(conn).GetBulkOperation(ctx, &perceptorv1.GetBulkOperationRequest{Id: id})
			return err
		})
		if err != nil || cmd.Context().Err() != nil {
			return false, err
		}
		last = progress(lines, o, last)
		if o.State != perceptorv1.BulkOperation_DONE && o.State != perceptorv1.BulkOperation_ABORTED {
			return false, nil
		}
		if c.structured() {
			return true, c.show(cmd, o, nil)
		}
		return true, nil
	})
}

// watch looks again and again until a look is the last one, or the command is interrupted. An
// API that is away for a moment does not end it.
func watch(ctx context.Context, every time.Duration, look func() (done bool, err error)) error {
	for away := 0; ; {
		done, err := look()
		var known *cli.Error
		switch {
		case ctx.Err() != nil:
			return nil
		case done:
			return err
		case err == nil:
			away = 0
		case away == watchAway || !errors.As(err, &known) || known.Code != cli.Unavailable:
			return err
		default:
			away++
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// progress prints a line about an operation unless it is the last one again.
func progress(w io.Writer, o *perceptorv1.BulkOperation, last string) string {
	line := fmt.Sprintf("[%-16s] %s: %d matched", strings.Repeat("#", int(o.FinishedParts)), o.State, o.Matched)
	if !o.DryRun {
		line += fmt.Sprintf(", %d done, %d failed", o.Done, o.Failed)
	}
	for _, p := range o.Parts {
		if p.Error != "" && p.State != perceptorv1.BulkOperation_DONE {
			line += fmt.Sprintf("; database %d: %s", p.Database, p.Error)
			break
		}
	}
	if line != last {
		fmt.Fprintln(w, line)
	}
	return line
}
