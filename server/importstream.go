package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/internal/share"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// # Chunks of imports
//
// A stream has one chunk that arrives, is decompressed and checked, and one that is being stored.
// A chunk is charged for the largest one before its second part is read, and for what it
// takes in memory once it is known. Nothing of a chunk is decoded before its size is known: the
// decompressor stops at the limit, and the lists are counted before they are decoded.

const (
	// chunkBytes is the most bytes of an encoded chunk. Compressed it may have chunkSlack more.
	chunkBytes = 32 << 20
	chunkSlack = 64 << 10
	// lineBytes is what a line of a chunk takes in memory besides its params: as a line and as a
	// row.
	lineBytes = 768
	// mostOfChunk is what a chunk is charged until its lines are known.
	mostOfChunk = 2 * chunkBytes
	// importMemory bounds the chunks in memory. A tenant may have half of it.
	importMemory = 768 << 20
	// importStreams is the most streams at once, and tenantStreams the most of a tenant.
	importStreams, tenantStreams = 32, 8
	// updatesOfChunk is the most lines with keys of a chunk that may update tasks: an update reads the
	// task, from its pack if it is packed.
	updatesOfChunk = 10_000
	// chunkWithin bounds the wait for memory, and storeWithin the storing of a chunk.
	chunkWithin = 30 * time.Second
	storeWithin = 30 * time.Second
	// The parts of a chunk, which holds memory from the first one on, may be waited for for arriveFactor times as long as a
	// request, and for as long as what has arrived takes at leastRate, in bytes per second.
	arriveFactor = 3
	leastRate    = 64 << 10
)

// importWriters has the places of streams and the memory for chunks, by tenant.
type importWriters struct {
	streams, memory *share.Pool[int32]
	unzip           *zstd.Decoder
	rates           importRates
	servers         servers
	adds            *backpressure
	within          time.Duration // the longest wait for the parts of a chunk, without what leastRate gives
}

func newImportWriters(store Imports, b *backpressure, receive time.Duration) (*importWriters, error) {
	unzip, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(chunkBytes), zstd.WithDecoderMaxWindow(8<<20), zstd.WithDecoderConcurrency(0))
	if err != nil {
		return nil, fmt.Errorf("make a decompressor: %w", err)
	}
	return &importWriters{
		streams: share.NewPool[int32](importStreams, tenantStreams), memory: share.NewPool[int32](importMemory, 0), unzip: unzip,
		servers: servers{store: store}, adds: b, within: arriveFactor * receive,
	}, nil
}

type importStream = grpc.BidiStreamingServer[perceptorv1.WriteImportRequest, perceptorv1.WriteImportResponse]

// WriteImport stores the chunks of a stream in their order.
func (s *importService) WriteImport(stream importStream) error {
	tenant := tenantOf(stream.Context()).ID
	if !s.writers.streams.Take(tenant, 1) {
		return errTenantBusy
	}
	defer s.writers.streams.Give(tenant, 1)
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	w := &importWriter{s: s, stream: stream, ctx: ctx, tenant: tenant, chunks: make(chan *heldChunk)}
	received := make(chan error, 1)
	go func() { received <- recovered(w.receive) }()
	defer w.end()
	// If storing fails, the stream ends at once, and with it the receiving. Otherwise it is over when
	// nothing more is received.
	if err := recovered(w.store); err != nil {
		return err
	}
	return <-received
}

// recovered makes an error of a panic: f runs beside the call, where the gate does not see it.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// importWriter is one stream.
type importWriter struct {
	s      *importService
	stream importStream
	ctx    context.Context
	tenant int32
	// id is that of the import, from the first message.
	id     int64
	chunks chan *heldChunk

	mu    sync.Mutex
	rate  *importRate // nil until the first message
	ended bool
}

// end gives up the rate of the import.
func (w *importWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended = true; w.rate != nil {
		w.s.writers.rates.leave(w.rate)
	}
}

// begin takes the rate of the import.
func (w *importWriter) begin(i *task.Import) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.rate = w.s.writers.rates.enter(i)
	}
}

// heldChunk is a chunk that holds a part of the memory.
type heldChunk struct {
	w      *importWriter
	held   int64
	of     *task.Import
	lines  *task.ImportChunk
	checks *chunkReader
}

func (c *heldChunk) release() {
	if c.held > 0 {
		c.w.s.writers.memory.Give(c.w.tenant, c.held)
	}
	c.held = 0
}

