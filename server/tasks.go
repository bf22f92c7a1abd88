package server

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// maxAddBytes is the largest AddTasks request, in its binary encoding.
const maxAddBytes = 4 << 20

// taskService is the API's TaskService.
type taskService struct {
	perceptorv1.UnimplementedTaskServiceServer
	store Tasks
	// quotas may be nil: there are none.
	quotas *quotas
	// tenants takes what a tenant may change of its own settings.
	tenants Admin
	limits  task.Limits
	events  *Events
	// maxScan is how many tasks a filtered listing may have to look at.
	maxScan int64
}

func (s *taskService) AddTask(ctx context.Context, r *perceptorv1.AddTaskRequest) (*perceptorv1.AddTaskResponse, error) {
	var faults []task.Fault
	if r.Task == nil {
		faults = append(faults, faultf("task", "is missing"))
	}
	if f := requestIDFault(r.RequestId); f != nil {
		faults = append(faults, *f)
	}
	b := s.read(tenantOf(ctx), []*perceptorv1.Task{r.Task}, r.Upsert)
	if r.Task != nil {
		faults = append(faults, under("task", b.refused[0])...)
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
	a := &perceptorv1.AddTaskResponse{Id: int64(b.ids[0]), Replayed: replayed}
	if len(b.keyed) > 0 {
		a.Updated = b.keyed[0].result.Updated
	}
	return a, nil
}

func (s *taskService) AddTasks(ctx context.Context, r *perceptorv1.AddTasksRequest) (*perceptorv1.AddTasksResponse, error) {
	if faults := batchFaults(r); len(faults) > 0 {
		return nil, invalid(faults)
	}
	b := s.read(tenantOf(ctx), r.Tasks, r.Upsert)
	replayed, err := s.add(ctx, b, r.RequestId)
	if err != nil {
		return nil, err
	}
	reply := &perceptorv1.AddTasksResponse{
		Results:  make([]*perceptorv1.AddTasksResponse_Result, len(r.Tasks)),
		Replayed: replayed,
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
			faults = append(faults, faultf("tasks", "have %d bytes together; at most %d are allowed", size, maxAddBytes))
		}
	}
	if f := requestIDFault(r.RequestId); f != nil {
		faults = append(faults, *f)
	}
	return faults
}

// mayBeLarge reports whether a request could have more than maxAddBytes, by its
// strings alone: to measure it takes as long as to encode it.
func mayBeLarge(r *perceptorv1.AddTasksRequest) bool {
	const rest = 1 << 10 // of a task, beside its strings
	bytes := 0
	for _, t := range r.Tasks {
		bytes += rest + len(t.GetKind())
		for k, v := range t.GetParams() {
			bytes += len(k) + len(v) + paramFraming
		}
	}
	return bytes > maxAddBytes
}

// batch is an add on its way: what was asked, and what became of each task.
type batch struct {
	specs   []task.Spec    // the good ones
	places  []int          // where specs[i] stands in the request
	ids     []task.ID      // by place; 0: refused
	refused [][]task.Fault // by place
	hash    [32]byte       // of the tasks without a key
	keyed   []*keyedAdd    // good ones that have a key, and are not among specs
	failed  map[int]error  // by place; why a task with a key was not stored
}

// read turns the tasks of a request into a batch with their specs or faults.
func (s *taskService) read(tenant *Tenant, tasks []*perceptorv1.Task, upsert bool) *batch {
	b := &batch{ids: make([]task.ID, len(tasks)), refused: make([][]task.Fault, len(tasks))}
	h := sha256.New()
	for i, t := range tasks {
		spec, faults := specOf(t, tenant, s.limits)
		if upsert && t.GetIdempotencyKey() == "" {
			faults = append(faults, faultf("idempotency_key", "is missing: upsert is for tasks that have one"))
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
		// With the places of the good ones hashed too, a changed limit cannot
		// make a replay answer for other tasks than it was stored with.
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(i)))
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(wire))))
		h.Write(wire)
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(spec.ParamsWire))))
		h.Write(spec.ParamsWire)
	}
	h.Sum(b.hash[:0])
	return b
}

// bodyOf returns the bytes of what a caller decides about a task, but for the params.
// Of t it clears what only the service sets.
func bodyOf(t *perceptorv1.Task) []byte {
	m := t.ProtoReflect()
	for _, f := range outputOnly {
		m.Clear(f)
	}
	params, key, parent := t.Params, t.IdempotencyKey, t.TraceParent
	t.Params, t.IdempotencyKey, t.TraceParent = nil, "", ""
	wire, _ := proto.MarshalOptions{Deterministic: true}.Marshal(t)
	t.Params, t.IdempotencyKey, t.TraceParent = params, key, parent
	return wire
}

