package server

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// maxAddBytes is the maximum size of an AddTasks request in its binary
// encoding.
const maxAddBytes = 4 << 20

// taskService implements the API's TaskService.
type taskService struct {
	perceptorv1.UnimplementedTaskServiceServer
	store Tasks
	// calendars may be nil: no task can name calendars.
	calendars Calendars
	// quotas may be nil: no quota is enforced.
	quotas *quotas
	// tenants changes the settings that a tenant may change itself.
	tenants  Admin
	settings *settings
	// backpressure may be nil: adds do not yield to claims.
	backpressure *backpressure
	rules        *rulePlaces
	limits       task.Limits
	events       *Events
	traces       traces
	// audience returns what is known of the listeners of a tenant; nil: nothing is.
	audience func(ctx context.Context, tenant int32) *task.Audience
	// maxScan is the maximum number of tasks that a filtered listing may read.
	maxScan int64
	audit   *auditor
}

func (s *taskService) AddTask(ctx context.Context, r *perceptorv1.AddTaskRequest) (*perceptorv1.AddTaskResponse, error) {
	var faults []task.Fault
	if r.Task == nil {
		faults = append(faults, faultf("task", "is missing"))
	}
	if f := requestIDFault(r.RequestId); f != nil {
		faults = append(faults, *f)
	}
	began := time.Now()
	b, err := s.judge(ctx, []*perceptorv1.Task{r.Task}, r.Upsert)
	if err != nil {
		return nil, err
	}
	b.traceIn(s.traces.parent(ctx))
	if r.Task != nil {
		faults = append(faults, under("task", b.refused[0])...)
	}
	if e := r.Expected; e != nil {
		if !r.Upsert || r.Task.GetIdempotencyKey() == "" {
			faults = append(faults, faultf("expected", "needs upsert and an idempotency_key"))
		}
		for _, k := range b.keyed {
			k.request.Expected = &task.Expected{ID: task.ID(e.Id), Version: e.Version}
		}
	}
	if len(faults) > 0 {
		s.events.refused(tenantOf(ctx).Name, 1)
		return nil, invalid(faults)
	}
	replayed, err := s.add(ctx, b, r.RequestId)
	if err == nil && len(b.keyed) > 0 {
		err = b.keyed[0].err
	}
	if err != nil {
		return nil, err
	}
	if faults := b.refused[0]; len(faults) > 0 {
		return nil, invalid(under("task", faults))
	}
	s.traces.added(ctx, began, []*perceptorv1.Task{r.Task}, b)
	a := &perceptorv1.AddTaskResponse{Id: int64(b.ids[0]), Replayed: replayed, Pause: b.pauseReply()}
	if len(b.keyed) > 0 {
		a.Updated = b.keyed[0].result.Updated
	}
	return a, nil
}

func (s *taskService) AddTasks(ctx context.Context, r *perceptorv1.AddTasksRequest) (*perceptorv1.AddTasksResponse, error) {
	if faults := batchFaults(r); len(faults) > 0 {
		return nil, invalid(faults)
	}
	began := time.Now()
	b, err := s.judge(ctx, r.Tasks, r.Upsert)
	if err != nil {
		return nil, err
	}
	b.traceIn(s.traces.parent(ctx))
	replayed, err := s.add(ctx, b, r.RequestId)
	if err != nil {
		return nil, err
	}
	s.traces.added(ctx, began, r.Tasks, b)
	reply := &perceptorv1.AddTasksResponse{
		Results:  make([]*perceptorv1.AddTasksResponse_Result, len(r.Tasks)),
		Replayed: replayed,
		Pause:    b.pauseReply(),
	}
	for i := range r.Tasks {
		reply.Results[i] = b.result(i)
	}
	return reply, nil
}

func batchFaults(r *perceptorv1.AddTasksRequest) []task.Fault {
	var faults []task.Fault
	if n := len(r.Tasks); n == 0 || n > task.MaxTasksPerAdd {
		faults = append(faults, faultf("tasks", "has %d entries; 1 to %d are allowed", n, task.MaxTasksPerAdd))
	} else if mayBeLarge(r) {
		if size := proto.Size(r); size > maxAddBytes {
			faults = append(faults, faultf("tasks", "have %d bytes in total; at most %d are allowed", size, maxAddBytes))
		}
	}
	if f := requestIDFault(r.RequestId); f != nil {
		faults = append(faults, *f)
	}
	return faults
}

