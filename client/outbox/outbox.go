package outbox

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/perceptor/perceptor/client"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// MaxTasks is the most tasks of one call of AddTasks.
const MaxTasks = 1000

// Config configures an [Outbox]. The zero value is usable.
type Config struct {
	// Schema is the name of the schema with the outbox's tables. Default: [DefaultSchema].
	Schema string
	// Codec encodes the values of params before they are written. It must be that of the
	// listeners. Default (nil): they are written as they are.
	Codec client.Codec
}

// Outbox writes operations into an outbox. It is safe for concurrent use.
type Outbox struct {
	cfg Config
	sql *statements
}

// New returns an outbox. It makes no call.
func New(cfg Config) (*Outbox, error) {
	if cfg.Schema == "" {
		cfg.Schema = DefaultSchema
	}
	if err := checkSchema(cfg.Schema); err != nil {
		return nil, fmt.Errorf("outbox: configuration: %w", err)
	}
	return &Outbox{cfg: cfg, sql: statementsOf(cfg.Schema)}, nil
}

// standard is the outbox of the functions of this package.
var standard = must(New(Config{}))

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// AddTask is [Outbox.AddTask] with the default configuration.
func AddTask(ctx context.Context, tx Tx, t client.Task) error { return standard.AddTask(ctx, tx, t) }

// AddTasks is [Outbox.AddTasks] with the default configuration.
func AddTasks(ctx context.Context, tx Tx, tasks []client.Task) error {
	return standard.AddTasks(ctx, tx, tasks)
}

// UpsertTask is [Outbox.UpsertTask] with the default configuration.
func UpsertTask(ctx context.Context, tx Tx, t client.Task) error {
	return standard.UpsertTask(ctx, tx, t)
}

// CancelTask is [Outbox.CancelTask] with the default configuration.
func CancelTask(ctx context.Context, tx Tx, r Ref) error { return standard.CancelTask(ctx, tx, r) }

// UpdateTask is [Outbox.UpdateTask] with the default configuration.
func UpdateTask(ctx context.Context, tx Tx, r Ref, t client.Task, fields ...string) error {
	return standard.UpdateTask(ctx, tx, r, t, fields...)
}

// TriggerTask is [Outbox.TriggerTask] with the default configuration.
func TriggerTask(ctx context.Context, tx Tx, r Ref) error { return standard.TriggerTask(ctx, tx, r) }

// Ref names a task, by its idempotency key or by its id.
type Ref struct {
	key string
	id  int64
}

// ByKey names the task with an idempotency key.
func ByKey(key string) Ref { return Ref{key: key} }

// ByID names the task with an id. Operations on a task by its id and by its key have no order among
// each other.
func ByID(id int64) Ref { return Ref{id: id} }

func (r Ref) fault() string {
	switch {
	case r.key == "" && r.id <= 0:
		return fmt.Sprintf("id %d: the task is named neither by a key nor by a positive id", r.id)
	case len(r.key) > task.MaxKeyBytes:
		return fmt.Sprintf("idempotency_key has %d bytes; at most %d are allowed", len(r.key), task.MaxKeyBytes)
	case strings.ContainsFunc(r.key, func(c rune) bool { return c < ' ' || c > '~' }):
		return fmt.Sprintf("idempotency_key %.80q has characters that are not printable ASCII", r.key)
	}
	return ""
}

// order is the key by which operations on the task are ordered.
func (r Ref) order() string {
	if r.key != "" {
		return r.key
	}
	return "#" + strconv.FormatInt(r.id, 10)
}

// AddTask adds a task when the transaction commits. A task with an IdempotencyKey is added as
// [client.Client.AddTask] adds it: once under its key. It returns an error of the kind
// [client.ErrInvalidArgument], and writes nothing, if the task breaks a rule that holds everywhere;
// what only the service can know is found when the task is moved. An error of the database makes the
// transaction fail, as PostgreSQL does it.
//
// If two transactions use the same key, the second one waits in this call until the first one ends. Use keys
// in the same order everywhere, or PostgreSQL may find a deadlock and end one of them.
func (o *Outbox) AddTask(ctx context.Context, tx Tx, t client.Task) error {
	body, err := o.encodeAdd(ctx, "AddTask", t)
	if err != nil {
		return fmt.Errorf("outbox: AddTask: %w", err)
	}
	return o.write(ctx, tx, opAdd, t.IdempotencyKey, body)
}

