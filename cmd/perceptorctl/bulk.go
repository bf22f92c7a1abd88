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

func (c *ctl) bulkCommand() *cobra.Command {
	api := perceptorv1.NewBulkServiceClient
	return group("bulk", "Change many tasks or dead runs with one operation",
		c.bulkCreate(),
		c.oneBulk("get", "Show an operation and its parts", func(ctx context.Context, conn *grpc.ClientConn, id int64) (*perceptorv1.BulkOperation, error) {
			return api(conn).GetBulkOperation(ctx, &perceptorv1.GetBulkOperationRequest{Id: id})
		}),
		c.bulkList(),
		c.bulkWatch(),
		c.oneBulk("pause", "Pause an operation", func(ctx context.Context, conn *grpc.ClientConn, id int64) (*perceptorv1.BulkOperation, error) {
			return api(conn).PauseBulkOperation(ctx, &perceptorv1.PauseBulkOperationRequest{Id: id})
		}),
		c.oneBulk("resume", "Resume a paused operation", func(ctx context.Context, conn *grpc.ClientConn, id int64) (*perceptorv1.BulkOperation, error) {
			return api(conn).ResumeBulkOperation(ctx, &perceptorv1.ResumeBulkOperationRequest{Id: id})
		}),
		c.oneBulk("abort", "Abort an operation; what it has changed stays changed", func(ctx context.Context, conn *grpc.ClientConn, id int64) (*perceptorv1.BulkOperation, error) {
			return api(conn).AbortBulkOperation(ctx, &perceptorv1.AbortBulkOperationRequest{Id: id})
		}),
	)
}

// oneBulk is a command about the operation with an id.
func (c *ctl) oneBulk(use, short string, call func(context.Context, *grpc.ClientConn, int64) (*perceptorv1.BulkOperation, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " ID", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return cli.Usagef("%q is not the id of an operation", args[0])
			}
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
				o, err := call(ctx, conn, id)
				if err != nil {
					return err
				}
				return c.show(cmd, o, func() *table { return bulkDetails(o) })
			})
		},
	}
}

func (c *ctl) bulkList() *cobra.Command {
	p := &pages{}
	cmd := &cobra.Command{
		Use: "list", Short: "List the operations of the last 30 days, newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
				api, all := perceptorv1.NewBulkServiceClient(conn), &perceptorv1.ListBulkOperationsResponse{}
				all.Operations, all.NextPageToken, err = gather(p, (*perceptorv1.ListBulkOperationsResponse).GetOperations,
					func(size int32, token string) (*perceptorv1.ListBulkOperationsResponse, error) {
						return api.ListBulkOperations(ctx, &perceptorv1.ListBulkOperationsRequest{PageSize: size, PageToken: token})
					})
				if err != nil {
					return err
				}
				return c.show(cmd, all, func() *table { return bulkTable(all.Operations...) })
			})
		},
	}
	p.flags(cmd)
	return watchable(cmd)
}

func bulkTable(list ...*perceptorv1.BulkOperation) *table {
	t := &table{narrow: 8, head: []string{"ID", "ACTION", "STATE", "MATCHED", "DONE", "FAILED", "DATABASES", "CREATED", "FINISHED", "MAX RATE"}}
	for _, o := range list {
		action := o.Action.String()
		if o.DryRun {
			action += " (dry run)"
		}
		t.add(strconv.FormatInt(o.Id, 10), action, o.State.String(), strconv.FormatInt(o.Matched, 10), strconv.FormatInt(o.Done, 10),
			strconv.FormatInt(o.Failed, 10), fmt.Sprintf("%d of 16", o.FinishedParts), timeCell(o.CreateTime),
			timeCell(o.FinishTime), strconv.Itoa(int(o.MaxRate)))
	}
	return t
}

// bulkDetails lists the parts of an operation below its sums.
func bulkDetails(o *perceptorv1.BulkOperation) *table {
	t := &table{head: []string{"DATABASE", "STATE", "MATCHED", "DONE", "FAILED", "FINISHED", "ERROR"}}
	t.add("all", o.State.String(), strconv.FormatInt(o.Matched, 10), strconv.FormatInt(o.Done, 10), strconv.FormatInt(o.Failed, 10), timeCell(o.FinishTime), "-")
	for _, p := range o.Parts {
		t.add(strconv.Itoa(int(p.Database)), p.State.String(), strconv.FormatInt(p.Matched, 10), strconv.FormatInt(p.Done, 10),
			strconv.FormatInt(p.Failed, 10), timeCell(p.FinishTime), textCell(p.Error))
	}
	return t
}
