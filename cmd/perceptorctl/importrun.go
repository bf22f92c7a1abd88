package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
	"github.com/perceptor/perceptor/transfer"
	"github.com/perceptor/perceptor/transfer/upload"
)

// importing is an import that is being sent.
type importing struct {
	*importOptions
	c    *ctl
	cmd  *cobra.Command
	conn *grpc.ClientConn
	api  perceptorv1.ImportServiceClient
	// on is the import as it was when the command began.
	on   *perceptorv1.Import
	plan *transfer.Plan

	rejects rejects
	load    *transfer.Load // of a dry run
	// resendFrom is the first stored chunk that is sent again, so that its rejects are told; 0: none.
	resendFrom int64
	storedSum  uint64 // of the stored chunks that were read

	bytes, lines, chunks, answered atomic.Int64
	added, skipped, updated        atomic.Int64
	paused                         atomic.Pointer[pausing]
	screen                         screen
}

// startImport makes a new import and sends its lines.
func (c *ctl) startImport(cmd *cobra.Command, o *importOptions) error {
	if err := c.checkOutput(); err != nil {
		return err
	}
	options, err := o.encode()
	if err != nil {
		return err
	}
	plan, err := o.planned(cmd)
	if err != nil {
		return err
	}
	return c.withAPI(cmd, func(ctx context.Context, conn *grpc.ClientConn) error {
		i := c.newImporting(cmd, conn, o, plan)
		i.sayTime(ctx)
		if err := i.space(ctx); err != nil {
			return err
		}
		r := &perceptorv1.CreateImportRequest{RequestId: o.requestID, Import: &perceptorv1.Import{
			Description: o.description(), Options: options, OnConflict: o.onConflict, MaxRate: o.rate, DryRun: o.dryRun, Restore: o.Restore,
		}}
		if plan != nil && !o.noSpaceCheck {
			r.Import.ExpectedBytes = plan.DiskBytes()
		}
		err := i.retry(ctx, func(ctx context.Context) (err error) {
			i.on, err = i.api.CreateImport(ctx, r)
			return err
		})
		if err != nil {
			return err
		}
		i.rejects.of = i.on.Id
		i.screen.say("import %d", i.on.Id)
		return i.run(ctx)
	})
}

func (c *ctl) newImporting(cmd *cobra.Command, conn *grpc.ClientConn, o *importOptions, plan *transfer.Plan) *importing {
	i := &importing{
		importOptions: o, c: c, cmd: cmd, conn: conn, api: perceptorv1.NewImportServiceClient(conn), plan: plan,
		rejects: rejects{name: rejectName(o), redact: o.run.redact, max: o.run.maxRejects},
		screen:  screen{w: cmd.ErrOrStderr(), bar: cli.NewProgress(cmd.ErrOrStderr(), "importing")},
	}
	if o.dryRun {
		i.load = transfer.NewLoad(task.At(time.Now()))
	}
	return i
}

// upload returns how the service is called.
func (i *importing) upload() upload.Config {
	patience := max(i.importOptions.run.patience, 1) // 0 would mean the default
	return upload.Config{
		Import: i.on.GetId(), PatientFor: patience, Answered: i.take, Reset: i.conn.ResetConnectBackoff,
		Away: func(err error, pause time.Duration) {
			i.screen.say("%s; trying again in %s", i.away(err), pause.Round(time.Millisecond))
		},
	}
}

// plain returns the text of an error for people.
func (c *ctl) plain(err error) string { return c.explain(err).Error() }

// retry makes a call again while the service is away.
func (i *importing) retry(ctx context.Context, call func(context.Context) error) error {
	return upload.Retry(ctx, i.upload(), func(ctx context.Context) (bool, error) { return false, call(ctx) })
}

// run sends all lines, and ends the import.
func (i *importing) run(ctx context.Context) error {
	defer i.screen.every(i.progress)()
	err := i.send(ctx)
	if failed := i.rejects.close(); failed != nil { // otherwise err is what the service has said
		err = errors.Join(err, failed)
	}
	if err != nil {
		i.screen.clear()
		return i.discarded(ctx, err, i.interrupted(ctx, err))
	}
	var done *perceptorv1.Import
	err = i.retry(ctx, func(ctx context.Context) (err error) {
		done, err = i.api.FinishImport(ctx, &perceptorv1.FinishImportRequest{Id: i.on.Id, ChunkCount: i.chunks.Load(), LineCount: i.lines.Load()})
		return err
	})
	i.screen.clear()
	if err != nil {
		return i.interrupted(ctx, err)
	}
	return i.finished(ctx, done)
}

// send reads the lines, makes chunks and sends them.
func (i *importing) send(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	chunks := make(chan *transfer.Chunk)
	g.Go(func() error {
		defer close(chunks)
		return i.read(ctx, chunks)
	})
	g.Go(func() error { return upload.Run(ctx, i.api, i.upload(), chunks) })
	return g.Wait()
}

