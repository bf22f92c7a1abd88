package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/export/line"
	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

// exportSnapshot exports tasks from the servers of the configuration, in one snapshot of each.
func (c *ctl) exportSnapshot(cmd *cobra.Command, x *exportFlags, conf *config.Config) error {
	r, err := x.request()
	if err != nil {
		return err
	}
	cluster, err := app.OpenReadOnly(cmd.Context(), conf, "perceptorctl")
	if err != nil {
		return err
	}
	defer cluster.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
	defer cancel()
	tenant, err := control.New(cluster, nil).Tenant(ctx, x.tenant)
	if err != nil {
		return domainError(err)
	}
	q := &task.ExportQuery{Tenant: tenant.ID, Filter: taskFilter(r.(*perceptorv1.ExportTasksRequest))}
	return x.toFile(cmd, func(out io.Writer) error {
		s := &snapshotSink{out: out, lines: line.Writer{Redact: x.redact}, bar: cli.NewProgress(cmd.ErrOrStderr(), "exporting")}
		err := shards.New(cluster, shards.Config{}).ExportSnapshot(cmd.Context(), q, x.primary, s.page)
		s.bar.End()
		return s.end(cmd, err)
	})
}

// taskFilter returns the filter of a request.
func taskFilter(r *perceptorv1.ExportTasksRequest) task.Filter {
	f := task.Filter{Kind: r.Kind, Type: task.Type(r.Type), State: task.State(r.State), Tags: task.SortTags(r.Tags)}
	if r.DueFrom != nil {
		f.DueFrom = task.At(r.DueFrom.AsTime())
	}
	if r.DueUntil != nil {
		f.DueUntil = task.At(r.DueUntil.AsTime())
	}
	return f
}

// snapshotSink writes the pages of a snapshot.
type snapshotSink struct {
	out            io.Writer
	lines          line.Writer
	bar            *cli.Progress
	buffer         []byte
	count, damaged int64
}

func (s *snapshotSink) page(p *task.ExportPage) (err error) {
	s.buffer = s.buffer[:0]
	for i, r := range p.Rows {
		finished := task.Never
		if p.Finished != nil {
			finished = p.Finished[i]
		}
		if s.buffer, err = s.lines.Append(s.buffer, r, finished, p.ReadAt); err != nil {
			return err
		}
	}
	s.count, s.damaged = s.count+int64(len(p.Rows)), s.damaged+int64(p.DamagedPacks)+int64(p.DamagedTasks)
	s.bar.Show(int64(p.Next.Database), task.Databases, countText(s.count, "line"))
	_, err = s.out.Write(s.buffer)
	return err
}

// end says what was exported.
func (s *snapshotSink) end(cmd *cobra.Command, err error) error {
	switch {
	case errors.Is(err, shards.ErrPrimary):
		return &cli.Error{Code: cli.Conflict, Err: err, Hint: "give the standbys in --config, or --force-primary for a small export; without --consistent an export reads short snapshots"}
	case err != nil && cmd.Context().Err() != nil:
		return &cli.Error{Code: cli.Failure, Err: errors.New("the export was interrupted"), Hint: "start it anew: a snapshot ends with its connection"}
	case err != nil:
		return &cli.Error{Code: cli.Unavailable, Err: err, Hint: snapshotHint(err)}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "exported %s\n", countText(s.count, "line"))
	return damagedError(s.damaged)
}

// snapshotHint says what to do about an error of a snapshot. Only one that the server has sent can be the end of the snapshot.
func snapshotHint(err error) string {
	if cure := store.Cure(err); cure != "" {
		return cure
	}
	if sent := new(pgconn.PgError); errors.As(err, &sent) {
		return "a standby ends snapshots that are older than its max_standby_streaming_delay while it replays"
	}
	return ""
}