// mayBeLarge reports whether a request could exceed maxAddBytes, judging by its
// strings alone, because measuring takes as long as encoding.
func mayBeLarge(r *perceptorv1.AddTasksRequest) bool {
	const rest = 1 << 10 // bytes of a task besides its strings
	bytes := 0
	for _, t := range r.Tasks {
		bytes += rest + len(t.GetKind()) + len(t.GetPayload().GetData())
		if t.GetPayload().GetJson() != nil {
			return true // a value has no length
		}
		for k, v := range t.GetParams() {
			bytes += len(k) + len(v) + paramFraming
		}
	}
	return bytes > maxAddBytes
}

// batch is an add that is being processed: the request, and the outcome of each
// task.
type batch struct {
	specs   []task.Spec    // tasks without faults
	places  []int          // index of specs[i] in the request
	ids     []task.ID      // by index; 0: refused
	refused [][]task.Fault // by index
	hash    [32]byte       // of the tasks without a key
	keyed   []*keyedAdd    // valid tasks with a key; they are not in specs
	failed  map[int]error  // by index; why a task with a key was not stored
	// place is what was reserved for the tasks; nil: they were not admitted.
	place *reservation
	added int // tasks that were stored, or may have been
	// pause is how long the caller should wait before it adds more.
	pause time.Duration
}

// judge reads the tasks of a request. Tasks with faults use the rate of adds, too: to judge them may take longer
// than to add them. A call with nothing else is refused if the rate is used up; with other tasks it
// is refused because of these.
func (s *taskService) judge(ctx context.Context, tasks []*perceptorv1.Task, upsert bool) (*batch, error) {
	tenant := tenantOf(ctx)
	leave, err := s.rules.enter(ctx, tenant.ID, tasks)
	if err != nil {
		return nil, err
	}
	defer leave()
	reading, cancel := rulesWithin(ctx, tasks)
	defer cancel()
	b, err := s.read(reading, tenant, tasks, upsert)
	if err != nil {
		return nil, err
	}
	bad := 0
	for _, faults := range b.refused {
		bad += min(len(faults), 1)
	}
	if bad < len(tasks) {
		s.quotas.refused(tenant, bad)
		return b, nil
	}
	return b, s.quotas.admitRefused(ctx, tenant, bad)
}

// read converts the tasks of a request to a batch of specs and faults. It ends with ctx: nobody waits for the answer any
// more, and a thousand recurrence rules may take seconds of the processor.
func (s *taskService) read(ctx context.Context, tenant *Tenant, tasks []*perceptorv1.Task, upsert bool) (*batch, error) {
	b := &batch{ids: make([]task.ID, len(tasks)), refused: make([][]task.Fault, len(tasks))}
	h := sha256.New()
	for i, t := range tasks {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		spec, faults := specOf(t, tenant, s.limits)
		if upsert && t.GetIdempotencyKey() == "" {
			faults = append(faults, faultf("idempotency_key", "is missing; upsert requires it"))
		}
		if b.refused[i] = faults; len(faults) > 0 {
			continue
		}
		if t.IdempotencyKey != "" {
			b.keyed = append(b.keyed, newKeyedAdd(tenant, i, t, spec, upsert))
			continue
		}
		b.specs, b.places = append(b.specs, spec), append(b.places, i)
		wire := bodyOf(t)
		// The indexes of the valid tasks are hashed, too, so that after a
		// change of limits a replay cannot return ids of other tasks.
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(i)))
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(wire))))
		h.Write(wire)
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(spec.ParamsWire))))
		h.Write(spec.ParamsWire)
	}
	h.Sum(b.hash[:0])
	return b, nil
}

// bodyOf encodes the fields of a task that a caller determines, without params and
// payload, which [paramsWire] encodes. It clears the fields of t that only the service sets.
func bodyOf(t *perceptorv1.Task) []byte {
	m := t.ProtoReflect()
	for _, f := range outputOnly {
		m.Clear(f)
	}
	params, payload, key, parent := t.Params, t.Payload, t.IdempotencyKey, t.TraceParent
	t.Params, t.Payload, t.IdempotencyKey, t.TraceParent = nil, nil, "", ""
	wire, _ := proto.MarshalOptions{Deterministic: true}.Marshal(t)
	t.Params, t.Payload, t.IdempotencyKey, t.TraceParent = params, payload, key, parent
	return wire
}

