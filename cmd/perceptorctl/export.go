package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/export"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/duration"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// exportFlags are the flags of an export.
type exportFlags struct {
	kind, typ, state, dueFrom, dueUntil string
	reason, diedFrom, diedUntil         string
	tags                                []string
	file, dir, resume                   string
	partSize                            int64
	dead, history, redact               bool
	consistent, primary                 bool
	tenant                              string
	retryFor                            time.Duration
}

// What selects tasks, and dead runs; none of it selects events.
var (
	exportTaskFilters = []string{"state", "due-from", "due-until"}
	exportDeadFilters = []string{"reason", "died-from", "died-until"}
)

func (c *ctl) exportCommand() *cobra.Command {
	x := &exportFlags{}
	cmd := &cobra.Command{
		Use: "export", Short: "Write the tenant's tasks, dead runs or history as lines of JSON", Args: cobra.NoArgs,
		Long: "Write the tenant's tasks as lines of JSON, each once, with all their terms and their state. With --dead-runs or\n" +
			"--history write its dead runs or the events of its runs instead. The lines go to standard output, to --file, or to\n" +
			"part files in --dir. An export to part files that was interrupted continues with --resume DIR.\n\n" +
			"With --consistent the tasks of all databases of a server are read as of one instant, from the servers of the\n" +
			"configuration instead of the API. The servers should be standbys: on a primary, a snapshot that lasts as long as\n" +
			"the export hinders vacuum.",
		Example: "  perceptorctl export --file tasks.jsonl\n" +
			"  perceptorctl export --kind mail --tag campaign-7 --dir mails --part-size 100000\n" +
			"  perceptorctl export --resume mails\n" +
			"  perceptorctl export --dead-runs --died-from 2026-01-31T00:00:00Z --redact\n" +
			"  perceptorctl export --consistent --tenant acme --config standbys.yaml --file tasks.jsonl",
	}
	cli.ConfigFlags(cmd, config.NeedPostgres, func(cmd *cobra.Command, conf *config.Config) error { return c.exportSnapshot(cmd, x, conf) }, "postgres")
	load := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := x.check(cmd); err != nil {
			return err
		}
		if x.consistent {
			return load(cmd, args)
		}
		return c.runExport(cmd, x)
	}
	f := cmd.Flags()
	f.StringVar(&x.kind, "kind", "", "only tasks or dead runs of this kind")
	f.StringVar(&x.typ, "type", "", "only tasks or dead runs of this type: one-shot, non-blocking or blocking")
	f.StringArrayVar(&x.tags, "tag", nil, "only tasks or dead runs with this tag; repeat it to require several tags")
	f.StringVar(&x.state, "state", "", "only tasks in this state (default: those that have not finished)")
	f.StringVar(&x.dueFrom, "due-from", "", "only tasks due at this instant or later, such as 2026-01-31T12:00:00Z or +90s from now")
	f.StringVar(&x.dueUntil, "due-until", "", "only tasks due before this instant")
	f.BoolVar(&x.dead, "dead-runs", false, "dead runs instead of tasks")
	f.StringVar(&x.reason, "reason", "", "only dead runs with this reason: out-of-attempts, silent, unpublishable or permanent")
	f.StringVar(&x.diedFrom, "died-from", "", "only runs that died at this instant or later")
	f.StringVar(&x.diedUntil, "died-until", "", "only runs that died before this instant")
	f.BoolVar(&x.history, "history", false, "the events of all runs instead of tasks")
	f.BoolVar(&x.redact, "redact", false, "leave out params and payloads")
	f.StringVar(&x.file, "file", "", "file to write, which must not exist (default: standard output)")
	f.StringVar(&x.dir, "dir", "", "directory for part files; an interrupted export to it can be resumed")
	f.Int64Var(&x.partSize, "part-size", 1_000_000, "least number of lines of a part file that others follow; the service sends many lines at once")
	f.StringVar(&x.resume, "resume", "", "continue the interrupted export in this directory")
	f.BoolVar(&x.consistent, "consistent", false, "read all databases of a server as of one instant, from the servers of the configuration, which should be standbys")
	f.StringVar(&x.tenant, "tenant", "", "with --consistent: the tenant")
	f.BoolVar(&x.primary, "force-primary", false, "with --consistent: read from primaries, too")
	duration.Var(f, &x.retryFor, "retry-for", 10*time.Minute, "how long to try again while the service does not answer, or a quota refuses")
	completes(cmd, "type", taskTypes...)
	completes(cmd, "state", taskStates...)
	completes(cmd, "reason", deadReasons...)
	return cmd
}

