package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/ctxtime"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

const (
	callsOut = 16 // cancels, updates and triggers of a part that are in progress at once
	// forgetsAfter is how long Perceptor surely knows a request id, with time for clocks that differ.
	forgetsAfter = 23 * time.Hour
	// internalTries is how often an operation is sent that Perceptor answers with an internal error.
	internalTries = 10
	versionTries  = 8
)

// Reasons of operations that this package sets aside itself.
const (
	// ReasonUnreadable: the row has no request that can be read.
	ReasonUnreadable = "UNREADABLE"
	// ReasonOutcomeUnknown: the operation was sent without an answer, longer ago than Perceptor remembers
	// request ids; sending it again could make it happen twice.
	ReasonOutcomeUnknown = "OUTCOME_UNKNOWN"
)

// sent is an operation with its request.
type sent struct {
	*row
	request proto.Message
	// unreadable is why it has no request.
	unreadable error
}

// send sends rows that were read just now, and records what becomes of them.
func (m *mover) send(rows []*row) {
	if len(rows) == 0 {
		return
	}
	ctx, cancel := m.sending()
	defer cancel()
	var free, keyed []sent
	for _, x := range rows {
		q, err := x.decode()
		if _, add := q.(*perceptorv1.AddTaskRequest); err == nil && x.key == "" && !add {
			err = fmt.Errorf("%s without a key", x.op) // a row that no function of the outbox writes
		}
		switch {
		case err != nil && x.key == "":
			free = append(free, sent{row: x, unreadable: err})
		case err != nil:
			m.refuse(x, ReasonUnreadable, err.Error())
		case x.key != "" && m.held[x.key] > 0:
			m.postpone([]*row{x})
		case x.key != "":
			keyed = append(keyed, sent{row: x, request: q})
		default:
			free = append(free, sent{row: x, request: q})
		}
	}
	m.sendFree(ctx, free)
	m.sendKeyed(ctx, keyed)
	if m.waits() && m.failures == 0 {
		m.failures, m.retryAt = 1, time.Now().Add(backoff(1, maxBackoff))
	}
}

// sending returns a context for calls. It outlives the part for a moment, so that calls in progress get their
// answers.
func (m *mover) sending() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), m.r.cfg.SendTimeout)
	drain := min(2*time.Second, m.r.cfg.Lease/4)
	stop := context.AfterFunc(m.ctx, func() {
		if ctxtime.Sleep(ctx, drain) {
			cancel()
		}
	})
	return ctx, func() { stop(); cancel() }
}

// sendFree sends tasks without keys of one batch. Perceptor knows what was sent under a request id, so a task must not
// be sent again under another id, nor an id with other tasks. Therefore the batch's id is used only for the whole
// batch: all of it is stored, or none, and none of it is finished before the answer. What is left of a
// batch of which a part is finished is sent singly, as it was before.
func (m *mover) sendFree(ctx context.Context, list []sent) {
	if len(list) == 0 {
		return
	}
	if stale(list[0].row) {
		for _, x := range list {
			m.refuse(x.row, ReasonOutcomeUnknown, unknownText)
		}
		return
	}
	var tasks, unreadable []sent
	for _, x := range list {
		if x.unreadable == nil {
			tasks = append(tasks, x)
		} else {
			unreadable = append(unreadable, x)
		}
	}
	if b := list[0].batch; len(tasks) == 0 || b.single || len(list) < len(b.positions) {
		m.sendSingly(ctx, tasks)
	} else if m.sendWhole(ctx, b, list, tasks) == postponed {
		return
	}
	for _, x := range unreadable {
		m.refuse(x.row, ReasonUnreadable, x.unreadable.Error())
	}
}

// sendWhole sends the tasks of a batch as a whole, and singly if that is refused. If it is postponed, so are all
// operations of the batch.
func (m *mover) sendWhole(ctx context.Context, b *batch, list, tasks []sent) fate {
	results, err := m.tryAdd(ctx, tasks, b.id)
	if b.single = errors.Is(err, client.ErrInvalidArgument) && len(tasks) > 1; b.single {
		m.sendSingly(ctx, tasks)
		return moved
	}
	f := judgement(opAdd, err)
	if f == postponed {
		tasks = list
	}
	m.settle(tasks, results, err)
	return f
}

// sendSingly sends tasks one by one. Those that are postponed stay together.
func (m *mover) sendSingly(ctx context.Context, list []sent) {
	var again []*row
	for i, x := range list {
		results, err := m.tryAdd(ctx, list[i:i+1], x.requestID())
		if err == nil {
			err = results[0].Err
		}
		if m.judged(x.row, err) == postponed {
			m.r.failed(stepSend, err)
			again = append(again, x.row)
		}
	}
	m.postpone(again)
}

// requestID returns a request id for a call about the operation alone.
func (x *row) requestID() string { return x.batch.id + "." + strconv.FormatInt(x.position, 36) }

const unknownText = "it was sent without an answer, longer ago than Perceptor remembers request ids; check whether it has happened before you retry it"

// stale reports whether an operation can no longer be repeated without the danger that it happens twice.
func stale(x *row) bool { return x.unknown && time.Since(x.batch.claimedAt) > forgetsAfter }

// errLost means that the part may belong to another relay.
var errLost = errors.New("the part may have been taken over")

