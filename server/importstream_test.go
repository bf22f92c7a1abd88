package server

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// newImport creates an import of acme.
func (b *bundle) newImport(change ...func(*perceptorv1.Import)) *perceptorv1.Import {
	b.t.Helper()
	i := &perceptorv1.Import{Description: "a file"}
	for _, f := range change {
		f(i)
	}
	return must(perceptorv1.NewImportServiceClient(b.conn).CreateImport(as(b.t.Context(), "acme-secret"), &perceptorv1.CreateImportRequest{Import: i}))(b.t)
}

// writes opens a stream.
func (b *bundle) writes(secret string) perceptorv1.ImportService_WriteImportClient {
	b.t.Helper()
	return must(perceptorv1.NewImportServiceClient(b.conn).WriteImport(as(b.t.Context(), secret)))(b.t)
}

// zipped encodes and compresses a chunk.
func zipped(t testing.TB, c *perceptorv1.ImportChunk) []byte {
	t.Helper()
	z := must(zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)))(t)
	defer z.Close()
	return z.EncodeAll(must(proto.Marshal(c))(t), nil)
}

// part is a message with a part of a chunk.
func part(id int64, bytes []byte, last bool) *perceptorv1.WriteImportRequest {
	return &perceptorv1.WriteImportRequest{Id: id, Part: bytes, Last: last}
}

// smallChunk returns a chunk of n lines, of which those that bad has are invalid.
func smallChunk(number int64, n int, bad ...int) *perceptorv1.ImportChunk {
	var tasks []*perceptorv1.Task
	for range n {
		tasks = append(tasks, &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT})
	}
	for _, i := range bad {
		tasks[i].Kind = ""
	}
	c := chunkOf(tasks...)
	c.Number = number
	return c
}

// endsWith receives the end of a stream.
func endsWith(t testing.TB, s perceptorv1.ImportService_WriteImportClient, code codes.Code, text string) {
	t.Helper()
	_, err := s.Recv()
	if code == codes.OK && errors.Is(err, io.EOF) {
		return
	}
	if status.Code(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("the stream ends with %v, want %s with %q", err, code, text)
	}
}