// add stores the good tasks of a batch and writes down what became of them.
func (s *taskService) add(ctx context.Context, b *batch, requestID string) (replayed bool, err error) {
	tenant := tenantOf(ctx)
	if len(b.specs) > 0 {
		done, err := s.addWithin(ctx, tenant, len(b.keyed), task.AddRequest{
			Tenant: tenant.ID, RequestID: requestID, Hash: b.hash, Specs: b.specs,
		})
		if err != nil {
			return false, err
		}
		if len(done.Items) != len(b.specs) {
			return false, fmt.Errorf("add: the store answered %d of %d tasks", len(done.Items), len(b.specs))
		}
		for i, item := range done.Items {
			b.ids[b.places[i]], b.refused[b.places[i]] = item.ID, item.Faults
		}
		replayed = done.Replayed
	}
	if len(b.keyed) > 0 {
		if err := s.addKeyedWithin(ctx, tenant, b); err != nil {
			return false, err
		}
		if err := b.tryAgain(); err != nil && (requestID != "" || len(b.specs) == 0) {
			return false, err // the call may be repeated as it is
		}
		replayed = b.takeKeyed() && (replayed || len(b.specs) == 0)
	}
	s.count(tenant.Name, b, replayed && len(b.keyed) == 0)
	return replayed, nil
}

// addKeyedWithin adds the tasks with keys, if they are within the tenant's quotas or
// were let in with the others of the call. Beyond them it answers for those that are
// known; one that is not makes it refuse the call.
func (s *taskService) addKeyedWithin(ctx context.Context, tenant *Tenant, b *batch) error {
	if len(b.specs) == 0 {
		if over := s.quotas.admit(ctx, tenant, len(b.keyed)); over != nil {
			return s.quotas.replayedKeys(ctx, b.keyed, over)
		}
	}
	s.addKeyed(ctx, b.keyed)
	return nil
}

// takeKeyed notes what became of the tasks with keys. It reports whether all had
// been there before.
func (b *batch) takeKeyed() (replayed bool) {
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

// addWithin stores a request that is within the tenant's quotas, or had been stored
// before. So many more tasks of the call have a key and are stored after it.
func (s *taskService) addWithin(ctx context.Context, tenant *Tenant, more int, r task.AddRequest) (task.AddResult, error) {
	if over := s.quotas.admit(ctx, tenant, len(r.Specs)+more); over != nil {
		return s.quotas.replayed(ctx, r, over)
	}
	return s.store.Add(ctx, r)
}

func (s *taskService) count(tenant string, b *batch, replayed bool) {
	added := map[task.Type]int{}
	kept := 0 // nothing was stored, and nothing refused
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
	s.events.refused(tenant, refused)
}

// result answers for the task at a place of the request.
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

// printableFault returns what is wrong with a name that a caller has drawn: it has
// at most limit printable ASCII characters. nil: nothing.
func printableFault(field, name string, limit int) *task.Fault {
	if len(name) > limit {
		f := faultf(field, "has %d bytes; at most %d are allowed", len(name), limit)
		return &f
	}
	for i := range len(name) {
		if name[i] < ' ' || name[i] > '~' {
			f := faultf(field, "%q has other than printable ASCII characters", name)
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

// one does a step on one task of the caller. Whatever the reason that there is
// no such task, the answer is the same.
func one(ctx context.Context, id int64, step func(context.Context, int32, task.ID) (*task.Snapshot, error)) (*perceptorv1.Task, error) {
	if faults := present(idFault("id", id)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	if !task.ID(id).Valid() {
		return nil, errNoTask
	}
	snapshot, err := step(ctx, tenantOf(ctx).ID, task.ID(id))
	if err != nil {
		return nil, noTask(err)
	}
	return taskOf(snapshot)
}

// noTask is the error of a step on one task.
func noTask(err error) error {
	if err != nil && task.CodeOf(err) == task.NotFound {
		return errNoTask
	}
	return err
}

func (s *taskService) PurgeTask(ctx context.Context, r *perceptorv1.PurgeTaskRequest) (*perceptorv1.PurgeTaskResponse, error) {
	if faults := present(idFault("id", r.Id)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	return &perceptorv1.PurgeTaskResponse{}, noTask(s.store.PurgeTask(ctx, tenantOf(ctx).ID, task.ID(r.Id)))
}

// idFault returns what is wrong with an id. nil: nothing.
func idFault(field string, id int64) *task.Fault {
	if id > 0 {
		return nil
	}
	f := faultf(field, "%d is not positive", id)
	return &f
}
