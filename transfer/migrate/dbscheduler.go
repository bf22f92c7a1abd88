package migrate

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// execution is a row of scheduled_tasks of db-scheduler.
type execution struct {
	Name, Instance string
	Data           []byte
	At             int64 // execution_time, in ms since 1970; 0: none
	Picked         bool
	Failures       int32
}

// recurring is the instance of recurring tasks.
const recurring = "recurring"

// name returns the name of an execution in messages and keys. A slash in the task's name is escaped, so that no two
// executions have the same one.
func (e *execution) name() string {
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(e.Name) + "/" + e.Instance
}

// item returns what stands for an execution.
func (e *execution) item() *Item {
	name := e.name()
	switch {
	case e.Instance == recurring:
		return without(name, "it is a recurring task, whose schedule is in the program and not in the table; add a task with that schedule")
	case e.At == 0:
		return without(name, "it has no execution_time")
	case task.InstantFault(task.Instant(e.At)) != "":
		return without(name, "its execution_time %s", task.InstantFault(task.Instant(e.At)))
	case e.recurs():
		return without(name, "it recurs by a schedule in its data, which is not taken over; add a task with that schedule")
	}
	if reason := kindFault(e.Name); reason != "" {
		return without(name, "%s", reason)
	}
	i := &Item{Name: name, Next: task.Instant(e.At), Task: &perceptorv1.Task{
		Kind: e.Name, Type: perceptorv1.Task_ONE_SHOT, BeginTime: instant(e.At), IdempotencyKey: keyOf("db-scheduler", name),
	}}
	if e.Picked {
		i.note("it is being executed now, and will be executed again here unless it ends before")
	}
	if e.Failures > 0 {
		i.note("it has failed %d times; attempts count from the beginning", e.Failures)
	}
	e.params(i)
	return i
}

// scheduleField is what the type of a field with a schedule of db-scheduler begins with, in a serialized object.
const scheduleField = "Lcom/github/kagkarlsson/scheduler/task/schedule/"

// recurs reports whether the data has a schedule beside what the program stores, as that of tasks with a persistent
// schedule (ScheduleAndData): serialized, or as JSON, where the object "schedule" names its type.
func (e *execution) recurs() bool {
	if bytes.HasPrefix(e.Data, []byte(streamMagic)) {
		return bytes.Contains(e.Data, []byte(scheduleField))
	}
	var data struct {
		Schedule map[string]json.RawMessage `json:"schedule"`
	}
	return json.Unmarshal(e.Data, &data) == nil && data.Schedule["type"] != nil
}

// params sets the params from task_data, which a serializer of the program's choice has written.
func (e *execution) params(i *Item) {
	switch {
	case len(e.Data) == 0:
	case strings.HasPrefix(string(e.Data), streamMagic):
		if i.Task.Params = javaParams(e.Data); i.Task.Params == nil {
			e.opaque(i)
		}
	case jsonParams(e.Data) != nil:
		i.Task.Params = jsonParams(e.Data)
	case utf8.Valid(e.Data) && !strings.ContainsRune(string(e.Data), 0):
		i.Task.Params = map[string]string{"data": string(e.Data)}
	default:
		e.opaque(i)
	}
}

// javaParams returns a serialized map of texts and numbers as params, and a single one as the param data. It returns nil
// for anything else.
func javaParams(data []byte) map[string]string {
	v, err := readJavaObject(data)
	if err != nil {
		return nil
	}
	if m, ok := v.(*javaObject); ok {
		if params, err := m.texts(); err == nil {
			return params
		}
	}
	if text, err := scalar(v); err == nil {
		return map[string]string{"data": text}
	}
	return nil
}

func (e *execution) opaque(i *Item) {
	i.Task.Params = map[string]string{"data_base64": base64.StdEncoding.EncodeToString(e.Data)}
	i.note("its data is neither text nor JSON; the param data_base64 has it")
}

// jsonParams returns the members of an object of JSON as params: texts as they are, all else as JSON. It
// returns nil for what is not an object, or has null or no member.
func jsonParams(text []byte) map[string]string {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil || len(members) == 0 {
		return nil
	}
	params := map[string]string{}
	for name, value := range members {
		var s string
		if json.Unmarshal(value, &s) == nil && len(value) > 0 && value[0] == '"' {
			params[name] = s
		} else {
			params[name] = string(value)
		}
	}
	return params
}

// job is a row of river_job.
type job struct {
	ID                   int64
	Kind, State, Queue   string
	At                   int64 // scheduled_at, in ms since 1970
	Attempt, MaxAttempts int32
	Args                 []byte
	Tags                 []string
	Priority             int32
}

// item returns what stands for a job.
func (j *job) item() *Item {
	name := fmt.Sprint(j.ID)
	switch j.State {
	case "available", "scheduled", "retryable", "running":
	case "pending":
		return without(name, "it is pending: it waits for another job, and not for an instant")
	default:
		return without(name, "it is %s", j.State)
	}
	if reason := kindFault(j.Kind); reason != "" {
		return without(name, "%s", reason)
	}
	if fault := task.InstantFault(task.Instant(j.At)); fault != "" {
		return without(name, "its scheduled_at %s", fault)
	}
	i := &Item{Name: name, Next: task.Instant(j.At), Task: &perceptorv1.Task{
		Kind: j.Kind, Type: perceptorv1.Task_ONE_SHOT, BeginTime: instant(j.At), IdempotencyKey: keyOf("river", name), Tags: j.Tags, Params: jsonParams(j.Args),
		RetryPolicy: &perceptorv1.RetryPolicy{MaxAttempts: max(j.MaxAttempts-j.Attempt, 1)},
	}}
	if j.State == "running" {
		i.note("it is running now, and will run again here unless it ends before")
	}
	if j.Queue != "default" {
		i.note("the queue %q is not taken over; choose a kind for it", j.Queue)
	}
	if j.Priority > 1 {
		i.note("the priority %d is not taken over", j.Priority)
	}
	if i.Task.Params == nil && len(j.Args) > 0 && string(j.Args) != "{}" && string(j.Args) != "null" {
		i.Task.Params = map[string]string{"args": string(j.Args)}
	}
	return i
}