func TestChunksAreStoredInOrderAndAnswered(t *testing.T) {
	b := setup(t)
	i := b.newImport()
	s := b.writes("acme-secret")
	for n := range int64(5) {
		wire := zipped(t, smallChunk(n+1, 4, 1, 3))
		half := len(wire) / 2
		for _, m := range []*perceptorv1.WriteImportRequest{part(i.Id, wire[:half], false), part(0, wire[half:], true)} {
			if err := s.Send(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for n := range int64(5) {
		a := must(s.Recv())(t)
		if a.Number != n+1 || a.AddedCount != 2 || a.RejectedCount != 2 || a.Replayed || a.PauseMs != 0 || len(a.Rejected) != 2 || a.Rejected[1].Line != 3 || a.Rejected[1].Field != "kind" || a.Rejected[1].Message != "is missing" {
			t.Errorf("answer %d: %v", n, a)
		}
	}
	endsWith(t, s, codes.OK, "")
	if len(b.imports.chunks) != 5 || b.imports.chunks[5].Rejected != 2 || len(b.imports.chunks[5].Lines) != 2 {
		t.Errorf("%d chunks are stored", len(b.imports.chunks))
	}
}

// A chunk may be far larger than a request.
func TestAChunkArrivesInPartsBelowASmallLimitOfRequests(t *testing.T) {
	const limit = 1 << 16
	b := setup(t, func(c *Config) { c.MaxRequestBytes = limit })
	i := b.newImport()
	s := b.writes("acme-secret")
	c := smallChunk(1, 200)
	c.Params, c.ParamsSize = nil, nil
	noise := rand.NewChaCha8([32]byte{})
	for range c.LineCount { // what cannot be compressed well
		text := make([]byte, 5000)
		noise.Read(text) //nolint:errcheck // never fails
		params := must(proto.Marshal(&perceptorv1.Params{Entries: map[string]string{"x": base64.StdEncoding.EncodeToString(text)}}))(t)
		c.Params, c.ParamsSize = append(c.Params, params...), append(c.ParamsSize, uint32(len(params)))
	}
	wire := zipped(t, c)
	if len(wire) < 10*limit {
		t.Fatalf("the chunk has %d bytes", len(wire))
	}
	for len(wire) > 0 {
		n := min(len(wire), limit-4096)
		if err := s.Send(part(i.Id, wire[:n], n == len(wire))); err != nil {
			t.Fatal(err)
		}
		wire = wire[n:]
	}
	if a, err := s.Recv(); err != nil || a.Number != 1 {
		t.Errorf("the answer is %v, %v; want that of the first chunk", a, err)
	}
}

func TestAStreamThatCannotBeStoredIsRefused(t *testing.T) {
	b := setup(t)
	i := b.newImport()
	ended := b.newImport()
	must(perceptorv1.NewImportServiceClient(b.conn).AbortImport(as(t.Context(), "acme-secret"), &perceptorv1.AbortImportRequest{Id: ended.Id}))(t)
	good := zipped(t, smallChunk(1, 2))
	z := must(zstd.NewWriter(nil))(t)
	defer z.Close()
	for name, c := range map[string]struct {
		secret string
		sent   []*perceptorv1.WriteImportRequest
		code   codes.Code
		text   string
	}{
		"of nobody":           {"", []*perceptorv1.WriteImportRequest{part(i.Id, good, true)}, codes.Unauthenticated, "valid token"},
		"of another tenant":   {"rival-secret", []*perceptorv1.WriteImportRequest{part(i.Id, good, true)}, codes.NotFound, "no import"},
		"without an id":       {"acme-secret", []*perceptorv1.WriteImportRequest{part(0, good, true)}, codes.InvalidArgument, "id: 0 is not positive"},
		"with two ids":        {"acme-secret", []*perceptorv1.WriteImportRequest{part(i.Id, good[:5], false), part(i.Id+1, good[5:], true)}, codes.InvalidArgument, "the stream belongs to import"},
		"of an ended import":  {"acme-secret", []*perceptorv1.WriteImportRequest{part(ended.Id, good, true)}, codes.FailedPrecondition, "is ABORTED"},
		"cut off":             {"acme-secret", []*perceptorv1.WriteImportRequest{part(i.Id, good[:9], false)}, codes.InvalidArgument, "ended within a chunk"},
		"not compressed":      {"acme-secret", []*perceptorv1.WriteImportRequest{part(i.Id, []byte("hello"), true)}, codes.InvalidArgument, "is not compressed by zstd, or damaged"},
		"damaged":             {"acme-secret", []*perceptorv1.WriteImportRequest{part(i.Id, append(bytes.Clone(good[:len(good)-3]), 1, 2, 3), true)}, codes.InvalidArgument, ""},
		"of another message":  {"acme-secret", []*perceptorv1.WriteImportRequest{part(i.Id, z.EncodeAll([]byte("\xff\xff\xff"), nil), true)}, codes.InvalidArgument, ""},
		"with too many lines": {"acme-secret", []*perceptorv1.WriteImportRequest{part(i.Id, z.EncodeAll(append([]byte{0x2a, 0x80, 0x80, 0x40}, make([]byte, 1<<20)...), nil), true)}, codes.InvalidArgument, "more entries"},
	} {
		s := b.writes(c.secret)
		for _, m := range c.sent {
			if s.Send(m) != nil {
				break // the answer is there already
			}
		}
		_ = s.CloseSend()
		t.Run(name, func(t *testing.T) { endsWith(t, s, c.code, c.text) })
	}
	if len(b.imports.chunks) != 0 {
		t.Errorf("%d chunks are stored", len(b.imports.chunks))
	}
	for deadline := time.Now().Add(time.Minute); b.server.imports.memory.Free() != importMemory || b.server.imports.streams.Free() != importStreams; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes and %d streams are still held", importMemory-b.server.imports.memory.Free(), importStreams-b.server.imports.streams.Free())
		}
	}
}

// TestAChunkThatBecomesTooLargeIsNotDecompressed: some kilobytes that would become gigabytes.
func TestAChunkThatBecomesTooLargeIsNotDecompressed(t *testing.T) {
	b := setup(t)
	i := b.newImport()
	var out bytes.Buffer
	z := must(zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1)))(t) // it does not say how large the content is
	zeros := make([]byte, 1<<20)
	for range 512 {
		if _, err := z.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sized := must(zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)))(t)
	defer sized.Close()
	large := sized.EncodeAll(make([]byte, chunkBytes+1), nil)
	for text, bomb := range map[string][]byte{
		"a chunk has more than": out.Bytes(), "has more than 33554432": large, "is not compressed by zstd, or damaged": append(zipped(t, smallChunk(1, 1)), large[:9]...),
		"more than 33554432 bytes": append(zipped(t, smallChunk(1, 1)), large...),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s := b.writes("acme-secret")
		if err := s.Send(part(i.Id, bomb, true)); err != nil {
			t.Fatal(err)
		}
		endsWith(t, s, codes.InvalidArgument, text)
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 6*chunkBytes {
			t.Errorf("%s: %d MiB were allocated for %d KiB", text, grown>>20, len(bomb)>>10)
		}
	}
}

