package server

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	lines "github.com/perceptor/perceptor/export/line"
	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/share"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	// exportStreams is the most exports at once, and tenantExports the most of one tenant. Each
	// uses a connection to a database for some milliseconds of each page, and some
	// megabytes.
	exportStreams, tenantExports = 8, 2
	// exportChunk ends a message of an export, and exportEvery sends one that is not full.
	exportChunk = 256 << 10
	exportEvery = time.Second
)

// exportService streams what a tenant has. A page is read while the one before it is sent, so
// an export holds at most three pages in memory.
type exportService struct {
	perceptorv1.UnimplementedExportServiceServer
	store Exports // nil: none
	// places has the streams in progress, by tenant.
	places *share.Pool[int32]
	// draining is closed when the process stops.
	draining <-chan struct{}
}

func newExportService(store Exports, draining <-chan struct{}) *exportService {
	return &exportService{store: store, places: share.NewPool[int32](exportStreams, tenantExports), draining: draining}
}

var (
	errNoExports = task.Errorf(task.ReasonUnknownMethod, "this service has no exports")
	errDraining  = reasoned(task.ReasonServerStopping, "the process stops; continue the export at its last position")
)

// chunkStream is the caller's side of an export.
type chunkStream = grpc.ServerStreamingServer[perceptorv1.ExportChunk]

func (s *exportService) ExportTasks(r *perceptorv1.ExportTasksRequest, stream chunkStream) error {
	who := identityOf(stream.Context())
	check := &reader{}
	f := check.filter(r)
	redact := r.Redact || !who.seesParams()
	hash := exportHash("tasks", who, fmt.Sprintf("%q %d %d %q %d %d %t", f.Kind, f.Type, f.State, f.Tags, f.DueFrom, f.DueUntil, redact))
	q := &task.ExportQuery{Tenant: who.Tenant.ID, Filter: f}
	check.position(hash, r.Position, func(text string) (err error) {
		q.After, err = task.ParseExportCursor(text)
		return err
	})
	return s.serve(stream, check, hash, func(ctx context.Context, pages chan<- page) error {
		return s.store.Export(ctx, q, func(p *task.ExportPage) error { return pass(ctx, pages, &taskPage{p, redact}) })
	})
}

func (s *exportService) ExportDeadRuns(r *perceptorv1.ExportDeadRunsRequest, stream chunkStream) error {
	who := identityOf(stream.Context())
	check := &reader{}
	f := check.deadFilter(r.GetFilter())
	redact := r.Redact || !who.seesParams()
	hash := exportHash("dead", who, fmt.Sprintf("%q %d %d %d %q %d %d %t", f.Kind, f.Type, f.Reason, f.Task, f.Tags, f.DiedFrom, f.DiedUntil, redact))
	at := check.runPosition(hash, r.Position)
	return s.serve(stream, check, hash, func(ctx context.Context, pages chan<- page) error {
		return s.store.ExportDead(ctx, who.Tenant.ID, &f, at, func(list []*task.DeadLetter, next task.RunCursor) error {
			return pass(ctx, pages, &deadPage{list, next, redact})
		})
	})
}

func (s *exportService) ExportRunEvents(r *perceptorv1.ExportRunEventsRequest, stream chunkStream) error {
	who := identityOf(stream.Context())
	check := &reader{}
	hash := exportHash("events", who, "")
	at := check.runPosition(hash, r.Position)
	return s.serve(stream, check, hash, func(ctx context.Context, pages chan<- page) error {
		return s.store.ExportEvents(ctx, who.Tenant.ID, at, func(list []task.RunEvent, next task.RunCursor) error {
			return pass(ctx, pages, &eventPage{list, next})
		})
	})
}

// exportHash hashes what must not change when an export continues.
func exportHash(of string, who *Identity, filter string) []byte {
	return pageHash("export", of, strconv.Itoa(int(who.Tenant.ID)), filter)
}

// position reads the position of an export by parse, unless it is empty.
func (r *reader) position(hash []byte, token string, parse func(string) error) {
	text, bad := cursorOf(hash, token)
	if bad == nil && text != "" && parse(text) != nil {
		bad = &task.Fault{Message: "was not issued by this service"}
	}
	if bad != nil {
		r.fault("position", "%s", bad.Message)
	}
}

