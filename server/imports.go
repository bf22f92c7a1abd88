package server

import (
	"context"
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Imports stores imports. All methods may be called concurrently. They return [task.NotFound] if
// the tenant has no import with the given id.
type Imports interface {
	// CreateImport stores an import, only once for a requestID. [task.AlreadyExists]: the
	// requestID was used with another hash.
	CreateImport(ctx context.Context, tenant int32, terms task.ImportTerms, requestID string, hash []byte) (*task.Import, error)
	GetImport(ctx context.Context, tenant int32, id int64) (*task.Import, error)
	// HeadOfImport returns the terms and the state of an import. It is cheaper.
	HeadOfImport(ctx context.Context, tenant int32, id int64) (*task.Import, error)
	// ListImports returns imports created before the given one, newest first.
	ListImports(ctx context.Context, tenant int32, created task.Instant, id int64, limit int) ([]*task.Import, error)
	// FinishImport ends an import. [task.FailedPrecondition]: it does not have all chunks, or
	// has ended in another way.
	FinishImport(ctx context.Context, tenant int32, id, chunks, lines int64) (*task.Import, error)
	// AbortImport ends an open import.
	AbortImport(ctx context.Context, tenant int32, id int64) (*task.Import, error)
	// RollbackImport begins to remove the tasks of an import.
	RollbackImport(ctx context.Context, tenant int32, id int64, creator string) (*task.Import, error)
	// WriteChunk stores a chunk of an open import, once. After an error it may be repeated.
	WriteChunk(ctx context.Context, i *task.Import, c *task.ImportChunk) (task.ChunkResult, error)
	// ServerOf returns the lowest database on the PostgreSQL server of a database, which stands for that
	// server. It must not block.
	ServerOf(database int) int
	// ServerLoad returns what the server of a database has to do with its log, and ServerSpace what
	// is known of its disk.
	ServerLoad(ctx context.Context, database int) (task.ServerLoad, error)
	ServerSpace(ctx context.Context, database int) (task.ServerSpace, error)
}

const (
	// maxImportText and maxImportOptions bound what the creator of an import may store with it.
	maxImportText    = 1000
	maxImportOptions = 16 << 10
	// maxExpectedBytes bounds what an import may say that it will store.
	maxExpectedBytes = 1 << 50
)

// importService implements the API's ImportService.
type importService struct {
	perceptorv1.UnimplementedImportServiceServer
	store     Imports
	calendars Calendars
	quotas    *quotas
	limits    task.Limits
	events    *Events
	writers   *importWriters
	rules     *rulePlaces
}

// registerImports registers the service of imports, if there is a store for them.
func (s *Server) registerImports(g *gate, d *Deps, adds *backpressure, rules *rulePlaces) (err error) {
	if d.Imports == nil {
		return nil
	}
	if s.imports, err = newImportWriters(d.Imports, adds, s.config.ReceiveTimeout); err != nil {
		return err
	}
	return g.register(s.grpc, &perceptorv1.ImportService_ServiceDesc, &importService{
		store: d.Imports, calendars: d.Calendars, quotas: g.quotas, limits: s.config.Limits, events: g.events, writers: s.imports, rules: rules,
	})
}

func (s *importService) CreateImport(ctx context.Context, r *perceptorv1.CreateImportRequest) (*perceptorv1.Import, error) {
	if r.Import == nil {
		return nil, invalid([]task.Fault{faultf("import", "is missing")})
	}
	check := &reader{}
	terms := check.importTerms(r.Import)
	faults := under("import", check.faults)
	if f := requestIDFault(r.RequestId); f != nil {
		faults = append(faults, *f)
	}
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(importReply(&task.Import{Terms: terms, FinishedAt: task.Never, CreatedAt: task.Never}))
	if err != nil {
		return nil, fmt.Errorf("hash the request: %w", err)
	}
	if !terms.DryRun {
		if err := s.writers.servers.fits(ctx, terms.ExpectedBytes); err != nil {
			return nil, err
		}
	}
	hash := sha256.Sum256(wire)
	terms.Creator = identityOf(ctx).TokenID
	i, err := s.store.CreateImport(ctx, tenantOf(ctx).ID, terms, r.RequestId, hash[:])
	return importReply(i), err
}

// importTerms reads the terms of an import.
func (r *reader) importTerms(i *perceptorv1.Import) task.ImportTerms {
	for _, text := range []struct {
		field, value string
		most         int
	}{{"description", i.Description, maxImportText}, {"options", i.Options, maxImportOptions}} {
		if n := len(text.value); n > text.most {
			r.fault(text.field, "has %d bytes; at most %d are allowed", n, text.most)
		}
	}
	if _, known := perceptorv1.Import_OnConflict_name[int32(i.OnConflict)]; !known {
		r.fault("on_conflict", "%d is not one of SKIP, UPDATE, FAIL", int32(i.OnConflict))
	}
	if i.MaxRate < 0 || i.MaxRate > task.MaxImportRate {
		r.fault("max_rate", "%d is not between 0 and %d", i.MaxRate, task.MaxImportRate)
	}
	if i.ExpectedBytes < 0 || i.ExpectedBytes > maxExpectedBytes {
		r.fault("expected_bytes", "%d is not between 0 and %d", i.ExpectedBytes, int64(maxExpectedBytes))
	}
	if i.Restore && i.OnConflict == perceptorv1.Import_UPDATE {
		r.fault("restore", "a task that exists cannot be given the state of another one: use SKIP or FAIL, not UPDATE")
	}
	return task.ImportTerms{
		Description: i.Description, Options: i.Options, OnConflict: max(task.OnConflict(i.OnConflict), task.SkipExisting),
		MaxRate: i.MaxRate, DryRun: i.DryRun, Restore: i.Restore, ExpectedBytes: i.ExpectedBytes,
	}
}

func (s *importService) PlanImport(ctx context.Context, r *perceptorv1.PlanImportRequest) (*perceptorv1.ImportPlan, error) {
	if r.ExpectedBytes < 0 || r.ExpectedBytes > maxExpectedBytes {
		return nil, invalid([]task.Fault{faultf("expected_bytes", "%d is not between 0 and %d", r.ExpectedBytes, int64(maxExpectedBytes))})
	}
	return s.writers.servers.plan(ctx, r.ExpectedBytes), nil
}

func (s *importService) GetImport(ctx context.Context, r *perceptorv1.GetImportRequest) (*perceptorv1.Import, error) {
	i, err := oneImport(ctx, r.Id, s.store.GetImport)
	if err == nil && i.State == perceptorv1.Import_OPEN && !i.DryRun {
		i.PauseReason = perceptorv1.Import_PauseReason(s.writers.servers.waitsFor(ctx))
	}
	return i, err
}

func (s *importService) AbortImport(ctx context.Context, r *perceptorv1.AbortImportRequest) (*perceptorv1.Import, error) {
	return oneImport(ctx, r.Id, s.store.AbortImport)
}

func (s *importService) RollbackImport(ctx context.Context, r *perceptorv1.RollbackImportRequest) (*perceptorv1.Import, error) {
	return oneImport(ctx, r.Id, func(ctx context.Context, tenant int32, id int64) (*task.Import, error) {
		return s.store.RollbackImport(ctx, tenant, id, identityOf(ctx).TokenID)
	})
}

func (s *importService) FinishImport(ctx context.Context, r *perceptorv1.FinishImportRequest) (*perceptorv1.Import, error) {
	var faults []task.Fault
	if r.ChunkCount < 0 || r.ChunkCount > task.MaxChunkNumber {
		faults = append(faults, faultf("chunk_count", "%d is not between 0 and %d", r.ChunkCount, int64(task.MaxChunkNumber)))
	}
	if r.LineCount < 0 {
		faults = append(faults, faultf("line_count", "%d is negative", r.LineCount))
	}
	if f := idFault("id", r.Id); f != nil {
		faults = append(faults, *f)
	}
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	i, err := s.store.FinishImport(ctx, tenantOf(ctx).ID, r.Id, r.ChunkCount, r.LineCount)
	return importReply(i), err
}

func oneImport(ctx context.Context, id int64, f func(context.Context, int32, int64) (*task.Import, error)) (*perceptorv1.Import, error) {
	if faults := present(idFault("id", id)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	i, err := f(ctx, tenantOf(ctx).ID, id)
	return importReply(i), err
}

func (s *importService) ListImports(ctx context.Context, r *perceptorv1.ListImportsRequest) (*perceptorv1.ListImportsResponse, error) {
	tenant := tenantOf(ctx).ID
	page, err := newestFirstOf("import", tenant, r.PageSize, r.PageToken)
	if err != nil {
		return nil, err
	}
	list, err := s.store.ListImports(ctx, tenant, page.created, page.id, page.limit)
	if err != nil {
		return nil, err
	}
	reply := &perceptorv1.ListImportsResponse{}
	for _, i := range list {
		reply.Imports = append(reply.Imports, importReply(i))
	}
	if len(list) > 0 {
		last := list[len(list)-1]
		reply.NextPageToken = page.next(len(list), last.CreatedAt, last.ID)
	}
	return reply, nil
}

// importReply converts an import to its form in the API; nil for nil.
func importReply(i *task.Import) *perceptorv1.Import {
	if i == nil {
		return nil
	}
	out := &perceptorv1.Import{
		Id: i.ID, Description: i.Terms.Description, Options: i.Terms.Options, OnConflict: perceptorv1.Import_OnConflict(i.Terms.OnConflict),
		MaxRate: i.Terms.MaxRate, DryRun: i.Terms.DryRun, Restore: i.Terms.Restore, State: perceptorv1.Import_State(i.State),
		LineCount: i.Lines, AddedCount: i.Added, SkippedCount: i.Skipped, UpdatedCount: i.Updated, RejectedCount: i.Rejected,
		ChunkCount: i.Chunks, Checksum: i.Checksum, RemovedCount: i.Removed, RolledBackDatabases: int32(i.RolledBack),
		CreateTime: timestamp(i.CreatedAt), FinishTime: timestamp(i.FinishedAt), Creator: i.Terms.Creator, ExpectedBytes: i.Terms.ExpectedBytes,
	}
	for _, r := range i.Stored {
		out.StoredChunks = append(out.StoredChunks, &perceptorv1.ChunkRange{First: r.First, Last: r.Last})
	}
	return out
}
