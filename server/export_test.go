package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lines "github.com/perceptor/perceptor/export/line"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// randomRow returns a task of any kind. Every field of the API is set in some of them.
func randomRow(r *rand.Rand) *task.Snapshot {
	some := func(n int) bool { return r.IntN(n) == 0 }
	at := func() task.Instant { return task.Instant(1_700_000_000_000 + r.Int64N(1e11)).Add(0) }
	length := func() time.Duration { return time.Duration(r.IntN(100_000_000)) * time.Millisecond }
	s := &task.Snapshot{FinishedAt: task.Never}
	row := &s.Row
	row.ID, row.Type, row.Kind = task.NewID(1+r.Int64N(1<<40), task.Shard(r.IntN(task.Shards))), task.Type(1+r.IntN(3)), randomText(r, 1+r.IntN(20))
	row.State = task.State(1 + r.IntN(5))
	row.Begin, row.ScheduledAt, row.DueAt, row.Anchor, row.CreatedAt, row.End = at(), at(), at(), at(), at(), task.Never
	if some(2) {
		row.Begin, row.End = row.Begin/1000*1000, at()
	}
	if some(3) {
		row.Paused, row.DueAt = true, task.Never
	}
	if row.State.Final() {
		s.FinishedAt = at()
	}
	switch {
	case some(3):
		row.Cron = &task.Cron{Dialect: task.Dialect(1 + r.IntN(3)), Expression: "0 9 * * *", Zone: "Europe/Berlin"}
	case row.Type != task.OneShot:
		row.Interval = time.Second + length()
	}
	row.Seq, row.MaxCount, row.Missed, row.Version = r.Int64N(3), r.Int64N(3), r.Int64N(2), int32(1+r.IntN(3))
	row.Attempt, row.OpenRuns, row.OpenRows = int32(r.IntN(3)), uint64(r.IntN(4)), int32(r.IntN(2))
	row.Retry = task.RetryPolicy{MaxAttempts: int32(1 + r.IntN(9)), InitialBackoff: length(), MaxBackoff: length(), Multiplier: float64(100+r.IntN(900)) / 100, Jitter: float64(r.IntN(101)) / 100}
	row.AckTimeout, row.GiveUpAfter, row.Retention, row.StopOnFailure = length(), length(), length()*time.Duration(r.IntN(2)), some(2)
	if row.Misfire = task.Misfire(r.IntN(4)); row.Misfire == task.Skip {
		row.Grace = length()
	}
	row.Overlap = task.Overlap(r.IntN(4))
	row.CatchUp, row.Spread = int32(r.IntN(2000)), length()*time.Duration(r.IntN(2))
	row.Key, row.TraceParent = strings.Repeat("k", r.IntN(3)), strings.Repeat("0", r.IntN(2))
	if some(3) {
		row.Tags = []string{randomText(r, 5), randomText(r, 9)}
		row.Exclude, row.Only = []string{randomText(r, 4)}, []string{randomText(r, 3), randomText(r, 7)}
		row.ReplayOf = task.RunID{Task: row.ID, Seq: 7}
		row.BackfillOf, row.Backfill = row.ID+512, 9
	}
	params := map[string]string{}
	for range r.IntN(4) {
		params[randomText(r, 1+r.IntN(5))] = randomText(r, r.IntN(50))
	}
	stored := &perceptorv1.Params{Entries: params}
	if some(3) {
		stored.Payload = []byte(randomText(r, 1+r.IntN(50)))
		stored.ContentType = []string{"", "text/plain; charset=utf-8"}[r.IntN(2)]
	}
	row.Params, _ = proto.Marshal(stored)
	return s
}

func randomText(r *rand.Rand, n int) string {
	letters := []rune("abcXYZ019 /:\"\\<>&\t\nΩ世\u2028\x7f😀")
	text := make([]rune, n)
	for i := range text {
		text[i] = letters[r.IntN(len(letters))]
	}
	return string(text)
}

