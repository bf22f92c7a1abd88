package virtualtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/perceptor/perceptor/client"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/transfer"
	"github.com/perceptor/perceptor/transfer/upload"
)

// api returns a connection of the tenant, and a context with its token.
func (t *Tenant) api(tb testing.TB) (context.Context, *grpc.ClientConn) {
	tb.Helper()
	conn, err := grpc.NewClient(t.s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return metadata.AppendToOutgoingContext(tb.Context(), "authorization", "Bearer "+t.Token), conn
}

// export returns the lines of the tenant's unfinished tasks.
func (t *Tenant) export(tb testing.TB) []byte {
	tb.Helper()
	ctx, conn := t.api(tb)
	stream, err := perceptorv1.NewExportServiceClient(conn).ExportTasks(ctx, &perceptorv1.ExportTasksRequest{})
	if err != nil {
		tb.Fatal(err)
	}
	var lines []byte
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			tb.Fatal(err)
		}
		lines = append(lines, chunk.Lines...)
	}
}

// restore stores the tasks of an export.
func (t *Tenant) restore(tb testing.TB, lines []byte) {
	tb.Helper()
	ctx, conn := t.api(tb)
	imports := perceptorv1.NewImportServiceClient(conn)
	i, err := imports.CreateImport(ctx, &perceptorv1.CreateImportRequest{Import: &perceptorv1.Import{Restore: true}})
	if err != nil {
		tb.Fatal(err)
	}
	s, err := transfer.OpenJSON("tasks.jsonl", io.NopCloser(bytes.NewReader(lines)), transfer.Mapping{Restore: true, Defaults: &perceptorv1.Task{}})
	if err != nil {
		tb.Fatal(err)
	}
	b, err := transfer.NewBuilder(1000)
	if err != nil {
		tb.Fatal(err)
	}
	var l transfer.Line
	for err = s.Next(ctx, &l); err == nil; err = s.Next(ctx, &l) {
		if err := b.Add(s, &l); err != nil {
			tb.Fatal(err)
		}
	}
	if !errors.Is(err, io.EOF) {
		tb.Fatal(err)
	}
	chunk, err := b.Take()
	if err != nil {
		tb.Fatal(err)
	}
	chunks := make(chan *transfer.Chunk, 1)
	chunks <- chunk
	close(chunks)
	answered := func(_ *transfer.Chunk, r *perceptorv1.WriteImportResponse) error {
		if len(r.Rejected) > 0 {
			tb.Errorf("rejected: %v", r.Rejected)
		}
		return nil
	}
	if err := upload.Run(ctx, imports, upload.Config{Import: i.Id, Answered: answered}, chunks); err != nil {
		tb.Fatal(err)
	}
}

// A copy that is made while the last run is open, or a triggered one, fires the instants that the task would have fired.
func copied(t *testing.T, s *Stack) {
	from, first := s.Tenant(t), s.Now(t).Truncate(time.Hour).Add(2*time.Hour)
	for kind, task := range map[string]client.Task{
		"counted":   {Type: client.NonBlocking, Begin: first, Interval: time.Hour, MaxCount: 2},
		"ended":     {Type: client.NonBlocking, Begin: first, Interval: time.Hour, End: first.Add(90 * time.Minute)},
		"matching":  {Type: client.NonBlocking, Begin: first, Cron: &client.Cron{Expression: "0 * * * *"}, MaxCount: 2},
		"triggered": {Type: client.Blocking, Begin: first.Add(2 * day), Interval: time.Hour, MaxCount: 3},
	} {
		task.Kind, task.AckTimeout = kind, day
		id := from.Add(t, task)
		if kind == "triggered" {
			if _, err := from.TriggerTask(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.AdvanceWith(t, first.Add(70*time.Minute).Sub(s.Now(t)), impatient) // nobody listens
	lines := from.export(t)
	from.cancelAll(t)
	to := s.Tenant(t)
	runs, handlers := map[string]*Runs{}, map[string]client.Handler{}
	for _, kind := range []string{"counted", "ended", "matching", "triggered"} {
		runs[kind] = &Runs{}
		handlers[kind] = runs[kind].Handler(s)
	}
	to.Listen(t, handlers)
	to.restore(t, lines)
	s.Advance(t, 3*day)
	second := first.Add(time.Hour)
	for kind, want := range map[string][]time.Time{
		"counted": {second}, "ended": {second}, "matching": {second}, "triggered": {first.Add(2 * day), first.Add(2*day + time.Hour)},
	} {
		var got []time.Time
		for _, r := range runs[kind].All() {
			got = append(got, r.ScheduledAt)
		}
		if !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("%s: the copy has fired %s, want %s\n%s", kind, got, want, lines)
		}
	}
}
