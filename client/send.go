package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// A listener sends its calls in batches of at most this many entries. A result may
// wait up to reportLinger for others; a start or a heartbeat waits only briefly.
// The number of waiting entries is bounded by the engine's pending records.
//
// A busy service answers results after half a second, because it stores many at
// once. With few calls in flight, that latency would bound the number of runs per
// second; hence the high value of callsOut.
const (
	reportsPerCall = 2000
	startsPerCall  = 1000
	beatsPerCall   = 1000
	callsOut       = 16
	reportLinger   = 100 * time.Millisecond
	startLinger    = 5 * time.Millisecond
	beatLinger     = 10 * time.Millisecond
	handBackLinger = 50 * time.Millisecond
)

type senders struct {
	starts, checks, reports, handBacks *batcher[action]
	beats                              *batcher[beat]
}

// beat is a heartbeat to send. done is called with its outcome.
type beat struct {
	f    *execution
	done func(error)
}

func newSenders(g *engine) senders {
	api, holder, listener := g.l.c.runs, g.l.holder, g.l.identity()
	s := senders{
		starts: newBatcher(startsPerCall, callsOut, startLinger, func(ctx context.Context, acts []action) {
			g.deliver(ctx, "StartRuns", acts, func(ctx context.Context, acts []action) ([]*perceptorv1.RunReply, error) {
				a, err := api.StartRuns(ctx, &perceptorv1.StartRunsRequest{Holder: holder, Attempts: attemptsOf(acts)})
				return a.GetReplies(), err
			}, g.startAnswered)
		}),
		checks: newBatcher(startsPerCall, callsOut, startLinger, func(ctx context.Context, acts []action) {
			g.deliver(ctx, "CheckRuns", acts, func(ctx context.Context, acts []action) ([]*perceptorv1.RunReply, error) {
				a, err := api.CheckRuns(ctx, &perceptorv1.CheckRunsRequest{Attempts: attemptsOf(acts)})
				if status.Code(err) == codes.Unimplemented {
					return allAccepted(len(acts)), nil // the service is older than this call
				}
				return a.GetReplies(), err
			}, g.startAnswered)
		}),
		reports: newBatcher(reportsPerCall, callsOut, reportLinger, func(ctx context.Context, acts []action) {
			g.deliver(ctx, "ReportResults", acts, func(ctx context.Context, acts []action) ([]*perceptorv1.RunReply, error) {
				a, err := api.ReportResults(ctx, &perceptorv1.ReportResultsRequest{Holder: holder, Results: g.resultsOf(acts), Listener: listener, IdlePercent: g.idlePercent()})
				return a.GetReplies(), err
			}, func(a action, r task.Reply, _ time.Time) { g.reportAnswered(a, r) })
		}),
		handBacks: newBatcher(startsPerCall, 1, handBackLinger, func(ctx context.Context, acts []action) {
			g.deliver(ctx, "HandBackRuns", acts, func(ctx context.Context, acts []action) ([]*perceptorv1.RunReply, error) {
				a, err := api.HandBackRuns(ctx, &perceptorv1.HandBackRunsRequest{Holder: holder, Attempts: attemptsOf(acts), Listener: listener, Times: g.timesOf(acts), Kinds: kindsOf(acts)})
				return a.GetReplies(), err
			}, func(a action, r task.Reply, _ time.Time) { g.handBackAnswered(a, r) })
		}),
		beats: newBatcher(beatsPerCall, callsOut, beatLinger, g.sendBeats),
	}
	s.reports.size = func(a action) int { return resultSize(a.res) }
	s.beats.onClose = func(rest []beat) {
		for _, b := range rest {
			b.done(ErrStopping)
		}
	}
	return s
}

// runSenders starts the senders, which run until ctx ends.
func (g *engine) runSenders(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() { g.senders.starts.run(ctx) })
	wg.Go(func() { g.senders.checks.run(ctx) })
	wg.Go(func() { g.senders.reports.run(ctx) })
	wg.Go(func() { g.senders.handBacks.run(ctx) })
	wg.Go(func() { g.senders.beats.run(ctx) })
}