func TestAStreamOfARevokedTokenEnds(t *testing.T) {
	b := setup(t)
	i := b.newImport()
	s := b.writes("acme-secret")
	send := func(n int64) error { return s.Send(part(i.Id, zipped(t, smallChunk(n, 1)), true)) }
	if err := send(1); err != nil {
		t.Fatal(err)
	}
	must(s.Recv())(t)
	b.auth.revoke("acme-secret")
	deadline := time.Now().Add(time.Minute)
	for n := int64(2); ; n++ {
		_ = send(n) // fails when the stream has ended
		_, err := s.Recv()
		if status.Code(err) == codes.Unauthenticated {
			return
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("after the revocation: %v", err)
		}
	}
}

func TestATenantHasFewStreams(t *testing.T) {
	b := setup(t)
	i := b.newImport()
	for range tenantStreams {
		s := b.writes("acme-secret")
		if err := s.Send(part(i.Id, zipped(t, smallChunk(1, 1)), true)); err != nil {
			t.Fatal(err)
		}
		must(s.Recv())(t)
	}
	endsWith(t, b.writes("acme-secret"), codes.ResourceExhausted, "too many calls of the tenant")
}

// TestTheAnswersPauseForTheRateOfTheImport: and for the servers.
func TestTheAnswersPauseForTheRateOfTheImport(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(*perceptorv1.Import)
		load        task.ServerLoad
		least, most int32
		why         perceptorv1.Import_PauseReason
	}{
		"none":        {func(*perceptorv1.Import) {}, task.ServerLoad{SinceCheckpoint: 1 << 30, MaxLog: 1 << 30}, 0, 0, 0},
		"a rate":      {func(i *perceptorv1.Import) { i.MaxRate = 10 }, task.ServerLoad{}, 15_000, 20_000, perceptorv1.Import_RATE},
		"standbys":    {func(*perceptorv1.Import) {}, task.ServerLoad{Unreplayed: 448 << 20}, 2000, 3000, perceptorv1.Import_STANDBYS},
		"checkpoints": {func(*perceptorv1.Import) {}, task.ServerLoad{SinceCheckpoint: 1<<30 + 192<<20, MaxLog: 1 << 30}, 2000, 3000, perceptorv1.Import_CHECKPOINTS},
		"archive":     {func(*perceptorv1.Import) {}, task.ServerLoad{Unarchived: 100 << 30, Retained: 1 << 30}, 9000, 10_000, perceptorv1.Import_ARCHIVE},
	} {
		b := setup(t)
		b.imports.load = c.load
		i := b.newImport(c.change)
		s := b.writes("acme-secret")
		if err := s.Send(part(i.Id, zipped(t, smallChunk(100*i.Id, 200)), true)); err != nil {
			t.Fatal(err)
		}
		a := must(s.Recv())(t)
		if a.PauseMs < c.least || a.PauseMs > c.most || a.PauseReason != c.why {
			t.Errorf("%s: the answer pauses for %d ms (%s), want %d to %d (%s)", name, a.PauseMs, a.PauseReason, c.least, c.most, c.why)
		}
	}
}