// read makes chunks of all lines.
func (i *importing) read(ctx context.Context, to chan<- *transfer.Chunk) (err error) {
	s, err := i.open(ctx, i.cmd, func(n int64) { i.bytes.Add(n) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	b, err := transfer.NewBuilder(i.Chunk)
	if err != nil {
		return err
	}
	if i.load != nil {
		b.Observe = i.load.Add
	}
	var l transfer.Line
	for {
		err := s.Next(ctx, &l)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = b.Add(s, &l)
		}
		if err != nil {
			var f *transfer.Fault
			if !errors.As(err, &f) {
				return err
			}
			if err := i.rejects.fault(f); err != nil {
				return err
			}
		}
		if b.Full() {
			if err := i.emit(ctx, b, to); err != nil {
				return err
			}
		}
	}
	if b.Len() > 0 {
		return i.emit(ctx, b, to)
	}
	return nil
}

// emit sends the current chunk of a builder on, unless it is stored.
func (i *importing) emit(ctx context.Context, b *transfer.Builder, to chan<- *transfer.Chunk) error {
	number := b.Number()
	i.chunks.Store(number)
	stored := isStored(i.on, number)
	if stored && (i.resendFrom == 0 || number < i.resendFrom) {
		lines, sum := b.Skip()
		i.lines.Add(int64(lines))
		i.storedSum += sum
		return i.compareSum(number)
	}
	c, err := b.Take()
	if err != nil {
		return err
	}
	i.lines.Add(int64(c.Lines))
	if stored {
		i.storedSum += c.Sum
		if err := i.compareSum(number); err != nil {
			return err
		}
	}
	select {
	case to <- c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// compareSum refuses an input that is not the one of the stored chunks, when the last one of them was read.
func (i *importing) compareSum(number int64) error {
	ranges := i.on.StoredChunks
	if number != ranges[len(ranges)-1].Last || i.storedSum == i.on.Checksum {
		return nil
	}
	return changed(fmt.Sprintf("the input has changed: the lines of the %d stored chunks had the checksum %016x, and now have %016x", i.on.ChunkCount, i.on.Checksum, i.storedSum))
}

// isStored reports whether a chunk is stored.
func isStored(i *perceptorv1.Import, number int64) bool {
	return slices.ContainsFunc(i.StoredChunks, func(r *perceptorv1.ChunkRange) bool { return r.First <= number && number <= r.Last })
}

// take takes the answer to a chunk. One that the service had stored, and whose answer was lost, counts here, unless it was
// stored when this command began.
func (i *importing) take(c *transfer.Chunk, a *perceptorv1.WriteImportResponse) error {
	counted := isStored(i.on, c.Number)
	if !counted {
		i.added.Add(a.AddedCount)
		i.skipped.Add(a.SkippedCount)
		i.updated.Add(a.UpdatedCount)
	}
	i.answered.Add(int64(c.Lines))
	i.pause(a)
	return i.rejects.answer(c, a, counted)
}

// progress tells how far the import is.
func (i *importing) progress(bar *cli.Progress) {
	done, total := i.stored()
	bar.Show(done, total, i.progressText())
}

// again says how to go on after the command has ended before the import. [resumable] refuses some imports.
func (i *importing) again() string {
	switch {
	case i.dryRun:
		return fmt.Sprintf("start it anew: nothing was stored; perceptorctl import abort %d ends this one", i.on.Id)
	case i.From != "":
		return fmt.Sprintf("start it anew: what is stored is skipped by its keys; perceptorctl import abort %d ends this one, and perceptorctl import rollback %d removes what it has stored, too", i.on.Id, i.on.Id)
	}
	return fmt.Sprintf("perceptorctl import resume %d goes on; perceptorctl import rollback %d removes what was stored", i.on.Id, i.on.Id)
}

// discarded ends an import whose input had nothing to send, such as an empty standard input: there is nothing that
// could go on. It returns what to say instead of an error that tells how the import goes on.
func (i *importing) discarded(ctx context.Context, cause, said error) error {
	var known *cli.Error
	if i.chunks.Load() > 0 || len(i.on.StoredChunks) > 0 || ctx.Err() != nil || !errors.As(said, &known) {
		return said
	}
	if _, err := i.api.AbortImport(ctx, &perceptorv1.AbortImportRequest{Id: i.on.Id}); err != nil {
		return said
	}
	return &cli.Error{Code: known.Code, Err: fmt.Errorf("nothing was imported, and import %d is aborted: %w", i.on.Id, cause), Hint: "start it anew: nothing was stored"}
}

// interrupted says how an import that did not end goes on.
func (i *importing) interrupted(ctx context.Context, err error) error {
	text := fmt.Errorf("import %d is not complete: %w", i.on.Id, err)
	code, hint := cli.Failure, i.again()
	var known *cli.Error
	switch {
	case ctx.Err() != nil:
		text = fmt.Errorf("import %d was interrupted", i.on.Id)
	case errors.Is(err, errTooMany):
		text = fmt.Errorf("import %d has more than %d rejected lines (--max-rejects): %s", i.on.Id, i.importOptions.run.maxRejects, i.rejects.summary("rejected"))
		hint += "; with --max-rejects 0 it stops for none"
	case errors.As(err, &known):
		code = known.Code
		if known.Hint != "" {
			hint = known.Hint
		}
	default:
		var failed *cli.Error
		if errors.As(i.c.explain(err), &failed) {
			text, code = fmt.Errorf("import %d is not complete: %w", i.on.Id, failed.Err), failed.Code
		}
		if reasonOf(err) == task.ReasonImportNotOpen { // another command has ended it
			hint = fmt.Sprintf("perceptorctl import get %d shows what has become of it", i.on.Id)
		}
	}
	return &cli.Error{Code: code, Err: text, Hint: hint}
}

// screen writes to a terminal that has a bar in its last line. It is safe for concurrent use.
type screen struct {
	w   io.Writer
	mu  sync.Mutex
	bar *cli.Progress
}

// say writes a line.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bar.End()
	fmt.Fprintf(s.w, format+"\n", args...)
}

func (s *screen) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bar.End()
}

const redrawEvery = 200 * time.Millisecond

// every redraws the bar until stop is called.
func (s *screen) every(draw func(*cli.Progress)) (stop func()) {
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(redrawEvery)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				s.mu.Lock()
				draw(s.bar)
				s.mu.Unlock()
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(ended)
		<-done
		s.clear()
	})
}