func (r *reader) runPosition(hash []byte, token string) (at task.RunCursor) {
	r.position(hash, token, func(text string) (err error) {
		at, err = task.ParseRunCursor(text)
		return err
	})
	return at
}

// pass passes a page on, unless the stream has ended.
func pass(ctx context.Context, pages chan<- page, p page) error {
	select {
	case pages <- p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serve sends the pages that walk passes, while walk reads the next ones.
func (s *exportService) serve(stream chunkStream, check *reader, hash []byte, walk func(context.Context, chan<- page) error) error {
	who := identityOf(stream.Context())
	switch {
	case s.store == nil:
		return errNoExports
	case len(check.faults) > 0:
		return invalid(check.faults)
	}
	waiting, cancel := context.WithTimeoutCause(stream.Context(), placeWithin, errTenantBusy)
	defer cancel()
	if err := s.places.Wait(waiting, who.Tenant.ID, 1); err != nil {
		return err
	}
	defer s.places.Give(who.Tenant.ID, 1)
	g, ctx := errgroup.WithContext(stream.Context())
	pages := make(chan page, 1)
	g.Go(func() error {
		err := walk(ctx, pages)
		if err == nil { // otherwise the stream must not end as a complete one
			close(pages)
		}
		return err
	})
	sent := make(chan struct{})
	g.Go(func() error {
		select {
		case <-s.draining:
			return errDraining
		case <-sent:
			return nil
		}
	})
	g.Go(func() error {
		defer close(sent)
		out := &chunker{stream: stream, hash: hash, sent: time.Now()}
		for {
			select {
			case p, more := <-pages:
				if !more {
					return out.end()
				}
				if err := out.page(p); err != nil {
					return err
				}
			case <-ctx.Done():
				return nil // another one has the error
			}
		}
	})
	return g.Wait()
}

// chunker makes messages of lines.
type chunker struct {
	stream chunkStream
	hash   []byte
	writer lines.Writer
	chunk  perceptorv1.ExportChunk
	sent   time.Time // when the last message was sent
}

// page is some lines that were read together.
type page interface {
	// count returns the number of lines, and write appends line i.
	count() int
	write(w *lines.Writer, dst []byte, i int) ([]byte, error)
	// after returns the position after line i, or after the page for -1, and its database.
	after(i int) (cursor string, database int)
	// note sets what the message with the end of the page says about it.
	note(c *perceptorv1.ExportChunk)
}

func (c *chunker) page(p page) (err error) {
	n := p.count()
	for i := range n {
		if c.chunk.Lines, err = p.write(&c.writer, c.chunk.Lines, i); err != nil {
			return err
		}
		if c.chunk.LineCount++; len(c.chunk.Lines) < exportChunk || i == n-1 {
			continue
		}
		if err := c.flush(p.after(i)); err != nil {
			return err
		}
	}
	p.note(&c.chunk)
	cursor, database := p.after(-1)
	if len(c.chunk.Lines) < exportChunk && time.Since(c.sent) < exportEvery {
		return nil
	}
	return c.flush(cursor, database)
}

// flush sends the lines with the position after them.
func (c *chunker) flush(cursor string, database int) error {
	if database == task.Databases {
		return nil // end sends them
	}
	c.chunk.Position, c.chunk.DatabasesDone = pageToken(c.hash, cursor), int32(database) //nolint:gosec // below 16
	err := c.stream.Send(&c.chunk)
	c.sent = time.Now()
	lines := c.chunk.Lines[:0]
	c.chunk.Reset()
	c.chunk.Lines = lines
	return err
}

// end sends the last message, which has no position.
func (c *chunker) end() error {
	c.chunk.Position, c.chunk.DatabasesDone = "", task.Databases
	return c.stream.Send(&c.chunk)
}

// taskPage has tasks.
type taskPage struct {
	*task.ExportPage
	redact bool
}

func (p *taskPage) count() int { return len(p.Rows) }

func (p *taskPage) write(w *lines.Writer, dst []byte, i int) ([]byte, error) {
	finished := task.Never
	if p.Finished != nil {
		finished = p.Finished[i]
	}
	w.Redact = p.redact
	return w.Append(dst, p.Rows[i], finished, p.ReadAt)
}

func (p *taskPage) after(i int) (cursor string, database int) {
	at := p.Next
	if i >= 0 {
		at = p.After(i)
	}
	return at.String(), at.Database
}

func (p *taskPage) note(c *perceptorv1.ExportChunk) {
	c.DamagedPacks += int32(p.DamagedPacks) //nolint:gosec // few
	c.DamagedTasks += int32(p.DamagedTasks) //nolint:gosec // at most those of a pack
}

// deadPage has dead runs.
type deadPage struct {
	list   []*task.DeadLetter
	next   task.RunCursor
	redact bool
}

func (p *deadPage) count() int { return len(p.list) }

func (p *deadPage) write(_ *lines.Writer, dst []byte, i int) ([]byte, error) {
	d, err := deadRunOf(p.list[i])
	if err != nil {
		return dst, err
	}
	if p.redact {
		d.Params, d.Payload = nil, nil
	}
	return appendJSON(dst, d)
}

func (p *deadPage) after(i int) (cursor string, database int) {
	at := p.next
	if i >= 0 && i < len(p.list)-1 {
		id := p.list[i].RunID
		at = task.RunCursor{Database: id.Task.Shard().Database(), RunID: id}
	}
	return at.String(), at.Database
}

func (p *deadPage) note(*perceptorv1.ExportChunk) {}

// eventPage has events of runs.
type eventPage struct {
	list []task.RunEvent
	next task.RunCursor
}

func (p *eventPage) count() int { return len(p.list) }

func (p *eventPage) write(_ *lines.Writer, dst []byte, i int) ([]byte, error) {
	dst = append(dst, `{"taskId":"`...)
	dst = append(strconv.AppendInt(dst, int64(p.list[i].Task), 10), `",`...)
	event := len(dst)
	dst, err := appendJSON(dst, eventOf(&p.list[i]))
	if err != nil {
		return dst, err
	}
	return append(dst[:event], dst[event+1:]...), nil // without the brace of the event's own
}

func (p *eventPage) after(i int) (cursor string, database int) {
	at := p.next
	if i >= 0 && i < len(p.list)-1 {
		e := &p.list[i]
		at = task.RunCursor{Database: e.Task.Shard().Database(), RunID: e.RunID, At: e.At, Attempt: e.Attempt, Event: e.Event}
	}
	return at.String(), at.Database
}

func (p *eventPage) note(*perceptorv1.ExportChunk) {}

// appendJSON appends a message as a line.
func appendJSON(dst []byte, m proto.Message) ([]byte, error) {
	start := len(dst)
	dst, err := jsonLines.MarshalAppend(dst, m)
	if err != nil {
		return dst[:start], fmt.Errorf("encode a line: %w", err)
	}
	return append(dst, '\n'), nil
}

// pace waits until the tenant's rates have made up for the chunks that were sent, and
// charges the lines of the next one. It ends with ctx, and when stop is closed.
func (s *spending) pace(ctx context.Context, stop <-chan struct{}, m any) error {
	chunk, ok := m.(*perceptorv1.ExportChunk)
	if s == nil || !ok {
		return nil
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() {
		select {
		case <-stop:
			end(errDraining)
		case <-ctx.Done():
		}
	}()
	err := s.payDebt(ctx)
	if err == nil && s.units != nil {
		err = s.payUnits(ctx, int(chunk.LineCount))
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// payUnits waits until the rate of the quota has made up for the lines before, and charges those of a chunk.
func (s *spending) payUnits(ctx context.Context, lines int) error {
	stock := &s.use.stocks[s.quota]
	for wait := stock.owed(*s.units); wait > 0; wait = stock.owed(*s.units) {
		if !ctxtime.Sleep(ctx, min(wait, longestPace)) {
			return ctx.Err()
		}
	}
	stock.borrow(*s.units, lines)
	return nil
}

// longestPace bounds the time between two looks at a tenant's rate, which may be raised.
const longestPace = 5 * time.Second
