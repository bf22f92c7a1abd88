package server

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// updateTries bounds how often an update begins again because the task has got
// another version meanwhile.
const updateTries = 8

// taskFields are the fields of a task in the API.
var taskFields = (&perceptorv1.Task{}).ProtoReflect().Descriptor().Fields()

// outputOnly are the fields that the service alone sets. A whole task that is sent
// back has them; they are passed over.
var outputOnly = func() (list []protoreflect.FieldDescriptor) {
	for i := range taskFields.Len() {
		f := taskFields.Get(i)
		behaviors, _ := proto.GetExtension(f.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
		if slices.Contains(behaviors, annotations.FieldBehavior_OUTPUT_ONLY) {
			list = append(list, f)
		}
	}
	return list
}()

// fixed are the fields that a caller chooses once. Who sends back a whole task sends
// them, too: that is no fault while they are as they were.
var fixed = []string{"type", "idempotency_key"}

// ignored reports whether an update passes a field over: the service alone sets it, or
// the add has.
func ignored(path string) bool {
	return path == "trace_parent" || slices.ContainsFunc(outputOnly, func(f protoreflect.FieldDescriptor) bool { return string(f.Name()) == path })
}

// editable reports whether UpdateTask may change a field: all that are neither
// ignored nor fixed.
func editable(path string) bool {
	outer, inner, deep := strings.Cut(path, ".")
	f := taskFields.ByName(protoreflect.Name(outer))
	switch {
	case f == nil || ignored(outer) || slices.Contains(fixed, outer):
		return false
	case !deep:
		return true
	}
	// Of a policy and an expression single fields may be named, too.
	m := f.Message()
	return m != nil && !f.IsMap() && m.ParentFile() == taskFields.Get(0).ParentFile() && m.Fields().ByName(protoreflect.Name(inner)) != nil
}

// UpdateTask reads the task, puts the named fields into what it has read, and
// judges the whole by the rules of AddTask. The store then takes it if the task
// still has the version that was read.
func (s *taskService) UpdateTask(ctx context.Context, r *perceptorv1.UpdateTaskRequest) (*perceptorv1.Task, error) {
	m, faults := maskOf(r)
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	return one(ctx, r.Task.GetId(), func(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
		for tries := 1; ; tries++ {
			old, err := s.store.Get(ctx, tenant, id)
			if err != nil {
				return nil, err
			}
			edit, err := s.editOf(tenantOf(ctx), old, r, m)
			if err != nil {
				return nil, err
			}
			if err := s.loadCalendars(ctx, tenant, *edit.Spec); err != nil {
				return nil, err
			}
			done, err := s.store.Update(ctx, tenant, id, edit)
			if err == nil || task.CodeOf(err) != task.Aborted || tries == updateTries || (r.Version != 0 && r.Version != old.Version) {
				return done, underTask(err)
			}
		}
	})
}

// underTask moves the faults of an edit below the field that they are in.
func underTask(err error) error {
	if task.CodeOf(err) != task.InvalidArgument {
		return err
	}
	return invalid(under("task", faultsOf(err)))
}

// mask are the fields to change.
type mask struct {
	paths  []string
	fixed  []string // those that must be as they are
	params bool     // the params or the payload are among paths
}

// maskOf returns the fields that a request names.
// maxPaths is the most paths of an update mask: more than a task has fields.
const maxPaths = 100

func maskOf(r *perceptorv1.UpdateTaskRequest) (*mask, []task.Fault) {
	var faults []task.Fault
	if r.Task == nil {
		return nil, []task.Fault{faultf("task", "is missing")}
	}
	if r.Version < 0 {
		faults = append(faults, faultf("version", "%d is negative", r.Version))
	}
	m := &mask{}
	paths := r.UpdateMask.GetPaths()
	paths = wholePayload(paths)
	if len(paths) > maxPaths {
		return nil, append(faults, faultf("update_mask", "has %d paths; at most %d are allowed", len(paths), maxPaths))
	}
	switch {
	case len(paths) == 0:
		r.Task.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			paths = append(paths, string(f.Name()))
			return true
		})
	case len(paths) == 1 && paths[0] == "*":
		paths = nil
		for i := range taskFields.Len() {
			if field := string(taskFields.Get(i).Name()); editable(field) {
				paths = append(paths, field)
			}
		}
	}
	for _, path := range paths {
		path = plainPath(path)
		switch {
		case path == "" || ignored(path):
		case slices.Contains(fixed, path):
			m.fixed = append(m.fixed, path)
		case !editable(path):
			faults = append(faults, faultf("update_mask", "%q cannot be changed, or is no field of a task", path))
		default:
			m.paths = append(m.paths, path)
			m.params = m.params || path == "params" || path == "payload"
		}
	}
	if len(m.paths)+len(m.fixed) == 0 && len(faults) == 0 {
		faults = append(faults, faultf("update_mask", "names no field that can be changed"))
	}
	return m, faults
}

