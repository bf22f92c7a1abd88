package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// Concurrent AddTask calls share a request. The service stores such a batch in
// one transaction, in one shard, under one request id, which costs a fraction
// of single adds.
const (
	addsPerBatch  = 500
	addLinger     = 3 * time.Millisecond
	addBatchesOut = 8
	// addSlack is how long the answer of a batch may be later than the CallTimeout of its first caller.
	addSlack = 250 * time.Millisecond
)

// pendingAdd is an AddTask call that waits for its answer.
type pendingAdd struct {
	ctx    context.Context
	task   *perceptorv1.Task
	answer chan AddResult // capacity 1
}

func (c *Client) newAdder() *batcher[*pendingAdd] {
	b := newBatcher(addsPerBatch, addBatchesOut, addLinger, c.sendAdds)
	b.busy = 2
	b.size = func(p *pendingAdd) int { return proto.Size(p.task) + 8 }
	b.gone = func(p *pendingAdd) bool { return p.ctx.Err() != nil }
	b.onClose = func(rest []*pendingAdd) { answerAll(rest, ErrClosed) }
	return b
}

// addTogether stores t in a batch with the tasks of concurrent calls. If so many others wait for a service that is away
// that t is still in the queue at the end of CallTimeout, or was just sent, it does not wait longer.
func (c *Client) addTogether(outer context.Context, t *perceptorv1.Task) AddResult {
	ctx, cancel := context.WithTimeout(outer, max(c.cfg.CallTimeout, c.cfg.CallTimeout+addSlack)) // the sum may be above all durations
	defer cancel()
	p := &pendingAdd{ctx: ctx, task: t, answer: make(chan AddResult, 1)}
	if !c.adds.push(p) {
		return AddResult{Err: ErrClosed}
	}
	select {
	case r := <-p.answer:
		return r
	case <-ctx.Done():
		if outer.Err() == nil {
			return AddResult{Err: &Error{Op: "AddTask", Kind: ErrUnavailable, Message: "there was no answer within CallTimeout; many adds wait for the service"}}
		}
		return AddResult{Err: fmt.Errorf("perceptor: AddTask: %w (the task may have been stored)", outer.Err())}
	}
}

// sendAdds sends one batch. All tries use the same request id, so a retry after
// a lost answer stores nothing twice.
func (c *Client) sendAdds(ctx context.Context, batch []*pendingAdd) {
	live := batch[:0]
	for _, p := range batch {
		if p.ctx.Err() == nil { // otherwise the caller is gone and nothing was sent
			live = append(live, p)
		}
	}
	if len(live) == 0 {
		return
	}
	closing := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := cancelWhenAllGone(live, cancel)
	q := make([]*perceptorv1.Task, len(live))
	for i, p := range live {
		q[i] = p.task
	}
	results, err := c.addBatch(ctx, "AddTask", q, "", false)
	stop() // callers that have their answer are gone, too
	for i, p := range live {
		if err != nil && results[i].Err != nil && closing.Err() != nil {
			results[i].Err = ErrClosed
		}
		p.answer <- results[i]
	}
}

// cancelWhenAllGone cancels a batch when the contexts of all its callers have
// ended.
func cancelWhenAllGone(batch []*pendingAdd, cancel func()) (stop func()) {
	left := make(chan struct{}, len(batch))
	for range len(batch) - 1 {
		left <- struct{}{}
	}
	stops := make([]func() bool, len(batch))
	for i, p := range batch {
		stops[i] = context.AfterFunc(p.ctx, func() {
			select {
			case <-left:
			default:
				cancel()
			}
		})
	}
	return func() {
		for _, s := range stops {
			s()
		}
	}
}

func answerAll(batch []*pendingAdd, err error) {
	for _, p := range batch {
		p.answer <- AddResult{Err: err}
	}
}

// addResult converts the outcome of one task of a batch.
func addResult(r *perceptorv1.AddTasksResponse_Result) AddResult {
	if e := r.GetError(); e != nil {
		err := errorOf("AddTask", status.FromProto(e))
		return AddResult{Err: err, again: retriable(err)}
	}
	return AddResult{ID: r.GetId()}
}