func TestALineHasWhatTheAPIShowsOfTheTask(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	var w lines.Writer
	names := map[string]bool{}
	for range 5000 {
		s := randomRow(r)
		text, err := w.Append(nil, &s.Row, s.FinishedAt, fakeNow)
		if err != nil {
			t.Fatal(err)
		}
		want := asMap(t, must(jsonLines.Marshal(must(taskOf(s))(t)))(t))
		want["readTime"] = "2026-11-21T10:00:00Z"
		if s.Type == task.NonBlocking && s.Interval > 0 && !s.State.Final() {
			want["anchorTime"] = strings.Replace(s.Anchor.String(), ".000Z", "Z", 1)
		}
		got := asMap(t, text)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s: %s", text, diff)
		}
		maps.Copy(names, keysOf(got))
		if bytes.Count(text, []byte("\n")) != 1 || !bytes.HasPrefix(text, []byte(`{"id":"`)) {
			t.Fatalf("not a line that begins with the id: %s", text)
		}
	}
	fields := (&perceptorv1.Task{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if name := fields.Get(i).JSONName(); !names[name] {
			t.Errorf("no line has %s: package line, or this test, does not know it", name)
		}
	}
}

func keysOf(m map[string]any) map[string]bool {
	keys := map[string]bool{}
	for k := range m {
		keys[k] = true
	}
	return keys
}

