package server

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// naming has the calls that name one task, and the path of the field with its id. The field
// idempotency_key beside it names the task instead.
var naming = map[string]string{
	perceptorv1.TaskService_GetTask_FullMethodName:       "id",
	perceptorv1.TaskService_ExplainTask_FullMethodName:   "id",
	perceptorv1.TaskService_CancelTask_FullMethodName:    "id",
	perceptorv1.TaskService_PauseTask_FullMethodName:     "id",
	perceptorv1.TaskService_ResumeTask_FullMethodName:    "id",
	perceptorv1.TaskService_TriggerTask_FullMethodName:   "id",
	perceptorv1.TaskService_PurgeTask_FullMethodName:     "id",
	perceptorv1.TaskService_UpdateTask_FullMethodName:    "task.id",
	perceptorv1.TaskService_ListRunEvents_FullMethodName: "task_id",
}

// keyField is the name of the field with the key, in all requests and in Task.
const keyField = "idempotency_key"

// resolve sets the id of a task that the request names by its key, so that everything behind
// the gate sees an id. If the task is replaced under its key meanwhile, the call is about the
// one that had the key first.
func (g *gate) resolve(ctx context.Context, method string, request proto.Message) error {
	path, ok := naming[method]
	if !ok {
		return nil
	}
	m, id := fieldAt(request.ProtoReflect(), path)
	key := m.Get(m.Descriptor().Fields().ByName(keyField)).String()
	switch {
	case key == "" && m.Get(id).Int() == 0: // as of ByKey("")
		return invalid([]task.Fault{faultf(path, "is missing, and so is %s: one of them names the task", keyField)})
	case key == "":
		return nil // the call checks the id
	case m.Get(id).Int() == 0:
	case method == perceptorv1.TaskService_UpdateTask_FullMethodName:
		return nil // a task that was read is sent back with both
	default:
		return invalid([]task.Fault{faultf(keyField, "is set beside %s; exactly one of them names the task", id.Name())})
	}
	if fault := keyFault(key); fault != nil {
		return invalid([]task.Fault{*fault})
	}
	found, err := g.tasks.TaskOfKey(ctx, tenantOf(ctx).ID, key)
	switch {
	case err == nil:
		m.Set(id, protoreflect.ValueOfInt64(int64(found)))
	case task.CodeOf(err) == task.NotFound:
		return reasoned(task.ReasonTaskNotFound,
			fmt.Sprintf("no task has the idempotency_key %q", key))
	}
	return err
}

// keyNameOf returns what a request calls its object if it has no id: the key of a task.
func keyNameOf(request proto.Message) string {
	for _, path := range []string{keyField, "task." + keyField} {
		if key := textAt(path, request); key != "" {
			return "key:" + key
		}
	}
	return ""
}