// tryAdd makes one call. It calls nobody if the lease is not surely ours, or if Perceptor is away.
func (m *mover) tryAdd(ctx context.Context, list []sent, id string) ([]client.AddResult, error) {
	tasks := make([]*perceptorv1.Task, len(list))
	for i, x := range list {
		if tasks[i] = x.request.(*perceptorv1.AddTaskRequest).GetTask(); tasks[i] == nil {
			tasks[i] = &perceptorv1.Task{}
		}
	}
	if err := m.maySend(); err != nil {
		return nil, err
	}
	results, err := m.r.cfg.Client.TryAdd(ctx, tasks, id)
	m.called(err)
	return results, err
}

func (m *mover) maySend() error {
	switch {
	case !m.r.holds(m.part):
		return errLost
	case !m.r.gate.open():
		return errLost
	}
	return m.r.fail(stepSend)
}

// called tells the gate about the end of a call, unless the call was ended here.
func (m *mover) called(err error) {
	if err != nil && m.ctx.Err() == nil {
		m.r.gate.shutFor(err)
	}
}

// settle records the outcome of adds.
func (m *mover) settle(list []sent, results []client.AddResult, err error) {
	if err == nil {
		for i, x := range list {
			m.judge(x.row, results[i].Err)
		}
		return
	}
	if judgement(opAdd, err) == postponed {
		m.r.failed(stepSend, err)
	}
	var again []*row
	for _, x := range list {
		if m.judged(x.row, err) == postponed {
			again = append(again, x.row)
		}
	}
	m.postpone(again)
}

// sendKeyed sends operations with keys in rounds, those of one key after each other. The round before is finished
// first: so if operations are sent again after a crash, they are the last ones of their keys, and
// none of them undoes a later one.
func (m *mover) sendKeyed(ctx context.Context, list []sent) {
	for round := 0; len(list) > 0; round++ {
		if round > 0 {
			if err := m.finish(ctx); err != nil {
				m.r.failed(stepFinish, err)
				m.postponeAll(list)
				return
			}
		}
		var heads, rest []sent
		seen := map[string]bool{}
		for _, x := range list {
			switch {
			case m.held[x.key] > 0:
				m.postpone([]*row{x.row})
			case seen[x.key]:
				rest = append(rest, x)
			default:
				seen[x.key] = true
				heads = append(heads, x)
			}
		}
		m.sendHeads(ctx, heads)
		list = rest
	}
}

func (m *mover) postponeAll(list []sent) {
	for _, x := range list {
		m.postpone([]*row{x.row})
	}
}

// sendHeads sends operations on different keys.
func (m *mover) sendHeads(ctx context.Context, heads []sent) {
	var adds, others []sent
	for _, x := range heads {
		if x.op == opAdd {
			adds = append(adds, x)
		} else {
			others = append(others, x)
		}
	}
	for chunk := range slices.Chunk(adds, MaxTasks) {
		results, err := m.tryAdd(ctx, chunk, "")
		if errors.Is(err, client.ErrInvalidArgument) && len(chunk) > 1 {
			m.sendSingly(ctx, chunk)
			continue
		}
		m.settle(chunk, results, err)
	}
	errs := make([]error, len(others))
	var calls sync.WaitGroup
	slots := make(chan struct{}, callsOut)
	for i, x := range others {
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			errs[i] = m.change(ctx, x)
		})
	}
	calls.Wait()
	for i, x := range others {
		m.judge(x.row, errs[i])
	}
}

// errStale stands for an operation whose outcome is not known and cannot become known.
var errStale = errors.New(unknownText)

// change makes the call of an operation on an existing task.
func (m *mover) change(ctx context.Context, x sent) error {
	if err := m.maySend(); err != nil {
		return err
	}
	c := m.r.cfg.Client
	var err error
	switch q := x.request.(type) {
	case *perceptorv1.CancelTaskRequest:
		err = c.TryCancel(ctx, q)
	case *perceptorv1.TriggerTaskRequest:
		if stale(x.row) {
			return errStale
		}
		q.RequestId = x.requestID()
		err = c.TryTrigger(ctx, q)
	case *perceptorv1.UpdateTaskRequest:
		err = m.update(ctx, q)
	case *perceptorv1.AddTaskRequest:
		err = m.upsert(ctx, x.row, q)
	default:
		err = fmt.Errorf("%T is no request about a task", q)
	}
	m.called(err)
	return err
}

// update changes the version of the task that it reads while the part is surely ours. So the call, if it
// arrives late, changes nothing when another relay has done this and a later operation meanwhile.
func (m *mover) update(ctx context.Context, q *perceptorv1.UpdateTaskRequest) (err error) {
	if q.Task == nil {
		q.Task = &perceptorv1.Task{}
	}
	key := q.GetTask().GetIdempotencyKey()
	if q.GetTask().GetId() != 0 {
		key = ""
	}
	for range versionTries {
		var now *perceptorv1.Task
		now, err = m.r.cfg.Client.TryGet(ctx, &perceptorv1.GetTaskRequest{Id: q.GetTask().GetId(), IdempotencyKey: key})
		if err == nil {
			err = m.maySend()
		}
		if err != nil {
			return err
		}
		one := proto.CloneOf(q)
		one.Task.Id, one.Version = now.GetId(), now.GetVersion()
		if err = m.r.cfg.Client.TryUpdate(ctx, one); !errors.Is(err, client.ErrOtherVersion) {
			return err
		}
	}
	return err
}
