package server

import (
	"context"
	"crypto/sha256"
	"errors"

	"golang.org/x/sync/errgroup"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// keyedAtOnce is how many tasks with an idempotency_key of one call are on their
// way to the store at the same time.
const keyedAtOnce = 128

// keyedAdd is a task with an idempotency_key: each is stored by itself.
type keyedAdd struct {
	place   int
	request task.AddRequest
	result  task.AddResult
	err     error
}

// keyFault returns what is wrong with an idempotency_key; nil: nothing.
func keyFault(key string) *task.Fault {
	return printableFault("idempotency_key", key, task.MaxKeyBytes)
}

// newKeyedAdd returns the request of a task with a key.
func newKeyedAdd(tenant *Tenant, place int, t *perceptorv1.Task, spec task.Spec, upsert bool) *keyedAdd {
	h := sha256.New()
	h.Write(bodyOf(t))
	h.Write(spec.ParamsWire)
	k := &keyedAdd{place: place, request: task.AddRequest{
		Tenant: tenant.ID, Key: t.IdempotencyKey, Upsert: upsert, KeepBegin: t.BeginTime == nil, Specs: []task.Spec{spec},
	}}
	h.Sum(k.request.Hash[:0])
	return k
}

// addKeyed stores the tasks with keys. What became of each is in its result.
func (s *taskService) addKeyed(ctx context.Context, list []*keyedAdd) {
	var group errgroup.Group
	group.SetLimit(keyedAtOnce)
	for _, k := range list {
		group.Go(func() error {
			k.result, k.err = s.store.Add(ctx, k.request)
			if k.err == nil && len(k.result.Items) != 1 {
				k.err = errors.New("add: the store did not answer for the task")
			}
			return nil
		})
	}
	_ = group.Wait() // none returns an error
}

// tryAgain returns the error of a task with a key that may be stored when the call
// is repeated; nil: there is none.
func (b *batch) tryAgain() error {
	for _, k := range b.keyed {
		if code := task.CodeOf(k.err); k.err != nil && (code == task.Unavailable || code == task.ResourceExhausted) {
			return k.err
		}
	}
	return nil
}

// faultsOf returns the faults of an error of package task.
func faultsOf(err error) []task.Fault {
	var e *task.Error
	if errors.As(err, &e) {
		return e.Faults
	}
	return nil
}
