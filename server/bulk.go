package server

import (
	"context"
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Bulk stores operations on many tasks. All methods may be called concurrently.
// They return [task.NotFound] if the tenant has no operation with the given id.
type Bulk interface {
	// CreateBulk stores an operation, only once for a requestID.
	// [task.AlreadyExists]: the requestID was used with another hash.
	CreateBulk(ctx context.Context, tenant int32, action task.BulkAction, terms task.BulkTerms, requestID string, hash []byte) (*task.BulkOperation, error)
	GetBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error)
	// ListBulk returns operations created before the given one, newest first.
	ListBulk(ctx context.Context, tenant int32, created task.Instant, id int64, limit int) ([]*task.BulkOperation, error)
	// AbortBulk, PauseBulk and ResumeBulk have no effect on operations that
	// have ended.
	AbortBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error)
	PauseBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error)
	ResumeBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error)
	// RecomputeCalendar creates the operation that moves tasks to the instants that a change of
	// a calendar opens. The change is stored after that.
	RecomputeCalendar(ctx context.Context, tenant int32, name string, changed []task.Range, creator string) (storeBefore task.Instant, err error)
}

// bulkService implements the API's BulkService.
type bulkService struct {
	perceptorv1.UnimplementedBulkServiceServer
	store Bulk
}

func (s *bulkService) CreateBulkOperation(ctx context.Context, r *perceptorv1.CreateBulkOperationRequest) (*perceptorv1.BulkOperation, error) {
	if r.Operation == nil {
		return nil, invalid([]task.Fault{faultf("operation", "is missing")})
	}
	check := &reader{}
	terms := check.bulkTerms(r.Operation)
	faults := under("operation", check.faults)
	if f := requestIDFault(r.RequestId); f != nil {
		faults = append(faults, *f)
	}
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	asked := &perceptorv1.BulkOperation{
		Action: r.Operation.Action, Filter: r.Operation.Filter, DeadFilter: r.Operation.DeadFilter, DryRun: r.Operation.DryRun,
		MaxRate: r.Operation.MaxRate, Shift: r.Operation.Shift, NextTime: r.Operation.NextTime,
		BackfillFrom: r.Operation.BackfillFrom, BackfillUntil: r.Operation.BackfillUntil, OneAtATime: r.Operation.OneAtATime,
		DryRunId: r.Operation.DryRunId,
	}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(asked)
	if err != nil {
		return nil, fmt.Errorf("hash the request: %w", err)
	}
	hash := sha256.Sum256(wire)
	if err := s.counted(ctx, asked, &terms); err != nil {
		return nil, err
	}
	terms.Creator = identityOf(ctx).TokenID
	o, err := s.store.CreateBulk(ctx, tenantOf(ctx).ID, task.BulkAction(asked.Action), terms, r.RequestId, hash[:])
	return bulkReply(o, true), err
}

// counted sets what the dry run of an operation has counted.
func (s *bulkService) counted(ctx context.Context, o *perceptorv1.BulkOperation, terms *task.BulkTerms) error {
	if o.DryRunId == 0 {
		return nil
	}
	dry, err := s.store.GetBulk(ctx, tenantOf(ctx).ID, o.DryRunId)
	switch {
	case err != nil:
		return err
	case o.DryRun, !dry.Terms.DryRun, dry.Action != task.BulkAction(o.Action), dry.State != task.BulkDone:
		return invalid([]task.Fault{faultf("operation.dry_run_id", "operation %d is not a dry run of %s that has ended", o.DryRunId, o.Action)})
	}
	terms.CountedBy, terms.Counted = o.DryRunId, make([]int64, len(dry.Parts))
	for i := range dry.Parts {
		terms.Counted[dry.Parts[i].Database] = dry.Parts[i].Matched
	}
	return nil
}