// runExport exports what the flags say to where they say.
func (c *ctl) runExport(cmd *cobra.Command, x *exportFlags) error {
	switch {
	case x.resume != "":
		return c.resumeExport(cmd, x)
	case x.dir != "":
		r, err := x.request()
		if err != nil {
			return err
		}
		text, err := protojson.Marshal(r)
		if err != nil {
			return err
		}
		d, err := export.Create(x.dir, x.what(), json.RawMessage(text), x.partSize)
		if err != nil {
			e := &cli.Error{Code: cli.Conflict, Err: err}
			if !errors.Is(err, export.ErrHeld) {
				e.Hint = "perceptorctl export --resume " + x.dir + " continues an export"
			}
			return e
		}
		return c.exportTo(cmd, x, r, &dirSink{d})
	}
	r, err := x.request()
	if err != nil {
		return err
	}
	return x.toFile(cmd, func(out io.Writer) error {
		return c.exportTo(cmd, x, r, &fileSink{Writer: export.NewWriter(out, x.what() == export.Tasks)})
	})
}

// check refuses flags that do not go together.
func (x *exportFlags) check(cmd *cobra.Command) error {
	given := func(names ...string) string {
		for _, name := range names {
			if cmd.Flags().Changed(name) {
				return name
			}
		}
		return ""
	}
	others := ""
	switch {
	case x.dead && x.history:
		return cli.Usagef("--dead-runs and --history exclude each other: export them one after another")
	case x.history:
		others = given("kind", "type", "tag", "state", "due-from", "due-until", "reason", "died-from", "died-until", "redact")
	case x.dead:
		others = given(exportTaskFilters...)
	default:
		others = given(exportDeadFilters...)
	}
	if others != "" {
		return cli.Usagef("--%s does not apply to an export of %s", others, x.what())
	}
	if x.resume != "" {
		others = cmp.Or(given("kind", "type", "tag", "redact", "dead-runs", "history", "file", "dir", "part-size"), given(exportTaskFilters...), given(exportDeadFilters...))
		if others != "" {
			return cli.Usagef("--%s: --resume continues an export as it began", others)
		}
	}
	switch {
	case x.consistent && (x.dead || x.history || x.dir != "" || x.resume != ""):
		return cli.Usagef("--consistent is for tasks, and for one file: a snapshot ends with its connection, so it cannot be resumed")
	case x.consistent != (x.tenant != ""):
		return cli.Usagef("--consistent and --tenant need each other")
	case x.primary && !x.consistent:
		return cli.Usagef("--force-primary needs --consistent")
	case x.dir != "" && x.file != "":
		return cli.Usagef("--dir and --file exclude each other")
	case x.retryFor < 0:
		return cli.Usagef("--retry-for: %s is negative", x.retryFor)
	case x.dir == "" && given("part-size") != "":
		return cli.Usagef("--part-size needs --dir")
	case x.partSize < 1:
		return cli.Usagef("--part-size: %d is below 1", x.partSize)
	}
	return nil
}

// what says in a word what is exported.
func (x *exportFlags) what() string {
	switch {
	case x.dead:
		return "dead-runs"
	case x.history:
		return "history"
	}
	return export.Tasks
}

// request returns the request of the export.
func (x *exportFlags) request() (proto.Message, error) {
	if x.history {
		return &perceptorv1.ExportRunEventsRequest{}, nil
	}
	if x.dead {
		d := deadFlags{typ: x.typ, reason: x.reason, from: x.diedFrom, until: x.diedUntil}
		d.f.Kind, d.f.Tags = x.kind, x.tags
		f, err := d.read()
		return &perceptorv1.ExportDeadRunsRequest{Filter: f, Redact: x.redact}, err
	}
	b := bulkFlags{kind: x.kind, typ: x.typ, state: x.state, tags: x.tags, dueFrom: x.dueFrom, dueUntil: x.dueUntil}
	f, err := b.filter()
	if err != nil {
		return nil, err
	}
	return &perceptorv1.ExportTasksRequest{Kind: f.Kind, Type: f.Type, State: f.State, Tags: f.Tags, DueFrom: f.DueFrom, DueUntil: f.DueUntil, Redact: x.redact}, nil
}

