package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/perceptor/perceptor/client"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// # Upserts
//
// An upsert that a frozen relay sends late would undo a later operation on the key. So it names the task and the version
// that were read, or that there was none, and is void by then. Only the successor of a task that has ended is added
// without: its call has to begin, and to be answered, while the lease is valid. All of them have the same request id,
// so that a relay that takes over adds nothing in the place of a task that has ended after one of them.

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
		if gone && taken || !gone && ended(now) {
			return m.succeed(ctx, x, t)
		}
		err = m.r.cfg.Client.TryUpsert(ctx, t, x.requestID(), &perceptorv1.AddTaskRequest_Expected{Id: now.GetId(), Version: now.GetVersion()})
		if !errors.Is(err, client.ErrOtherVersion) {
			return err
		}
		taken = gone // what was read has changed meanwhile, or the key outlives its task
	}
	return err
}

func ended(t *perceptorv1.Task) bool {
	return t.GetState() != perceptorv1.Task_SCHEDULED && t.GetState() != perceptorv1.Task_RUNNING
}

// succeed adds a task under the key of one that has ended. If the answer is lost, the operation is sent again, perhaps when
// the new task has ended, too: the id tells that it is the same one, as long as Perceptor remembers it.
func (m *mover) succeed(ctx context.Context, x *row, t *perceptorv1.Task) error {
	if stale(x) {
		return errStale
	}
	ctx, cancel := context.WithDeadline(ctx, m.r.leasedUntil(m.part))
	defer cancel()
	return m.r.cfg.Client.TryUpsert(ctx, t, x.requestID(), nil)
}

// leasedUntil returns until when a part is surely ours.
func (r *Relay) leasedUntil(p int16) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leased[p]
}