// bulkTerms reads the terms of an operation.
func (r *reader) bulkTerms(o *perceptorv1.BulkOperation) task.BulkTerms {
	action := task.BulkAction(o.Action)
	if _, known := perceptorv1.BulkOperation_Action_name[int32(o.Action)]; !known || o.Action == 0 || action == task.BulkRollbackImport || action == task.BulkRecompute {
		r.fault("action", "%s is not one of PAUSE, RESUME, CANCEL, RESCHEDULE, REPLAY, PURGE_DEAD, PURGE_FINISHED, BACKFILL", o.Action)
	}
	if o.MaxRate < 0 || o.MaxRate > task.MaxBulkRate {
		r.fault("max_rate", "%d is not between 0 and %d", o.MaxRate, task.MaxBulkRate)
	}
	if o.DryRunId < 0 {
		r.fault("dry_run_id", "%d is negative", o.DryRunId)
	}
	terms := task.BulkTerms{DryRun: o.DryRun, MaxRate: o.MaxRate}
	inner := &reader{}
	if action.OfDead() {
		if o.Filter != nil {
			r.fault("filter", "%s acts on dead runs; use dead_filter", action)
		}
		terms.Dead = inner.deadFilter(o.DeadFilter)
		r.faults = append(r.faults, under("dead_filter", inner.faults)...)
	} else {
		if o.DeadFilter != nil {
			r.fault("dead_filter", "%s acts on tasks; use filter", action)
		}
		terms.Filter = inner.filter(o.Filter)
		terms.Filter.Task, terms.Filter.Backfill = task.ID(o.Filter.GetTaskId()), o.Filter.GetBackfillId()
		for field, id := range map[string]int64{"task_id": o.Filter.GetTaskId(), "backfill_id": o.Filter.GetBackfillId()} {
			if id < 0 {
				inner.fault(field, "%d is negative", id)
			}
		}
		terms.Filter.AddedFrom, terms.Filter.AddedUntil = inner.between("added_from", o.Filter.GetAddedFrom(), "added_until", o.Filter.GetAddedUntil())
		r.faults = append(r.faults, under("filter", inner.faults)...)
		r.bulkState(action, terms.Filter)
	}
	r.bulkMove(o, action, &terms)
	r.bulkRange(o, action, &terms)
	return terms
}

// bulkState checks that the filter can select tasks that the action applies to.
func (r *reader) bulkState(action task.BulkAction, f task.Filter) {
	finished := action == task.BulkPurgeFinished
	switch {
	case f.State != 0 && f.State.Final() != finished:
		r.fault("filter.state", "%s: the action applies to %s tasks", f.State, map[bool]string{true: "finished", false: "living"}[finished])
	case finished && f.HasDue():
		r.fault("filter.due_from", "finished tasks have no due time")
	case action == task.BulkResume && f.HasDue():
		r.fault("filter.due_from", "paused tasks have no due time; use added_from and added_until")
	case action == task.BulkReschedule && f.State == task.Running:
		r.fault("filter.state", "RUNNING: only the next run of a SCHEDULED task can be moved")
	}
}

// bulkMove reads the target of RESCHEDULE.
func (r *reader) bulkMove(o *perceptorv1.BulkOperation, action task.BulkAction, terms *task.BulkTerms) {
	moves := action == task.BulkReschedule
	switch {
	case !moves && o.Shift != nil:
		r.fault("shift", "only RESCHEDULE has it")
	case !moves && o.NextTime != nil:
		r.fault("next_time", "only RESCHEDULE has it")
	case moves && (o.Shift == nil) == (o.NextTime == nil):
		r.fault("shift", "RESCHEDULE needs either shift or next_time")
	case o.Shift != nil:
		terms.Shift = r.duration("shift", o.Shift, -task.MaxInterval, task.MaxInterval)
	case o.NextTime != nil:
		terms.NextAt = max(1, r.instant("next_time", o.NextTime))
	}
}

// bulkRange reads the range of a backfill.
func (r *reader) bulkRange(o *perceptorv1.BulkOperation, action task.BulkAction, terms *task.BulkTerms) {
	if action != task.BulkBackfill {
		for field, set := range map[string]bool{"backfill_from": o.BackfillFrom != nil, "backfill_until": o.BackfillUntil != nil, "one_at_a_time": o.OneAtATime} {
			if set {
				r.fault(field, "only BACKFILL has it")
			}
		}
		return
	}
	if o.BackfillFrom == nil {
		r.fault("backfill_from", "is missing: BACKFILL needs the range of instants")
	}
	if o.BackfillUntil == nil {
		r.fault("backfill_until", "is missing: BACKFILL needs the range of instants")
	}
	if o.BackfillFrom == nil || o.BackfillUntil == nil {
		return
	}
	faults := len(r.faults)
	from, until := r.instant("backfill_from", o.BackfillFrom), r.instant("backfill_until", o.BackfillUntil)
	switch {
	case len(r.faults) > faults:
	case until <= from:
		r.fault("backfill_until", "%s is not after backfill_from %s", until, from)
	case until.Sub(from) > task.MaxBackfillRange:
		r.fault("backfill_until", "%s is more than 366 days after backfill_from %s", until, from)
	}
	terms.BackfillFrom, terms.BackfillUntil, terms.OneAtATime = from, until, o.OneAtATime
}

func (s *bulkService) GetBulkOperation(ctx context.Context, r *perceptorv1.GetBulkOperationRequest) (*perceptorv1.BulkOperation, error) {
	return oneBulk(ctx, r.Id, s.store.GetBulk)
}

func (s *bulkService) AbortBulkOperation(ctx context.Context, r *perceptorv1.AbortBulkOperationRequest) (*perceptorv1.BulkOperation, error) {
	return oneBulk(ctx, r.Id, s.store.AbortBulk)
}

func (s *bulkService) PauseBulkOperation(ctx context.Context, r *perceptorv1.PauseBulkOperationRequest) (*perceptorv1.BulkOperation, error) {
	return oneBulk(ctx, r.Id, s.store.PauseBulk)
}