func asMap(t *testing.T, text []byte) (m map[string]any) {
	t.Helper()
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

// A task that is restored without an anchor begins its grid with its next run, so the anchor may be missing of a new task alone.
func TestALineHasTheGridOfATaskAfterItsFirstRun(t *testing.T) {
	var w lines.Writer
	row := task.Row{ID: 512, Type: task.NonBlocking, State: task.Scheduled, DueAt: 1000, ScheduledAt: 1000, Anchor: 1000, Terms: task.Terms{Kind: "x", Begin: 1000, End: task.Never, Interval: time.Hour}}
	text := must(w.Append(nil, &row, task.Never, fakeNow))(t)
	if bytes.Contains(text, []byte("anchorTime")) {
		t.Errorf("a new task has an anchor: %s", text)
	}
	row.Seq, row.ScheduledAt = 1, row.Anchor.Add(90*time.Minute) // a result has moved the next run
	text = must(w.Append(nil, &row, task.Never, fakeNow))(t)
	if !bytes.Contains(text, []byte(`"anchorTime":"1970-01-01T00:00:01Z"`)) {
		t.Errorf("the grid of the task is lost: %s", text)
	}
}

// The line of a task whose open run was triggered has the instant that was planned before. Without it a copy would go on from
// the trigger, for example before its begin_time.
func TestALineHasTheInstantThatWasPlannedBeforeATrigger(t *testing.T) {
	const planned = `"plannedTime":"1970-01-01T02:00:00Z"`
	for name, c := range map[string]struct {
		change func(*task.Row)
		want   bool
	}{
		"BLOCKING":             {func(*task.Row) {}, true},
		"the last run":         {func(r *task.Row) { r.MaxCount = 1 }, false},
		"no instant is left":   {func(r *task.Row) { r.End = 2 * hourMs }, false},
		"ONE_SHOT":             {func(r *task.Row) { r.Type = task.OneShot }, false},
		"NON_BLOCKING":         {func(r *task.Row) { r.Type = task.NonBlocking }, false},
		"an instant not known": {func(r *task.Row) { r.ScheduledAt = task.Never }, false},
	} {
		row := &task.Row{ID: 512, Type: task.Blocking, State: task.Scheduled, DueAt: 2 * hourMs, ScheduledAt: 2 * hourMs, Anchor: 2 * hourMs,
			Terms: task.Terms{Kind: "x", Begin: 2 * hourMs, End: task.Never, Interval: time.Hour}}
		c.change(row)
		if _, err := (&task.Machine{Task: row}).Trigger(1000); err != nil {
			t.Fatal(name, err)
		}
		text := must(new(lines.Writer).Append(nil, row, task.Never, fakeNow))(t)
		if bytes.Contains(text, []byte(planned)) != c.want || bytes.Contains(text, []byte("plannedTime")) != c.want {
			t.Errorf("%s: the line is %s; has it the planned instant: want %t", name, text, c.want)
		}
	}
}

const hourMs = task.Instant(3_600_000)

func TestParamsThatAreNoParamsAreNotExported(t *testing.T) {
	for _, wire := range []string{"\x0a", "\x0a\x02\x0a", "\x22\x00", "\x08\x01", "\x0a\x02\x1a\x00", "\xff"} {
		s := randomRow(rand.New(rand.NewPCG(1, 1)))
		s.Params = []byte(wire)
		if text, err := new(lines.Writer).Append(nil, &s.Row, task.Never, 0); err == nil {
			t.Errorf("%q became %s", wire, text)
		}
	}
}

func BenchmarkLine(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	s := randomRow(r)
	s.Params, _ = proto.Marshal(&perceptorv1.Params{Entries: map[string]string{"customer": "8f14e45f", "template": "reminder-7d", "payload": strings.Repeat("x", 60)}})
	var w lines.Writer
	var text []byte
	for b.Loop() {
		text, _ = w.Append(text[:0], &s.Row, task.Never, fakeNow)
	}
	b.SetBytes(int64(len(text)))
}

// fakeExports has pages of tasks of acme.
type fakeExports struct {
	Exports
	pages   []*task.ExportPage
	queries []task.ExportQuery
	stuck   chan struct{} // nil, or closed when the export has passed its pages; it waits then
}

func (f *fakeExports) Export(ctx context.Context, q *task.ExportQuery, visit func(*task.ExportPage) error) error {
	f.queries = append(f.queries, *q)
	for _, p := range f.pages {
		if q.After != (task.ExportCursor{}) && p.Next.Database <= q.After.Database {
			continue
		}
		if err := visit(p); err != nil {
			return err
		}
	}
	if f.stuck != nil {
		close(f.stuck)
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// newFakeExports has n tasks in each database, with params of a size.
func newFakeExports(n, size int) *fakeExports {
	f := &fakeExports{}
	for d := range task.Databases {
		p := &task.ExportPage{At: task.ExportCursor{Database: d, Stage: task.ExportRows}, Next: task.ExportCursor{Database: d + 1}, ReadAt: fakeNow}
		for i := range n {
			wire, _ := proto.Marshal(&perceptorv1.Params{Entries: map[string]string{"p": strings.Repeat("x", size)}})
			s := task.Spec{Type: task.OneShot, Terms: task.Terms{Kind: "k", Begin: fakeNow, End: task.Never}, ParamsWire: wire}
			p.Rows = append(p.Rows, task.NewRow(acme.ID, task.NewID(int64(i+1), task.Shard(d*task.ShardsPerDatabase)), &s, fakeNow))
		}
		f.pages = append(f.pages, p)
	}
	return f
}

// export reads a stream until it ends.
func (b *bundle) export(secret string, r *perceptorv1.ExportTasksRequest) (lines []string, chunks []*perceptorv1.ExportChunk, err error) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(b.t.Context(), "authorization", "Bearer "+secret), time.Minute)
	defer cancel()
	stream, err := perceptorv1.NewExportServiceClient(b.conn).ExportTasks(ctx, r, grpc.WaitForReady(true))
	for err == nil {
		var c *perceptorv1.ExportChunk
		if c, err = stream.Recv(); err == nil {
			chunks = append(chunks, c)
			lines = slices.AppendSeq(lines, strings.Lines(string(c.Lines)))
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return lines, chunks, err
}

func exporting(t *testing.T, f *fakeExports) *bundle {
	return setupWith(t, func(d *Deps) { d.Exports = f })
}

func TestAnExportIsCompleteInMessagesOfBoundedSizeAndContinuesAtEachPosition(t *testing.T) {
	f := newFakeExports(100, 3000)
	b := exporting(t, f)
	all, chunks, err := b.export("acme-secret", &perceptorv1.ExportTasksRequest{})
	if err != nil || len(all) != 1600 || len(chunks) < 10 {
		t.Fatalf("%d lines in %d messages, %v", len(all), len(chunks), err)
	}
	count := 0
	for i, c := range chunks {
		count += int(c.LineCount)
		if len(c.Lines) > exportChunk+4000 || (c.Position == "") != (i == len(chunks)-1) {
			t.Errorf("message %d has %d bytes and position %q", i, len(c.Lines), c.Position)
		}
		if c.Position == "" {
			continue
		}
		f.queries = nil
		if _, _, err := b.export("acme-secret", &perceptorv1.ExportTasksRequest{Position: c.Position}); err != nil {
			t.Fatal(err)
		}
		last := asMap(t, []byte(all[count-1]))["id"].(string)
		at := f.queries[0].After
		if at.Task != 0 && at.Task.String() != last {
			t.Errorf("message %d ends with task %s and continues after %v", i, last, at)
		}
	}
	if count != len(all) {
		t.Errorf("the messages say %d lines, and have %d", count, len(all))
	}
}

func TestAnExportWithoutParamsHasNone(t *testing.T) {
	b := exporting(t, newFakeExports(1, 10))
	lines, _, err := b.export("acme-secret", &perceptorv1.ExportTasksRequest{Redact: true})
	if err != nil || len(lines) != 16 || strings.Contains(strings.Join(lines, ""), "params") {
		t.Errorf("%v, %v", lines, err)
	}
}

func TestAPositionIsGoodForTheSameExportOfTheSameTenantAlone(t *testing.T) {
	b := exporting(t, newFakeExports(100, 3000))
	_, chunks, err := b.export("acme-secret", &perceptorv1.ExportTasksRequest{Kind: "k"})
	if err != nil {
		t.Fatal(err)
	}
	at := chunks[0].Position
	for name, c := range map[string]struct {
		secret string
		r      *perceptorv1.ExportTasksRequest
	}{
		"another filter": {"acme-secret", &perceptorv1.ExportTasksRequest{Position: at}},
		"another form":   {"acme-secret", &perceptorv1.ExportTasksRequest{Position: at, Kind: "k", Redact: true}},
		"another tenant": {"rival-secret", &perceptorv1.ExportTasksRequest{Position: at, Kind: "k"}},
		"none":           {"acme-secret", &perceptorv1.ExportTasksRequest{Position: at[:len(at)-4], Kind: "k"}},
		"text":           {"acme-secret", &perceptorv1.ExportTasksRequest{Position: "here", Kind: "k"}},
	} {
		if _, _, err := b.export(c.secret, c.r); status.Code(err) != codes.InvalidArgument || !strings.Contains(fmt.Sprint(status.Convert(err).Details()), "position") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnExportNeedsTheScopeToRead(t *testing.T) {
	b := exporting(t, newFakeExports(1, 1))
	for _, secret := range []string{"admin-secret", "owner-secret", "scope-LISTEN", "scope-INSPECT"} {
		if _, _, err := b.export(secret, &perceptorv1.ExportTasksRequest{}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", secret, err)
		}
	}
}

func TestAnExportEndsWhenTheProcessStops(t *testing.T) {
	f := newFakeExports(1, 1)
	f.stuck = make(chan struct{})
	b := exporting(t, f)
	ended := make(chan error, 1)
	go func() {
		_, _, err := b.export("acme-secret", &perceptorv1.ExportTasksRequest{})
		ended <- err
	}()
	<-f.stuck
	b.stop()
	if err := <-ended; status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
}

func TestAnExportThatWaitsForItsRateEndsWhenTheProcessStops(t *testing.T) {
	b := setupWith(t, func(d *Deps) { d.Exports, d.Quotas = newFakeExports(100, 3000), &fakeQuotas{adds: 100} },
		func(c *Config) { c.Quotas = task.Quotas{task.QuotaReads: 1} })
	stream, err := perceptorv1.NewExportServiceClient(b.conn).ExportTasks(as(t.Context(), "acme-secret"), &perceptorv1.ExportTasksRequest{})
	if err == nil {
		_, err = stream.Recv() // its lines are the rate of more than a minute
	}
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	b.stop()
	for err == nil {
		_, err = stream.Recv()
	}
	if took := time.Since(began); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "continue the export at its last position") || took > 20*time.Second {
		t.Errorf("the stream ended with %v after %s", err, took)
	}
}

func TestATenantHasFewExportsAtOnce(t *testing.T) {
	f := newFakeExports(1, 1)
	s := newExportService(f, nil)
	for range tenantExports {
		if !s.places.Take(acme.ID, 1) {
			t.Fatal("too few")
		}
	}
	if s.places.Take(acme.ID, 1) {
		t.Error("too many")
	}
	if !s.places.Take(rival.ID, 1) {
		t.Error("another tenant waits")
	}
}