// receive reads chunks until the caller has sent the last one.
func (w *importWriter) receive() error {
	defer close(w.chunks)
	for {
		c, err := w.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case w.chunks <- c:
		case <-w.ctx.Done():
			c.release()
			return w.ctx.Err()
		}
	}
}

// next reads a chunk and checks it.
func (w *importWriter) next() (_ *heldChunk, err error) {
	first, err := w.stream.Recv()
	if err != nil {
		return nil, err
	}
	if err := w.open(first); err != nil {
		return nil, err
	}
	c := &heldChunk{w: w, held: mostOfChunk}
	ctx, cancel := context.WithTimeoutCause(w.ctx, chunkWithin, errTenantBusy)
	defer cancel()
	if err := w.s.writers.memory.Wait(ctx, w.tenant, c.held); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	wire, err := w.gather(first)
	if err == nil {
		err = c.check(wire)
	}
	return c, err
}

// open takes the import's id from the first message of the stream.
func (w *importWriter) open(m *perceptorv1.WriteImportRequest) error {
	switch {
	case w.id == 0:
		if faults := present(idFault("id", m.Id)); len(faults) > 0 {
			return invalid(faults)
		}
		w.id = m.Id
		i, err := w.head()
		if err != nil {
			return err
		}
		w.begin(i)
	case m.Id != 0 && m.Id != w.id:
		return invalid([]task.Fault{faultf("id", "%d: the stream belongs to import %d", m.Id, w.id)})
	}
	return nil
}

// head reads the import, which must be open.
func (w *importWriter) head() (*task.Import, error) {
	ctx, cancel := context.WithTimeout(w.stream.Context(), storeWithin)
	defer cancel()
	i, err := w.s.store.HeadOfImport(ctx, w.tenant, w.id)
	if err == nil && i.State != task.ImportOpen {
		err = task.Errorf(task.ReasonImportNotOpen, "import %d is %s", i.ID, i.State)
	}
	return i, err
}

// gather reads the parts of a chunk and decompresses them.
func (w *importWriter) gather(m *perceptorv1.WriteImportRequest) ([]byte, error) {
	zipped := m.Part
	ctx := w.stream.Context()
	arriveFor(ctx, w.s.writers.within)
	defer arriveFor(ctx, 0)
	for !m.Last {
		var err error
		arriveLonger(ctx, time.Duration(len(m.Part))*time.Second/leastRate)
		if m, err = w.stream.Recv(); errors.Is(err, io.EOF) {
			return nil, invalid([]task.Fault{faultf("last", "the stream has ended within a chunk of %d bytes so far", len(zipped))})
		}
		if err == nil {
			err = w.open(m)
		}
		if err != nil {
			return nil, err
		}
		if zipped = append(zipped, m.Part...); len(zipped) > chunkBytes+chunkSlack {
			return nil, chunkTooLarge()
		}
	}
	return w.s.writers.decompress(zipped)
}

// decompress decompresses a chunk. It stops when the chunk becomes too large.
func (w *importWriters) decompress(zipped []byte) ([]byte, error) {
	wire, err := w.unzip.DecodeAll(zipped, nil)
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded), len(wire) > chunkBytes:
		return nil, chunkTooLarge()
	case err != nil:
		return nil, invalid([]task.Fault{faultf("part", "the chunk is not compressed by zstd, or damaged")})
	}
	return wire, nil
}

func chunkTooLarge() error {
	return reasoned(task.ReasonRequestTooLarge, fmt.Sprintf("a chunk has more than %d bytes, or a window of more than %d", chunkBytes, 8<<20))
}

// check decodes a chunk and checks its lines.
func (c *heldChunk) check(wire []byte) (err error) {
	if c.of, err = c.w.head(); err != nil {
		return err
	}
	if err := countChunk(wire); err != nil {
		return invalid([]task.Fault{faultf("part", "the chunk: %v", err)})
	}
	in := &perceptorv1.ImportChunk{}
	if err := proto.Unmarshal(wire, in); err != nil {
		return badWire(in.ProtoReflect().Descriptor(), wire)
	}
	needs := int64(len(wire)) + int64(len(in.Params)+len(in.Keys)) + int64(in.LineCount)*lineBytes
	ctx, cancel := context.WithTimeoutCause(c.w.ctx, chunkWithin, errTenantBusy)
	defer cancel()
	if err := c.resize(ctx, needs); err != nil {
		return err
	}
	c.checks = newChunkReader(in, tenantOf(c.w.stream.Context()), c.w.s.limits, c.of.Terms.Restore)
	if err := c.judge(ctx, in.Templates); err != nil {
		return err
	}
	if n := len(c.checks.hashes); n > updatesOfChunk && c.of.Terms.OnConflict == task.UpdateExisting {
		return invalid([]task.Fault{faultf("key_size", "%d lines have keys; a chunk of an import with UPDATE may have %d", n, updatesOfChunk)})
	}
	return nil
}