// deliver makes one batched call and passes each reply to answer. Without an answer all
// entries are sent again later, whatever the error: a token can be renewed and a service can
// recover. If the service refuses the whole batch, or it is too large for the service, deliver splits it.
func (g *engine) deliver(ctx context.Context, op string, acts []action,
	do func(context.Context, []action) ([]*perceptorv1.RunReply, error),
	answer func(action, task.Reply, time.Time),
) {
	asked := time.Now()
	try, cancel := context.WithTimeout(ctx, tryTimeout)
	replies, err := do(try, acts)
	cancel()
	st := status.Convert(err)
	refused := st.Code() == codes.InvalidArgument || unsendable(st) || oversized(st)
	switch {
	case err == nil && len(replies) == len(acts):
		for i, a := range acts {
			answer(a, replyOf(replies[i]), asked)
		}
		return
	case err == nil:
		err = errors.New("the number of replies differs from the number of entries")
	case refused && len(acts) > 1:
		g.deliver(ctx, op, acts[:len(acts)/2], do, answer)
		g.deliver(ctx, op, acts[len(acts)/2:], do, answer)
		return
	case refused:
		answer(acts[0], task.Reply{Code: task.Invalid, Field: op, Message: st.Message()}, asked)
		return
	}
	if ctx.Err() != nil {
		return
	}
	if suppressed, ok := g.unanswered.allow(); ok {
		g.l.log.Warn("call failed; retrying", "op", op, "entries", len(acts), "suppressed", suppressed, "err", err)
	}
	g.unansweredAgain(acts, retryAfter(err))
}

// sendBeats sends heartbeats once. An execution whose heartbeat had no answer
// schedules another one.
func (g *engine) sendBeats(ctx context.Context, beats []beat) {
	q := &perceptorv1.HeartbeatRunsRequest{Holder: g.l.holder}
	for _, b := range beats {
		q.Attempts = append(q.Attempts, attemptOf(b.f.rec))
	}
	asked := time.Now()
	try, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	a, err := g.l.c.runs.HeartbeatRuns(try, q)
	if err == nil && len(a.GetReplies()) != len(beats) {
		err = errors.New("perceptor: HeartbeatRuns: the number of replies differs from the number of entries")
	}
	for i, b := range beats {
		if err != nil {
			b.f.beatAgain(retryAfter(err))
			b.done(errorOf("HeartbeatRuns", status.Convert(err)))
			continue
		}
		b.done(b.f.beatAnswered(replyOf(a.GetReplies()[i]), asked))
	}
}

func replyOf(r *perceptorv1.RunReply) task.Reply {
	reply := task.Reply{Code: task.Code(r.GetCode()), Lease: r.GetLease().AsDuration(), Field: r.GetField(), Message: r.GetMessage()}
	if t := r.GetTerms(); t != nil {
		if params, err := proto.Marshal(t.GetParams()); err == nil {
			reply.Terms = &task.RunTerms{Version: t.GetVersion(), Kind: t.GetKind(), Params: params}
		}
	}
	return reply
}

func attemptOf(a *arrival) *perceptorv1.Attempt {
	return &perceptorv1.Attempt{TaskId: int64(a.pub.Task), Seq: a.pub.Seq, Attempt: a.pub.Attempt, Version: a.pub.Version}
}

func attemptsOf(acts []action) []*perceptorv1.Attempt {
	list := make([]*perceptorv1.Attempt, len(acts))
	for i, a := range acts {
		list[i] = attemptOf(a.rec)
	}
	return list
}

func kindsOf(acts []action) []string {
	list := make([]string, len(acts))
	for i, a := range acts {
		list[i] = a.rec.pub.Kind
	}
	return list
}

func (g *engine) resultsOf(acts []action) []*perceptorv1.RunResult {
	now := g.since()
	list := make([]*perceptorv1.RunResult, len(acts))
	for i, a := range acts {
		r := a.res
		p := &perceptorv1.RunResult{
			Attempt: attemptOf(a.rec), Outcome: perceptorv1.RunResult_Outcome(r.Outcome), Error: r.Error, Stop: r.Stop, Permanent: r.Permanent,
			Times:       a.rec.timesAt(now),
			TraceParent: a.rec.reportedBy(),
		}
		if r.After > 0 {
			p.RedeliverAfter = durationpb.New(r.After)
		}
		if r.Next != task.Never {
			p.NextExecuteTime = timestamppb.New(r.Next.Time())
		}
		if r.Patch != nil {
			p.ParamsPatch = &perceptorv1.ParamsPatch{
				Set: r.Patch.Set, Remove: r.Patch.Remove, Payload: (*Payload)(r.Patch.Payload).proto(), RemovePayload: r.Patch.RemovePayload,
			}
		}
		list[i] = p
	}
	return list
}

// resultSize estimates the size of a result in a request, in bytes.
func resultSize(r task.Result) int {
	n := 128 + task.TraceParentBytes + len(r.Error)
	if r.Patch != nil {
		for k, v := range r.Patch.Set {
			n += len(k) + len(v) + 12
		}
		for _, k := range r.Patch.Remove {
			n += len(k) + 4
		}
		if p := r.Patch.Payload; p != nil {
			n += len(p.Data) + len(p.ContentType) + 16
		}
	}
	return n
}