// AddTasks adds up to [MaxTasks] tasks, in one statement. It writes nothing if one of them breaks a rule.
func (o *Outbox) AddTasks(ctx context.Context, tx Tx, tasks []client.Task) error {
	if len(tasks) == 0 {
		return nil
	}
	if len(tasks) > MaxTasks {
		return fmt.Errorf("outbox: AddTasks: %d tasks; at most %d are allowed", len(tasks), MaxTasks)
	}
	keys, bodies, faults := make([][]byte, len(tasks)), make([][]byte, len(tasks)), []error(nil)
	for i, t := range tasks {
		body, err := o.encodeAdd(ctx, "AddTasks", t)
		if err != nil && len(faults) < 10 {
			faults = append(faults, fmt.Errorf("tasks[%d]: %w", i, err))
		}
		keys[i], bodies[i] = []byte(t.IdempotencyKey), body
	}
	if len(faults) > 0 {
		return fmt.Errorf("outbox: AddTasks: %w", errors.Join(faults...))
	}
	if _, err := o.sql.writeMany.Exec(ctx, tx, int16(opAdd), int16(formProto), byteaArray(keys), byteaArray(bodies)); err != nil {
		return fmt.Errorf("outbox: write %d tasks: %w", len(tasks), err)
	}
	return nil
}

// UpsertTask adds a task with an IdempotencyKey when the transaction commits, or gives the unfinished task of the key its
// terms, as [client.Client.AddTask] does with [client.WithUpsert]. Without a Begin that task keeps its own; its Type must be the same.
func (o *Outbox) UpsertTask(ctx context.Context, tx Tx, t client.Task) error {
	if t.IdempotencyKey == "" {
		return fmt.Errorf("outbox: UpsertTask: %w", &client.Error{Op: "UpsertTask", Kind: client.ErrInvalidArgument, Message: "the task has no idempotency_key"})
	}
	body, err := o.encodeAdd(ctx, "UpsertTask", t)
	if err != nil {
		return fmt.Errorf("outbox: UpsertTask: %w", err)
	}
	return o.write(ctx, tx, opUpsert, t.IdempotencyKey, body)
}

func (o *Outbox) encodeAdd(ctx context.Context, op string, t client.Task) ([]byte, error) {
	p, err := client.Encode(ctx, t, o.cfg.Codec)
	if err != nil {
		return nil, named(op, err)
	}
	return proto.Marshal(&perceptorv1.AddTaskRequest{Task: p})
}

// named gives an error the name of the call that the caller has made.
func named(op string, err error) error {
	var refused *client.Error
	if errors.As(err, &refused) {
		refused.Op = op
	}
	return err
}

// CancelTask ends a task when the transaction commits, as [client.Client.CancelTask] does. A task that is not
// known, or not any more, need not be ended: that is no fault.
func (o *Outbox) CancelTask(ctx context.Context, tx Tx, r Ref) error {
	return o.writeOn(ctx, tx, opCancel, r, &perceptorv1.CancelTaskRequest{Id: r.id, IdempotencyKey: r.key})
}

// TriggerTask opens a run of a task when the transaction commits, as [client.Client.TriggerTask] does.
func (o *Outbox) TriggerTask(ctx context.Context, tx Tx, r Ref) error {
	return o.writeOn(ctx, tx, opTrigger, r, &perceptorv1.TriggerTaskRequest{Id: r.id, IdempotencyKey: r.key})
}

// UpdateTask changes fields of a task when the transaction commits, as [client.Client.UpdateTask] does with
// these fields: none means all that are set. It applies to any version of the task.
func (o *Outbox) UpdateTask(ctx context.Context, tx Tx, r Ref, t client.Task, fields ...string) error {
	if r.key != "" {
		t.IdempotencyKey = r.key
	}
	p, err := client.EncodeChange(ctx, t, o.cfg.Codec)
	if err != nil {
		return fmt.Errorf("outbox: UpdateTask: %w", named("UpdateTask", err))
	}
	p.Id = r.id
	q := &perceptorv1.UpdateTaskRequest{Task: p}
	if len(fields) > 0 {
		q.UpdateMask = &fieldmaskpb.FieldMask{Paths: fields}
	}
	return o.writeOn(ctx, tx, opUpdate, r, q)
}

func (o *Outbox) writeOn(ctx context.Context, tx Tx, op Op, r Ref, q proto.Message) error {
	if fault := r.fault(); fault != "" {
		return fmt.Errorf("outbox: %sTask: %s", op, fault)
	}
	body, err := proto.Marshal(q)
	if err != nil {
		return fmt.Errorf("outbox: %sTask: %w", op, err)
	}
	return o.write(ctx, tx, op, r.order(), body)
}

func (o *Outbox) write(ctx context.Context, tx Tx, op Op, key string, body []byte) (err error) {
	if key == "" {
		_, err = o.sql.writeOne.Exec(ctx, tx, int16(op), int16(formProto), body)
	} else {
		_, err = o.sql.writeKeyed.Exec(ctx, tx, int16(op), int16(formProto), key, body)
	}
	if err != nil {
		return fmt.Errorf("outbox: write: %w", err)
	}
	return nil
}

// byteaArray returns an array as PostgreSQL reads it.
func byteaArray(list [][]byte) string {
	n := 2
	for _, b := range list {
		n += 2*len(b) + 6
	}
	text := make([]byte, 0, n)
	text = append(text, '{')
	for i, b := range list {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, `"\\x`...)
		text = hex.AppendEncode(text, b)
		text = append(text, '"')
	}
	return string(append(text, '}'))
}

func sub() fs.FS { return must(fs.Sub(sqlFiles, "sql")) }