// wholePayload replaces paths within the payload, which is changed as a whole. The gateway
// makes one for each member of JSON, and may make none.
func wholePayload(paths []string) []string {
	whole := make([]string, 0, len(paths))
	for _, path := range paths {
		outer, _, deep := strings.Cut(path, ".")
		if outer == "payload" && deep {
			path = outer
		}
		if path != "payload" || !slices.Contains(whole, path) {
			whole = append(whole, path)
		}
	}
	return whole
}

// plainPath returns a path with the names that fields have in the contract: in JSON
// they are maxCount and retryPolicy.maxAttempts.
func plainPath(path string) string {
	names := strings.Split(path, ".")
	m := (&perceptorv1.Task{}).ProtoReflect().Descriptor()
	for i, name := range names {
		if m == nil {
			break
		}
		f := m.Fields().ByJSONName(name)
		if f == nil {
			f = m.Fields().ByName(protoreflect.Name(name))
		}
		if f == nil {
			break
		}
		names[i], m = string(f.Name()), f.Message()
	}
	return strings.Join(names, ".")
}

// editOf returns what the store has to do to a task that was read.
func (s *taskService) editOf(tenant *Tenant, old *task.Snapshot, r *perceptorv1.UpdateTaskRequest, m *mask) (task.Edit, error) {
	stored, err := taskOf(old)
	if err != nil {
		return task.Edit{}, err
	}
	if faults := append(m.moved(stored, r.Task), m.ofNoExpression(stored, r.Task)...); len(faults) > 0 {
		return task.Edit{}, invalid(under("task", faults))
	}
	merged := proto.Clone(stored).(*perceptorv1.Task)
	for _, path := range m.paths {
		copyField(merged, r.Task, path)
	}
	m.leavePolicy(merged)
	spec, faults := specOf(merged, tenant, s.limits)
	if len(faults) > 0 {
		// What was there before is not this caller's fault.
		_, before := specOf(stored, tenant, s.limits)
		if faults = without(faults, before); len(faults) > 0 {
			return task.Edit{}, invalid(under("task", faults))
		}
		if spec.ParamsWire = old.Params; m.params {
			spec.ParamsWire = paramsWire(merged.Params, spec.Payload)
		}
	}
	edit := task.Edit{If: r.Version, Of: old.Version, Spec: &spec, Params: m.params}
	if !slices.Contains(m.paths, "params") || !slices.Contains(m.paths, "payload") {
		edit.OfParams = append([]byte{}, old.Params...)
	}
	return edit, nil
}

// leavePolicy takes from a task that gets another misfire policy what only the one
// before had, unless the caller says something about it.
func (m *mask) leavePolicy(t *perceptorv1.Task) {
	if !slices.Contains(m.paths, "misfire_policy") {
		return
	}
	if t.MisfirePolicy != perceptorv1.Task_SKIP && !slices.Contains(m.paths, "misfire_grace") {
		t.MisfireGrace = nil
	}
	if t.MisfirePolicy != perceptorv1.Task_FIRE_ALL && !slices.Contains(m.paths, "misfire_limit") {
		t.MisfireLimit = 0
	}
}