// add stores the valid tasks of a batch and records the outcome of each.
func (s *taskService) add(ctx context.Context, b *batch, requestID string) (replayed bool, err error) {
	tenant := tenantOf(ctx)
	s.yield(ctx, tenant, b)
	defer func() { b.place.end(b.added) }()
	if len(b.keyed) > 0 && b.keyed[0].request.Upsert {
		for _, k := range b.keyed {
			k.request.RequestID = requestID
		}
		refund, err := s.quotas.reserveUpserts(ctx, tenant, len(b.keyed))
		if err != nil {
			return false, err
		}
		defer refund()
	}
	if len(b.specs) > 0 {
		done, err := s.addWithin(ctx, tenant, b, task.AddRequest{
			Tenant: tenant.ID, RequestID: requestID, Hash: b.hash, Specs: b.specs,
		})
		if err != nil {
			return false, err
		}
		if len(done.Items) != len(b.specs) {
			return false, fmt.Errorf("add: the store returned %d results for %d tasks", len(done.Items), len(b.specs))
		}
		for i, item := range done.Items {
			b.ids[b.places[i]], b.refused[b.places[i]] = item.ID, item.Faults
		}
		replayed = done.Replayed
	}
	if len(b.keyed) > 0 {
		err := s.addKeyedWithin(ctx, tenant, b)
		s.audit.upserted(ctx, b.changed())
		if err != nil {
			return false, err
		}
		if err := b.noneStored(); err != nil {
			return false, err // the caller may repeat the call
		}
		replayed = b.applyKeyed() && (replayed || len(b.specs) == 0)
	}
	s.count(tenant, b, replayed && len(b.keyed) == 0)
	return replayed, nil
}

// yield waits while adds yield to claims.
func (s *taskService) yield(ctx context.Context, tenant *Tenant, b *batch) {
	n := len(b.specs) + len(b.keyed)
	waited, pause := s.backpressure.yield(ctx, tenant.ID, n)
	if b.pause = pause; pause > 0 {
		s.events.yielded(tenant.Name, n, waited)
	}
}

// pauseReply returns the pause in the form of the API: nil if there is none.
func (b *batch) pauseReply() *durationpb.Duration {
	if b.pause == 0 {
		return nil
	}
	return durationpb.New(b.pause)
}

// addKeyedWithin adds the tasks with keys if they are within the tenant's
// quotas, or were admitted with the other tasks of the call. Those that came
// with a repeated request were not. If a quota is
// exceeded, it answers for known tasks; one unknown task makes it refuse the
// call.
func (s *taskService) addKeyedWithin(ctx context.Context, tenant *Tenant, b *batch) error {
	if b.place == nil {
		place, over := s.quotas.admit(ctx, tenant, len(b.keyed))
		if over != nil {
			return s.quotas.replayedKeys(ctx, tenant, b.keyed, over)
		}
		b.place = place
	}
	s.addKeyed(ctx, tenant, b)
	return nil
}

// changed returns the tasks that upserts of the batch have changed.
func (b *batch) changed() (ids []task.ID) {
	for _, k := range b.keyed {
		if k.err == nil && k.result.Updated && len(k.result.Items) > 0 {
			ids = append(ids, k.result.Items[0].ID)
		}
	}
	return ids
}

// applyKeyed records the outcome of the tasks with keys. It reports whether all
// of them had been stored before.
func (b *batch) applyKeyed() (replayed bool) {
	replayed = true
	for _, k := range b.keyed {
		if k.err != nil {
			if b.failed == nil {
				b.failed = map[int]error{}
			}
			b.failed[k.place] = k.err
			continue
		}
		item := k.result.Items[0]
		b.ids[k.place], b.refused[k.place] = item.ID, item.Faults
		replayed = replayed && k.result.Replayed
	}
	return replayed
}

// addWithin stores the tasks of a batch without a key if they are within the
// tenant's quotas or were stored before. The tasks with a key are admitted with
// them and stored afterwards.
func (s *taskService) addWithin(ctx context.Context, tenant *Tenant, b *batch, r task.AddRequest) (task.AddResult, error) {
	place, over := s.quotas.admit(ctx, tenant, len(r.Specs)+len(b.keyed))
	if over != nil {
		return s.quotas.replayed(ctx, tenant, r, over)
	}
	b.place = place
	if err := s.loadCalendars(ctx, tenant.ID, r.Specs...); err != nil {
		return task.AddResult{}, err
	}
	done, err := s.store.Add(ctx, r)
	b.added += addedBy(done, err, len(r.Specs))
	return done, err
}

// addedBy returns how many of the n tasks of a request were stored, or may have
// been.
func addedBy(done task.AddResult, err error, n int) int {
	if err != nil && !mayHaveStored(err) || done.Replayed || done.Updated {
		return 0
	}
	for _, item := range done.Items {
		if len(item.Faults) > 0 {
			n--
		}
	}
	return n
}