// resumeExport continues an export to part files.
func (c *ctl) resumeExport(cmd *cobra.Command, x *exportFlags) error {
	d, err := export.Resume(x.resume)
	if errors.Is(err, export.ErrHeld) {
		return &cli.Error{Code: cli.Conflict, Err: fmt.Errorf("--resume: %w", err)}
	}
	if err != nil {
		return &cli.Error{Code: cli.Usage, Err: fmt.Errorf("--resume: %w", err)}
	}
	if d.Done {
		fmt.Fprintf(cmd.ErrOrStderr(), "the export is complete: %s in %s\n", countText(d.Lines, "line"), countText(len(d.Parts), "part"))
		return nil
	}
	r, ok := map[string]proto.Message{
		export.Tasks: &perceptorv1.ExportTasksRequest{}, "dead-runs": &perceptorv1.ExportDeadRunsRequest{}, "history": &perceptorv1.ExportRunEventsRequest{},
	}[d.What]
	if !ok || protojson.Unmarshal(d.Request, r) != nil {
		return cli.Usagef("--resume: %s has the state of an export that this program does not know", x.resume)
	}
	return c.exportTo(cmd, x, r, &dirSink{d})
}

// toFile calls f with standard output, or with a new file that gets its name at the end.
func (x *exportFlags) toFile(cmd *cobra.Command, f func(io.Writer) error) error {
	if x.file == "" {
		out := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<20)
		return errors.Join(f(out), out.Flush())
	}
	if _, err := os.Lstat(x.file); err == nil {
		return &cli.Error{Code: cli.Conflict, Err: fmt.Errorf("--file: %s exists", x.file)}
	}
	out, err := os.CreateTemp(filepath.Dir(x.file), filepath.Base(x.file)+".*.partial")
	if err != nil {
		return cli.Usagef("--file: %v", err)
	}
	buffer := bufio.NewWriterSize(out, 1<<20)
	err = f(buffer)
	if err == nil {
		err = errors.Join(buffer.Flush(), out.Sync())
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(out.Name(), x.file)
	}
	if err != nil {
		_ = os.Remove(out.Name()) // what is in it cannot continue
	}
	return err
}

// sink takes the chunks of an export.
type sink interface {
	Add(c export.Chunk, damaged int64) error
	// At returns the position after the last chunk.
	At() string
	// Written returns the number of lines.
	Written() int64
	// end is called at the end, which is not that of the export if err is not nil.
	end(err error) error
	// summary says what was written, and how much could not be read.
	summary() (text string, damaged int64)
}

// fileSink writes to one stream.
type fileSink struct {
	*export.Writer
	at      string
	damaged int64
}

func (s *fileSink) Add(c export.Chunk, damaged int64) error {
	s.at, s.damaged = c.Position, s.damaged+damaged
	return s.Write(c)
}
func (s *fileSink) At() string          { return s.at }
func (s *fileSink) Written() int64      { return s.Count }
func (s *fileSink) end(err error) error { return err }
func (s *fileSink) summary() (string, int64) {
	return countText(s.Count, "line") + ", " + countText(s.Bytes, "byte"), s.damaged
}

// dirSink writes to part files.
type dirSink struct{ *export.Dir }

// end completes the part that was begun, so that no work is lost.
func (s *dirSink) end(err error) error {
	defer s.Abandon()
	if err != nil && !s.Done {
		if also := s.End(); !errors.Is(err, also) { // which may be the same: a chunk was not written
			err = errors.Join(err, also)
		}
	}
	return err
}

func (s *dirSink) summary() (string, int64) {
	return fmt.Sprintf("%s, %s in %s", countText(s.Lines, "line"), countText(s.Bytes, "byte"), countText(len(s.Parts), "part")), s.Damaged
}