func (s *bulkService) ResumeBulkOperation(ctx context.Context, r *perceptorv1.ResumeBulkOperationRequest) (*perceptorv1.BulkOperation, error) {
	return oneBulk(ctx, r.Id, s.store.ResumeBulk)
}

func oneBulk(ctx context.Context, id int64, f func(context.Context, int32, int64) (*task.BulkOperation, error)) (*perceptorv1.BulkOperation, error) {
	if faults := present(idFault("id", id)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	o, err := f(ctx, tenantOf(ctx).ID, id)
	return bulkReply(o, true), err
}

func (s *bulkService) ListBulkOperations(ctx context.Context, r *perceptorv1.ListBulkOperationsRequest) (*perceptorv1.ListBulkOperationsResponse, error) {
	tenant := tenantOf(ctx).ID
	page, err := newestFirstOf("bulk", tenant, r.PageSize, r.PageToken)
	if err != nil {
		return nil, err
	}
	list, err := s.store.ListBulk(ctx, tenant, page.created, page.id, page.limit)
	if err != nil {
		return nil, err
	}
	reply := &perceptorv1.ListBulkOperationsResponse{}
	for _, o := range list {
		reply.Operations = append(reply.Operations, bulkReply(o, false))
	}
	if len(list) > 0 {
		last := list[len(list)-1]
		reply.NextPageToken = page.next(len(list), last.CreatedAt, last.ID)
	}
	return reply, nil
}

// bulkReply converts an operation to its form in the API; nil for nil.
func bulkReply(o *task.BulkOperation, parts bool) *perceptorv1.BulkOperation {
	if o == nil {
		return nil
	}
	sum, finished, finishedAt := o.Sum()
	out := &perceptorv1.BulkOperation{
		Id: o.ID, Action: perceptorv1.BulkOperation_Action(o.Action), DryRun: o.Terms.DryRun, MaxRate: o.Terms.MaxRate,
		State: perceptorv1.BulkOperation_State(o.State), Matched: sum.Matched, Done: sum.Done, Failed: sum.Failed,
		FinishedParts: int32(finished), CreateTime: timestamp(o.CreatedAt), FinishTime: timestamp(finishedAt),
		Creator: o.Terms.Creator, ImportId: o.Terms.Import, Calendar: o.Terms.Calendar,
		DryRunId: o.Terms.CountedBy,
	}
	for _, n := range o.Terms.Counted {
		out.Counted += n
	}
	if o.Action.OfDead() {
		out.DeadFilter = deadFilterReply(&o.Terms.Dead)
	} else {
		out.Filter = filterReply(&o.Terms.Filter)
	}
	if o.Terms.Shift != 0 {
		out.Shift = durationpb.New(o.Terms.Shift)
	}
	out.NextTime = bound(o.Terms.NextAt)
	if o.Action == task.BulkBackfill {
		out.BackfillFrom, out.BackfillUntil = timestamp(o.Terms.BackfillFrom), timestamp(o.Terms.BackfillUntil)
		out.OneAtATime = o.Terms.OneAtATime
	}
	for i := range o.Parts {
		if p := &o.Parts[i]; parts {
			out.Parts = append(out.Parts, &perceptorv1.BulkOperation_Part{
				Database: int32(p.Database), State: perceptorv1.BulkOperation_State(p.State), Matched: p.Matched, Done: p.Done, Failed: p.Failed,
				StartTime: timestamp(p.StartedAt), FinishTime: timestamp(p.FinishedAt), Error: p.Error,
			})
		}
	}
	return out
}

func filterReply(f *task.Filter) *perceptorv1.TaskFilter {
	return &perceptorv1.TaskFilter{
		Kind: f.Kind, Type: perceptorv1.Task_Type(f.Type), State: perceptorv1.Task_State(f.State), Tags: f.Tags,
		DueFrom: bound(f.DueFrom), DueUntil: bound(f.DueUntil), AddedFrom: bound(f.AddedFrom), AddedUntil: bound(f.AddedUntil),
		TaskId: int64(f.Task), BackfillId: f.Backfill,
	}
}

func deadFilterReply(f *task.DeadFilter) *perceptorv1.DeadRunFilter {
	return &perceptorv1.DeadRunFilter{
		Kind: f.Kind, Type: perceptorv1.Task_Type(f.Type), Reason: perceptorv1.DeadRun_Reason(f.Reason), TaskId: int64(f.Task), Tags: f.Tags,
		DiedFrom: bound(f.DiedFrom), DiedUntil: bound(f.DiedUntil),
	}
}

// bound returns nil for 0, which stands for no bound.
func bound(i task.Instant) *timestamppb.Timestamp { // bound converts an instant; 0 means no bound and becomes nil.
	if i == 0 {
		return nil
	}
	return timestamppb.New(i.Time())
}