// mayHaveStored reports whether a request with this error may have been stored.
func mayHaveStored(err error) bool {
	code := task.CodeOf(err)
	return code == task.Unavailable || code == task.Internal
}

func (s *taskService) count(tenant *Tenant, b *batch, replayed bool) {
	added := map[task.Type]int{}
	kept := 0 // neither stored nor refused
	for _, k := range b.keyed {
		switch {
		case k.err != nil && task.CodeOf(k.err) != task.AlreadyExists, k.result.Replayed, k.result.Updated:
			kept++
		case k.err == nil && len(b.refused[k.place]) == 0:
			added[k.request.Specs[0].Type]++
		}
	}
	for i, place := range b.places {
		if len(b.refused[place]) == 0 {
			added[b.specs[i].Type]++
		}
	}
	refused := len(b.ids) - kept
	for t, n := range added {
		refused -= n
		if !replayed {
			s.events.added(tenant, t, n)
		}
	}
	s.events.refused(tenant.Name, refused)
}

// result returns the answer for the task at an index of the request.
func (b *batch) result(place int) *perceptorv1.AddTasksResponse_Result {
	err := b.failed[place]
	if err != nil {
		_, err = statusOf(err)
	}
	if faults := b.refused[place]; len(faults) > 0 {
		err = invalid(under(fieldOf(place), faults))
	}
	if err != nil {
		return &perceptorv1.AddTasksResponse_Result{Outcome: &perceptorv1.AddTasksResponse_Result_Error{
			Error: status.Convert(err).Proto(),
		}}
	}
	return &perceptorv1.AddTasksResponse_Result{Outcome: &perceptorv1.AddTasksResponse_Result_Id{
		Id: int64(b.ids[place]),
	}}
}

func requestIDFault(id string) *task.Fault {
	return printableFault("request_id", id, task.MaxRequestIDBytes)
}

// printableFault returns the fault of a name that a caller chose: it must have
// at most limit printable ASCII characters. nil: no fault.
func printableFault(field, name string, limit int) *task.Fault {
	if len(name) > limit {
		f := faultf(field, "has %d bytes; at most %d are allowed", len(name), limit)
		return &f
	}
	for i := range len(name) {
		if name[i] < ' ' || name[i] > '~' {
			f := faultf(field, "%q has characters other than printable ASCII", name)
			return &f
		}
	}
	return nil
}

func (s *taskService) GetTask(ctx context.Context, r *perceptorv1.GetTaskRequest) (*perceptorv1.Task, error) {
	return one(ctx, r.Id, s.store.Get)
}

func (s *taskService) CancelTask(ctx context.Context, r *perceptorv1.CancelTaskRequest) (*perceptorv1.Task, error) {
	return one(ctx, r.Id, s.store.Cancel)
}

func (s *taskService) PauseTask(ctx context.Context, r *perceptorv1.PauseTaskRequest) (*perceptorv1.Task, error) {
	return one(ctx, r.Id, s.store.Pause)
}

func (s *taskService) ResumeTask(ctx context.Context, r *perceptorv1.ResumeTaskRequest) (*perceptorv1.Task, error) {
	return one(ctx, r.Id, s.store.Resume)
}

// one applies a step to one task of the caller. The answer for a missing task
// is the same for all reasons.
func one(ctx context.Context, id int64, step func(context.Context, int32, task.ID) (*task.Snapshot, error)) (*perceptorv1.Task, error) {
	if faults := present(idFault("id", id)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	if !task.ID(id).Valid() {
		return nil, noSuchTask(id)
	}
	snapshot, err := step(ctx, tenantOf(ctx).ID, task.ID(id))
	if err != nil {
		return nil, noTask(id, err)
	}
	return taskOf(snapshot)
}

// noTask returns the error of a step on one task.
func noTask(id int64, err error) error {
	if task.CodeOf(err) == task.NotFound {
		return noSuchTask(id)
	}
	return err
}

func (s *taskService) PurgeTask(ctx context.Context, r *perceptorv1.PurgeTaskRequest) (*perceptorv1.PurgeTaskResponse, error) {
	if faults := present(idFault("id", r.Id)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	return &perceptorv1.PurgeTaskResponse{}, noTask(r.Id, s.store.PurgeTask(ctx, tenantOf(ctx).ID, task.ID(r.Id)))
}

// idFault returns the fault of an id, or nil.
func idFault(field string, id int64) *task.Fault {
	if id > 0 {
		return nil
	}
	f := faultf(field, "%d is not positive", id)
	return &f
}
