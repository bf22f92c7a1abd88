package server

import (
	"context"
	"crypto/sha256"
	"errors"

	"golang.org/x/sync/errgroup"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// keyedAtOnce is the maximum number of tasks with an idempotency_key that one
// call stores concurrently.
const keyedAtOnce = 128

// keyedAdd is a task with an idempotency_key. Each one is stored separately.
type keyedAdd struct {
	place   int
	request task.AddRequest
	result  task.AddResult
	err     error
}

// keyFault returns the fault of an idempotency_key, or nil.
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

// addKeyed stores the tasks with keys. Each result has the outcome.
func (s *taskService) addKeyed(ctx context.Context, tenant *Tenant, b *batch) {
	var group errgroup.Group
	group.SetLimit(keyedAtOnce)
	for _, k := range b.keyed {
		group.Go(func() error {
			if k.err = s.loadCalendars(ctx, tenant.ID, k.request.Specs...); k.err != nil {
				return nil
			}
			k.result, k.err = s.store.Add(ctx, k.request)
			if k.err == nil && len(k.result.Items) != 1 {
				k.err = errors.New("add: the store did not answer for the task")
			}
			s.quotas.upserted(tenant, k)
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	for _, k := range b.keyed {
		b.added += addedBy(k.result, k.err, 1)
	}
}

// noneStored returns the error of a task with a key that a repeated call may store, if no task
// of the call has an outcome. If some have, the others have their errors beside them: the
// database of one key must not hold up those of others.
func (b *batch) noneStored() error {
	if len(b.specs) > 0 {
		return nil
	}
	var again error
	for _, k := range b.keyed {
		code := task.CodeOf(k.err)
		if k.err == nil || code != task.Unavailable && code != task.ResourceExhausted {
			return nil
		}
		again = k.err
	}
	return again
}

// faultsOf returns the faults of an error of package task.
func faultsOf(err error) []task.Fault {
	var e *task.Error
	if errors.As(err, &e) {
		return e.Faults
	}
	return nil
}