// moved returns the faults of fields that cannot change and are not as they are.
func (m *mask) moved(stored, asked *perceptorv1.Task) (faults []task.Fault) {
	is, want := stored.ProtoReflect(), asked.ProtoReflect()
	for _, path := range m.fixed {
		f := is.Descriptor().Fields().ByName(protoreflect.Name(path))
		if a, b := is.Get(f), want.Get(f); !a.Equal(b) {
			faults = append(faults, faultf(path, "%s: that of the task is %s, and stays it", shown(f, b), shown(f, a)))
		}
	}
	return faults
}

// ofNoExpression returns the faults of parts of an expression that a task without one would get.
func (m *mask) ofNoExpression(stored, asked *perceptorv1.Task) (faults []task.Fault) {
	if stored.GetCron() != nil || asked.GetCron().GetExpression() != "" {
		return nil
	}
	for path, part := range map[string]string{"cron.time_zone": "time zone", "cron.dialect": "dialect"} {
		if slices.Contains(m.paths, path) {
			faults = append(faults, faultf(path, "the task has no cron expression; only an expression has a %s", part))
		}
	}
	return faults
}

// shown writes the value of a field that is an enum or a text.
func shown(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	if f.Enum() == nil {
		return strconv.Quote(v.String())
	}
	if value := f.Enum().Values().ByNumber(v.Enum()); value != nil {
		return string(value.Name())
	}
	return strconv.Itoa(int(v.Enum()))
}

// copyField makes the field at path of to what it is in from.
func copyField(to, from *perceptorv1.Task, path string) {
	dst, src := to.ProtoReflect(), from.ProtoReflect()
	outer, inner, deep := strings.Cut(path, ".")
	f := dst.Descriptor().Fields().ByName(protoreflect.Name(outer))
	if deep {
		dst, src = dst.Mutable(f).Message(), src.Get(f).Message()
		f = dst.Descriptor().Fields().ByName(protoreflect.Name(inner))
	}
	switch of := f.ContainingOneof(); {
	case src.Has(f):
		dst.Set(f, src.Get(f))
	case of == nil || of.IsSynthetic() || src.WhichOneof(of) == nil:
		dst.Clear(f)
	}
}

// without returns the faults that are not among others.
func without(faults, others []task.Fault) []task.Fault {
	known := map[task.Fault]bool{}
	for _, f := range others {
		known[f] = true
	}
	var left []task.Fault
	for _, f := range faults {
		if !known[f] {
			left = append(left, f)
		}
	}
	return left
}

// TriggerTask opens a run now.
func (s *taskService) TriggerTask(ctx context.Context, r *perceptorv1.TriggerTaskRequest) (*perceptorv1.TriggerTaskResponse, error) {
	if faults := present(idFault("id", r.Id), requestIDFault(r.RequestId)); len(faults) > 0 {
		return nil, invalid(faults)
	}
	seq, replayed, err := s.trigger(ctx, tenantOf(ctx), task.ID(r.Id), r.RequestId)
	if err != nil {
		return nil, noTask(r.Id, err)
	}
	run := task.RunID{Task: task.ID(r.Id), Seq: seq}
	return &perceptorv1.TriggerTaskResponse{RunId: run.String(), Seq: seq, Replayed: replayed}, nil
}

// trigger opens a run within the tenant's quotas, or returns the run that an earlier call has
// opened.
func (s *taskService) trigger(ctx context.Context, t *Tenant, id task.ID, requestID string) (seq int64, replayed bool, err error) {
	place, over := s.quotas.admit(ctx, t, 1)
	if over == nil {
		over = s.quotas.change(ctx, t)
	}
	if over != nil {
		place.end(0)
		seq, err = s.quotas.triggered(ctx, t, id, requestID, over)
		return seq, err == nil, err
	}
	defer place.end(0) // it is a run of a task that is counted
	return s.store.Trigger(ctx, t.ID, id, requestID)
}

// fieldOf names a task of a batch.
func fieldOf(place int) string { return "tasks[" + strconv.Itoa(place) + "]" }
