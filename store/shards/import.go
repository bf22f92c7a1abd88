package shards

import (
	"context"

	"github.com/perceptor/perceptor/task"
)

// GetImport returns an import with its counts, the numbers of its stored chunks, and the progress
// of its rollback. It asks all databases.
func (s *Store) GetImport(ctx context.Context, tenant int32, id int64) (*task.Import, error) {
	i, err := s.Imports.GetImport(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	return i, s.addRollbacks(ctx, tenant, []*task.Import{i})
}

// ListImports returns up to limit imports of a tenant, newest first, that come after the cursor
// (created, id), without the numbers of their chunks.
func (s *Store) ListImports(ctx context.Context, tenant int32, created task.Instant, id int64, limit int) ([]*task.Import, error) {
	list, err := s.Imports.ListImports(ctx, tenant, created, id, limit)
	if err != nil {
		return nil, err
	}
	return list, s.addRollbacks(ctx, tenant, list)
}

// RollbackImport begins to remove the tasks of an import that have not fired, or returns the
// import with the progress.
func (s *Store) RollbackImport(ctx context.Context, tenant int32, id int64, creator string) (*task.Import, error) {
	i, err := s.HeadOfImport(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	// The operation comes first, so that it exists if the import is ROLLING_BACK.
	if !i.Terms.DryRun {
		if _, err := s.Operations.RollbackImport(ctx, tenant, id, creator); err != nil {
			return nil, err
		}
	}
	if i, err = s.BeginRollback(ctx, tenant, id); err != nil {
		return nil, err
	}
	return i, s.addRollbacks(ctx, tenant, []*task.Import{i})
}

// addRollbacks adds the progress of rollbacks. An operation that is not known any more has ended
// long ago. An import of another state may have one, too, if the program that created it was killed before it could
// make the import ROLLING_BACK.
func (s *Store) addRollbacks(ctx context.Context, tenant int32, list []*task.Import) error {
	var ids []int64
	for _, i := range list {
		if !i.Terms.DryRun || i.State == task.ImportRollingBack {
			ids = append(ids, i.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rollbacks, err := s.Rollbacks(ctx, tenant, ids)
	if err != nil {
		return err
	}
	for _, i := range list {
		if o := rollbacks[i.ID]; len(o) > 0 || i.State == task.ImportRollingBack {
			addRollback(i, o)
		}
	}
	return nil
}

// addRollback adds the progress of the operations that roll an import back, one after another. If the last one was
// aborted, tasks are left, as of an import that was aborted itself.
func addRollback(i *task.Import, operations []*task.BulkOperation) {
	i.State, i.RolledBack = task.ImportRollingBack, task.Databases
	var last *task.BulkOperation
	for _, last = range operations {
		sum, _, _ := last.Sum()
		i.Removed += sum.Done
	}
	finishedAt := i.FinishedAt
	if last != nil {
		_, _, finishedAt = last.Sum()
		i.RolledBack = last.DoneParts()
	}
	switch {
	case i.RolledBack == task.Databases:
		i.State, i.FinishedAt = task.ImportRolledBack, finishedAt
	case last.State == task.BulkAborted:
		i.State = task.ImportAborted
	}
}