// exportTo streams to a sink until the export is complete.
func (c *ctl) exportTo(cmd *cobra.Command, x *exportFlags, r proto.Message, to sink) error {
	bar := cli.NewProgress(cmd.ErrOrStderr(), "exporting")
	defer bar.End()
	err := c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
		e := &exporter{
			client: perceptorv1.NewExportServiceClient(conn), request: r, to: to, bar: bar, retryFor: x.retryFor, out: cmd.ErrOrStderr(),
			answered: to.At() != "", // an export that continues is known to the service
		}
		return e.run(ctx)
	})
	bar.End()
	if err = to.end(err); err != nil {
		return err
	}
	text, damaged := to.summary()
	fmt.Fprintln(cmd.ErrOrStderr(), "exported "+text)
	return damagedError(damaged)
}

// damagedError returns the error of a complete export that has passed over damaged data.
func damagedError(damaged int64) error {
	if damaged == 0 {
		return nil
	}
	return &cli.Error{Code: cli.Failure, Err: fmt.Errorf("%d packs or tasks are not in the export, because their stored data is damaged", damaged),
		Hint: "perceptorctl pack list names damaged packs"}
}

// exporter reads streams, one after another, until the end of the export.
type exporter struct {
	client   perceptorv1.ExportServiceClient
	request  proto.Message
	to       sink
	bar      *cli.Progress
	retryFor time.Duration
	out      io.Writer
	answered bool // the service has sent a chunk, to this command or to the one that it continues
}

// The waits between two streams grow from leastWait to mostWait.
const leastWait, mostWait = 500 * time.Millisecond, 15 * time.Second

func (e *exporter) run(ctx context.Context) error {
	wait, began := leastWait, time.Now()
	for {
		at := e.to.At()
		done, err := e.stream(ctx)
		if done || err == nil {
			return err
		}
		if e.to.At() != at {
			wait, began = leastWait, time.Now()
		}
		asked := retryAfter(err) // by a quota, which refuses the first stream, too
		if ctx.Err() != nil || !e.answered && asked == 0 || !again(err) || time.Since(began)+asked > e.retryFor {
			return err
		}
		e.bar.End()
		next := max(wait, asked)
		fmt.Fprintf(e.out, "%s in %s: %s\n", e.interrupted(), next.Round(time.Millisecond), status.Convert(err).Message())
		if !ctxtime.Sleep(ctx, next) {
			return err
		}
		wait = min(2*wait, mostWait)
	}
}

func (e *exporter) interrupted() string {
	if !e.answered {
		return "the export begins"
	}
	return "the export was interrupted after " + countText(e.to.Written(), "line") + " and continues"
}

// again reports whether an export can continue after an error.
func again(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Aborted:
		return true
	}
	return false
}

// stream reads one stream. done means that the export is complete, or that it cannot continue.
func (e *exporter) stream(ctx context.Context) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := e.open(ctx)
	if err != nil {
		return false, err
	}
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return true, errors.New("the service ended the export without its last message")
		}
		if err != nil {
			return false, err
		}
		if chunk.Position == "" {
			if err := endOf(stream); err != nil {
				return false, err
			}
		}
		if err := e.to.Add(export.Chunk{Lines: chunk.Lines, Position: chunk.Position}, int64(chunk.DamagedPacks)+int64(chunk.DamagedTasks)); err != nil {
			return true, err
		}
		e.answered = true
		if chunk.Position == "" {
			return true, nil
		}
		e.bar.Show(int64(chunk.DatabasesDone), task.Databases, countText(e.to.Written(), "line"))
	}
}

// endOf waits for the end of a stream after its last message, and returns the error with which the service ends it.
func endOf(stream grpc.ServerStreamingClient[perceptorv1.ExportChunk]) error {
	switch _, err := stream.Recv(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return errors.New("the service went on after the last message of the export")
}

// open begins a stream at the position of the sink.
func (e *exporter) open(ctx context.Context) (grpc.ServerStreamingClient[perceptorv1.ExportChunk], error) {
	switch r := e.request.(type) {
	case *perceptorv1.ExportDeadRunsRequest:
		r.Position = e.to.At()
		return e.client.ExportDeadRuns(ctx, r)
	case *perceptorv1.ExportRunEventsRequest:
		r.Position = e.to.At()
		return e.client.ExportRunEvents(ctx, r)
	case *perceptorv1.ExportTasksRequest:
		r.Position = e.to.At()
		return e.client.ExportTasks(ctx, r)
	}
	return nil, errors.New("unknown export")
}