// TestNothingIsStoredWhileAServerHasLittleSpace: and the state of the import says so.
func TestNothingIsStoredWhileAServerHasLittleSpace(t *testing.T) {
	b := setup(t)
	i := b.newImport()
	b.imports.space = task.ServerSpace{Databases: []int{0, 1}, Total: 1000 << 20, Free: 49 << 20}
	s := b.writes("acme-secret")
	if err := s.Send(part(i.Id, zipped(t, smallChunk(1, 2)), true)); err != nil {
		t.Fatal(err)
	}
	_, err := s.Recv()
	var reason string
	var retry time.Duration
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			reason = d.Reason
		case *errdetails.RetryInfo:
			retry = d.RetryDelay.AsDuration()
		}
	}
	if status.Code(err) != codes.ResourceExhausted || reason != string(task.ReasonStorageLow) || retry != lowRetry || !strings.Contains(err.Error(), "51.4 MB of 1.0 GB") {
		t.Errorf("the chunk: %v, %s, again after %s", err, reason, retry)
	}
	if len(b.imports.chunks) != 0 {
		t.Error("the chunk was stored")
	}
	read := must(perceptorv1.NewImportServiceClient(b.conn).GetImport(as(t.Context(), "acme-secret"), &perceptorv1.GetImportRequest{Id: i.Id}))(t)
	if read.PauseReason != perceptorv1.Import_STORAGE {
		t.Errorf("the import waits for %s", read.PauseReason)
	}
}

// TestWhatIsKnownOfAServerIsReadAgain: so an import goes on when there is room, and what cannot be read for a while
// changes nothing.
func TestWhatIsKnownOfAServerIsReadAgain(t *testing.T) {
	f := &fakeImports{space: task.ServerSpace{Databases: []int{0}, Total: 100, Free: 1}}
	s := &servers{store: f}
	later := func() { s.known[0].spaceAt = s.known[0].spaceAt.Add(-spaceEvery) }
	if s.low(t.Context(), nil) == nil {
		t.Error("a server with 1 of 100 bytes is not low")
	}
	f.space.Free = 50
	if s.low(t.Context(), []int{3}) == nil {
		t.Error("it was read again at once")
	}
	f.spaceErr = errors.New("away")
	if later(); s.low(t.Context(), nil) == nil {
		t.Error("what was known is forgotten because the server does not answer")
	}
	f.spaceErr = nil
	if later(); s.low(t.Context(), nil) != nil {
		t.Error("a server with 50 of 100 bytes is low")
	}
}

func TestAnImportForWhichAServerHasNoRoomIsRefused(t *testing.T) {
	b := setup(t)
	all := make([]int, task.Databases)
	for d := range all {
		all[d] = d
	}
	b.imports.space = task.ServerSpace{Databases: all, Total: 100 << 30, Free: 20 << 30, MaxLog: 1 << 30}
	api, ctx := perceptorv1.NewImportServiceClient(b.conn), as(t.Context(), "acme-secret")
	// The floor is 5 GiB. 13 GiB and 1 GiB of log, and a tenth, are 15.4 GiB.
	for bytes, fits := range map[int64]bool{0: true, 12 << 30: true, 13 << 30: false} {
		plan := must(api.PlanImport(ctx, &perceptorv1.PlanImportRequest{ExpectedBytes: bytes}))(t)
		if len(plan.Servers) != 1 || plan.Servers[0].Fits != fits || plan.Servers[0].ReservedBytes != 5<<30 || len(plan.Servers[0].Databases) != task.Databases {
			t.Errorf("%d bytes: the plan is %v", bytes, plan)
		}
		_, err := api.CreateImport(ctx, &perceptorv1.CreateImportRequest{Import: &perceptorv1.Import{ExpectedBytes: bytes}})
		if want := map[bool]codes.Code{true: codes.OK, false: codes.FailedPrecondition}[fits]; status.Code(err) != want {
			t.Errorf("%d bytes: %v", bytes, err)
		}
		if _, err := api.CreateImport(ctx, &perceptorv1.CreateImportRequest{Import: &perceptorv1.Import{ExpectedBytes: bytes, DryRun: true}}); err != nil {
			t.Errorf("%d bytes, a dry run: %v", bytes, err)
		}
	}
	_, err := api.PlanImport(ctx, &perceptorv1.PlanImportRequest{ExpectedBytes: -1})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a negative size: %v", err)
	}
}

