package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/perceptor/perceptor/client"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// # Upserts
//
// An upsert that a frozen relay sends late would undo a later operation on the key. So it is sent in a form that is void by
// then: as an add, which does nothing once the key exists, or as an update of the version that was read. Only the
// successor of a task that has ended needs the upsert of the API; its call has to begin, and to be answered, while the lease is valid.

// upsert adds the task of a key, or replaces its terms.
func (m *mover) upsert(ctx context.Context, x *row, q *perceptorv1.AddTaskRequest) (err error) {
	t := q.GetTask()
	if t.GetIdempotencyKey() == "" {
		return &client.Error{Op: "UpsertTask", Kind: client.ErrInvalidArgument, Message: "the task has no idempotency_key"}
	}
	taken := false // the key is known, though perhaps not its task
	for range versionTries {
		var now *perceptorv1.Task
		now, err = m.r.cfg.Client.TryGet(ctx, &perceptorv1.GetTaskRequest{IdempotencyKey: t.IdempotencyKey})
		gone := errors.Is(err, client.ErrNotFound)
		if err != nil && !gone {
			return err
		}
		if err = m.maySend(); err != nil {
			return err
		}
		switch {
		case gone && !taken:
			err = m.addOne(ctx, t)
			taken = errors.Is(err, client.ErrAlreadyExists)
		case gone || ended(now):
			return m.succeed(ctx, x, t)
		default:
			err = m.replace(ctx, t, now)
		}
		// What was read has changed meanwhile.
		if !errors.Is(err, client.ErrAlreadyExists) && !errors.Is(err, client.ErrOtherVersion) {
			return err
		}
	}
	return err
}

func ended(t *perceptorv1.Task) bool {
	return t.GetState() != perceptorv1.Task_SCHEDULED && t.GetState() != perceptorv1.Task_RUNNING
}

// addOne adds a task whose key is new.
func (m *mover) addOne(ctx context.Context, t *perceptorv1.Task) error {
	results, err := m.r.cfg.Client.TryAdd(ctx, []*perceptorv1.Task{t}, "")
	if err != nil {
		return err
	}
	return results[0].Err
}

// succeed adds a task under the key of one that has ended. If the answer is lost, the operation is sent again, perhaps when
// the new task has ended, too: the id tells that it is the same one.
func (m *mover) succeed(ctx context.Context, x *row, t *perceptorv1.Task) error {
	ctx, cancel := context.WithDeadline(ctx, m.r.leasedUntil(m.part))
	defer cancel()
	return m.r.cfg.Client.TryUpsert(ctx, t, x.requestID())
}

// replace replaces all terms of the version of a task that was read.
func (m *mover) replace(ctx context.Context, t, now *perceptorv1.Task) error {
	t = proto.CloneOf(t)
	t.Id = now.GetId()
	if t.BeginTime == nil {
		t.BeginTime = now.GetBeginTime()
	}
	err := m.r.cfg.Client.TryUpdate(ctx, &perceptorv1.UpdateTaskRequest{Task: t, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"*"}}, Version: now.GetVersion()})
	if err != nil {
		return fmt.Errorf("replace the terms of the task: %w", err)
	}
	return nil
}

// leasedUntil returns until when a part is surely ours.
func (r *Relay) leasedUntil(p int16) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leased[p]
}