// judge reads the templates and lines. ctx bounds the wait for a place only.
func (c *heldChunk) judge(ctx context.Context, templates []*perceptorv1.Task) error {
	leave, err := c.w.s.rules.enter(ctx, c.w.tenant, templates)
	if err != nil {
		return err
	}
	defer leave()
	c.lines, err = c.checks.read(c.w.ctx)
	return err
}

// resize changes what the chunk holds of the memory. A chunk that needs more first gives back what
// it has: chunks that hold some and wait for more could wait for each other.
func (c *heldChunk) resize(ctx context.Context, n int64) error {
	memory := c.w.s.writers.memory
	if n <= c.held {
		memory.Give(c.w.tenant, c.held-n)
		c.held = n
		return nil
	}
	c.release()
	if err := memory.Wait(ctx, c.w.tenant, n); err != nil {
		return err
	}
	c.held = n
	return nil
}

// store stores the chunks in the order in which they have arrived, and answers.
func (w *importWriter) store() error {
	for {
		select {
		case c, ok := <-w.chunks:
			if !ok {
				return nil
			}
			if err := c.store(); err != nil {
				return err
			}
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
	}
}

// store stores a chunk once it may be stored, and sends the answer.
func (c *heldChunk) store() error {
	defer c.release()
	w := c.w
	place, err := w.enter(c)
	if err != nil {
		return err
	}
	if err := admittedStill(w.stream.Context()); err != nil {
		w.failed(c, place, 0)
		return err
	}
	// A chunk that is being stored is stored to its end when the caller leaves.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.stream.Context()), storeWithin)
	defer cancel()
	if err := loadCalendars(ctx, w.s.calendars, c.of.Tenant, c.lines.Specs); err != nil {
		w.failed(c, place, 0)
		return err
	}
	done, err := c.write(ctx)
	if err != nil {
		w.failed(c, place, addedByChunk(c, done, err))
		return err
	}
	place.end(addedByChunk(c, done, nil))
	w.count(c, &done)
	answer := c.checks.answer(&done)
	wait, why := w.pause(ctx, c, &done)
	answer.PauseMs, answer.PauseReason = int32(wait.Milliseconds()), perceptorv1.Import_PauseReason(why)
	return w.stream.Send(answer)
}

// write stores a chunk. Its lines are placed by their schedules then, each of which may take milliseconds; so a chunk with recurrence
// rules needs a place for this, too.
func (c *heldChunk) write(ctx context.Context) (task.ChunkResult, error) {
	leave, err := c.w.s.rules.enter(c.w.ctx, c.w.tenant, c.checks.in.Templates)
	if err != nil {
		return task.ChunkResult{}, err
	}
	defer leave()
	return c.w.s.store.WriteChunk(ctx, c.of, c.lines)
}

// failed ends the reservation of a chunk that may have added that many tasks. Its rate gets everything back, because
// the chunk is sent again: its caller would wait for what the failure has cost.
func (w *importWriter) failed(c *heldChunk, place *reservation, added int) {
	place.end(added)
	if !c.of.Terms.DryRun {
		w.s.quotas.chunkStored(tenantOf(w.stream.Context()), len(c.lines.Lines), 0)
	}
}

// addedByChunk returns how many tasks a chunk has added, or may have added.
func addedByChunk(c *heldChunk, done task.ChunkResult, err error) int {
	switch {
	case c.of.Terms.DryRun, err == nil && done.Replayed:
		return 0
	case err != nil && mayHaveStored(err):
		return len(c.lines.Lines)
	}
	return int(done.Added)
}

// count tells the events of a chunk.
func (w *importWriter) count(c *heldChunk, done *task.ChunkResult) {
	if c.of.Terms.DryRun || done.Replayed {
		return
	}
	tenant := tenantOf(w.stream.Context())
	for t, n := range done.Types {
		w.s.events.added(tenant, t, n)
	}
	w.s.events.refused(tenant.Name, int(done.Rejected))
	w.s.events.imported(tenant.Name, done.ImportSum)
}