// TestAnErrorOfTheStoreEndsTheStream: so that the caller sends the chunk again.
func TestAnErrorOfTheStoreEndsTheStream(t *testing.T) {
	b := setup(t)
	i := b.newImport()
	b.imports.err = task.Errorf(task.ReasonDatabaseUnavailable, "the task's database did not answer; try again")
	s := b.writes("acme-secret")
	if err := s.Send(part(i.Id, zipped(t, smallChunk(1, 1)), true)); err != nil {
		t.Fatal(err)
	}
	endsWith(t, s, codes.Unavailable, "did not answer")
}

// TestAChunkThatFailsCostsNoRate: it is sent again, and would wait for what the first try has cost.
func TestAChunkThatFailsCostsNoRate(t *testing.T) {
	b := setupWith(t, func(d *Deps) { d.Quotas = &fakeQuotas{living: 1} }, func(c *Config) { c.Quotas = task.Quotas{task.QuotaAdds: 10} })
	i := b.newImport()
	for _, c := range []struct {
		err  error
		code codes.Code
	}{{task.Errorf(task.ReasonDatabaseUnavailable, "the task's database did not answer; try again"), codes.Unavailable}, {nil, codes.OK}} {
		b.imports.err = c.err
		s := b.writes("acme-secret")
		if err := s.Send(part(i.Id, zipped(t, smallChunk(1, 500)), true)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != c.code {
			t.Fatalf("the chunk ends with %v, want %s", err, c.code)
		}
	}
}

func TestAnImportWithImpossibleTermsIsRefused(t *testing.T) {
	b := setup(t)
	for field, change := range map[string]func(*perceptorv1.Import){
		"import.description": func(i *perceptorv1.Import) { i.Description = strings.Repeat("x", 1001) },
		"import.options":     func(i *perceptorv1.Import) { i.Options = strings.Repeat("x", maxImportOptions+1) },
		"import.on_conflict": func(i *perceptorv1.Import) { i.OnConflict = 9 },
		"import.max_rate":    func(i *perceptorv1.Import) { i.MaxRate = -1 },
		"import.restore":     func(i *perceptorv1.Import) { i.Restore, i.OnConflict = true, perceptorv1.Import_UPDATE },
	} {
		i := &perceptorv1.Import{}
		change(i)
		a := b.overGRPC("acme-secret", perceptorv1.ImportService_CreateImport_FullMethodName, &perceptorv1.CreateImportRequest{Import: i}, &perceptorv1.Import{})
		if a.code != codes.InvalidArgument || a.faults[field] == "" {
			t.Errorf("%s: %s %v", field, a.code, a.faults)
		}
	}
}

func TestImportsOfOthersCannotBeSeenOrChanged(t *testing.T) {
	b := setup(t)
	i := b.newImport()
	api := perceptorv1.NewImportServiceClient(b.conn)
	ctx := as(t.Context(), "rival-secret")
	_, get := api.GetImport(ctx, &perceptorv1.GetImportRequest{Id: i.Id})
	_, finish := api.FinishImport(ctx, &perceptorv1.FinishImportRequest{Id: i.Id})
	_, abort := api.AbortImport(ctx, &perceptorv1.AbortImportRequest{Id: i.Id})
	_, rollback := api.RollbackImport(ctx, &perceptorv1.RollbackImportRequest{Id: i.Id})
	for name, err := range map[string]error{"get": get, "finish": finish, "abort": abort, "rollback": rollback} {
		if status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list := must(api.ListImports(ctx, &perceptorv1.ListImportsRequest{}))(t); len(list.Imports) != 0 {
		t.Errorf("the list has %v", list.Imports)
	}
	mine := must(api.GetImport(as(t.Context(), "acme-secret"), &perceptorv1.GetImportRequest{Id: i.Id}))(t)
	if mine.State != perceptorv1.Import_OPEN || mine.OnConflict != perceptorv1.Import_SKIP || len(mine.StoredChunks) != 1 || mine.StoredChunks[0].Last != 2 {
		t.Errorf("the import is %v", mine)
	}
}

// TestAChunkIsChargedToTheRatesOfItsTenant: one chunk may use a rate for many seconds, and the next
// one waits for as long.
func TestAChunkIsChargedToTheRatesOfItsTenant(t *testing.T) {
	q := quotasOf(&fakeQuotas{living: 1}, slog.New(slog.DiscardHandler), &Events{})
	tenant := acme
	tenant.Rates.AddRate, tenant.Rates.MaxBacklog = 100, 20_000
	place, err := q.admitChunk(t.Context(), &tenant, 10_000, false)
	if err != nil {
		t.Fatal(err)
	}
	place.end(9000)
	if wait := q.chunkStored(&tenant, 1000, 0); wait < 80*time.Second || wait > 100*time.Second {
		t.Errorf("after 9,000 tasks at 100 a second the caller waits for %s", wait)
	}
	_, err = q.admitChunk(t.Context(), &tenant, 10, false)
	wantQuota(t, err, task.QuotaAdds)
	tenant.Rates.AddRate = 0
	_, err = q.admitChunk(t.Context(), &tenant, 11_001, false)
	wantQuota(t, err, task.QuotaBacklog)
}

// A chunk holds memory from its first part on, of which few tenants could hold all.
func TestAChunkThatTricklesEndsItsStream(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.ReceiveTimeout = 100 * time.Millisecond })
	s, id := b.writes("acme-secret"), b.newImport().Id
	began, ended := time.Now(), make(chan error, 1)
	go func() {
		_, err := s.Recv()
		ended <- err
	}()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case err := <-ended:
			tick.Stop()
			if a := b.answerOf(status.Convert(err)); a.reason != "REQUEST_TOO_SLOW" {
				t.Errorf("the stream ends with %s %s", a.code, a.reason)
			}
			if free := b.server.imports.memory.Free(); free != importMemory {
				t.Errorf("%d of %d bytes of memory are free", free, importMemory)
			}
			return
		case <-tick.C:
			if time.Since(began) > time.Minute {
				t.Fatal("the stream goes on")
			}
			_ = s.Send(part(id, []byte{1}, false)) // until the stream has ended
		}
	}
}

// Time in which the parts arrive at a fair rate does not count.
func TestALargeChunkMayTakeLongerToArrive(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.ReceiveTimeout = time.Second })
	s, id := b.writes("acme-secret"), b.newImport().Id
	c := smallChunk(1, 2)
	c.Params = make([]byte, 2<<20)
	for i := range c.Params {
		c.Params[i] = byte(rand.N(256)) // which is not compressed
	}
	c.ParamsSize = []uint32{1 << 20, 1 << 20}
	wire := zipped(t, c)
	for len(wire) > 0 {
		n := min(len(wire), 500<<10)
		if err := s.Send(part(id, wire[:n], n == len(wire))); err != nil {
			t.Fatal(err)
		}
		wire = wire[n:]
		time.Sleep(time.Second) // each part gives 7.8 s; in all more than 3 s
	}
	endsWith(t, s, codes.InvalidArgument, "params") // it has arrived: what is in it is random
}
