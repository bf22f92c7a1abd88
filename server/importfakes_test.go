package server

import (
	"context"
	"sync"

	"github.com/perceptor/perceptor/task"
)

// fakeImports keeps imports of the tenant acme in memory and follows the contract of Imports.
type fakeImports struct {
	mu      sync.Mutex
	imports map[int64]*task.Import
	chunks  map[int64]*task.ImportChunk // by number
	err     error                       // of WriteChunk
	load    task.ServerLoad
	space   task.ServerSpace
	// spaceErr is the error of ServerSpace.
	spaceErr error
	done     func(c *task.ImportChunk) task.ChunkResult
}

func (f *fakeImports) CreateImport(ctx context.Context, tenant int32, terms task.ImportTerms, _ string, _ []byte) (*task.Import, error) {
	f.mu.Lock()
	if f.imports == nil {
		f.imports = map[int64]*task.Import{}
	}
	id := int64(len(f.imports) + 7)
	f.imports[id] = &task.Import{Tenant: tenant, ID: id, Terms: terms, State: task.ImportOpen, CreatedAt: fakeNow, FinishedAt: task.Never, Stored: []task.ChunkRange{{First: 1, Last: 2}}}
	f.mu.Unlock()
	return f.GetImport(ctx, tenant, id)
}

func (f *fakeImports) GetImport(_ context.Context, tenant int32, id int64) (*task.Import, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.imports[id]
	if i == nil || i.Tenant != tenant {
		return nil, task.Errorf(task.ReasonImportNotFound, "there is no import %d", id)
	}
	copied := *i
	return &copied, nil
}

func (f *fakeImports) HeadOfImport(ctx context.Context, tenant int32, id int64) (*task.Import, error) {
	return f.GetImport(ctx, tenant, id)
}

func (f *fakeImports) ListImports(_ context.Context, tenant int32, _ task.Instant, _ int64, _ int) (list []*task.Import, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range f.imports {
		if i.Tenant == tenant {
			list = append(list, i)
		}
	}
	return list, nil
}

func (f *fakeImports) end(ctx context.Context, tenant int32, id int64, state task.ImportState) (*task.Import, error) {
	if _, err := f.GetImport(ctx, tenant, id); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.imports[id].State = state
	f.mu.Unlock()
	return f.GetImport(ctx, tenant, id)
}

func (f *fakeImports) FinishImport(ctx context.Context, tenant int32, id, _, _ int64) (*task.Import, error) {
	return f.end(ctx, tenant, id, task.ImportFinished)
}

func (f *fakeImports) AbortImport(ctx context.Context, tenant int32, id int64) (*task.Import, error) {
	return f.end(ctx, tenant, id, task.ImportAborted)
}

func (f *fakeImports) RollbackImport(ctx context.Context, tenant int32, id int64, _ string) (*task.Import, error) {
	return f.end(ctx, tenant, id, task.ImportRollingBack)
}

func (f *fakeImports) WriteChunk(_ context.Context, _ *task.Import, c *task.ImportChunk) (task.ChunkResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return task.ChunkResult{}, f.err
	}
	if f.chunks == nil {
		f.chunks = map[int64]*task.ImportChunk{}
	}
	replayed := f.chunks[c.Number] != nil
	f.chunks[c.Number] = c
	if f.done != nil {
		return f.done(c), nil
	}
	n := int64(len(c.Lines))
	return task.ChunkResult{
		ImportSum: task.ImportSum{Lines: n + int64(c.Rejected), Added: n, Rejected: int64(c.Rejected)}, Replayed: replayed,
		Types: map[task.Type]int{task.OneShot: int(n)},
	}, nil
}

func (f *fakeImports) ServerOf(int) int { return 0 }

func (f *fakeImports) ServerLoad(context.Context, int) (task.ServerLoad, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.load, nil
}

func (f *fakeImports) ServerSpace(context.Context, int) (task.ServerSpace, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.space, f.spaceErr
}
