package server

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// maxAgo bounds what a listener says about times. Larger values make no sense.
const maxAgo = 30 * 24 * time.Hour

// timelines makes the timelines of one call of a listener.
type timelines struct {
	listener *task.Listener
	arrived  time.Time
}

func timelinesOf(l *perceptorv1.Listener) timelines {
	t := timelines{arrived: time.Now()}
	if l != nil {
		t.listener = &task.Listener{Name: task.CleanName(l.Name), Host: task.CleanName(l.Host), Version: task.CleanName(l.Version)}
	}
	return t
}

// of returns the timeline that a listener reports; nil if it reports nothing.
func (c *timelines) of(a *perceptorv1.AttemptTimes) *task.Timeline {
	if a == nil && c.listener == nil {
		return nil
	}
	return &task.Timeline{
		ScheduledAt: instantIn(a.GetScheduledMs()), ClaimedAt: instantIn(a.GetClaimedMs()), PublishedAt: instantIn(a.GetPublishedMs()),
		ReceivedAgo: agoIn(a.GetReceivedAgoUs()), BegunAgo: agoIn(a.GetBegunAgoUs()), EndedAgo: agoIn(a.GetEndedAgoUs()),
		Arrived: c.arrived, Dispatcher: task.CleanName(a.GetDispatcher()), Listener: c.listener,
	}
}

func instantIn(ms int64) task.Instant {
	if ms <= 0 || ms >= int64(task.LastInstant) {
		return 0
	}
	return task.Instant(ms)
}

func agoIn(us int64) time.Duration {
	if us <= 0 || us > maxAgo.Microseconds() {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}

// eventOf returns an event of the history as the API shows it.
func eventOf(e *task.RunEvent) *perceptorv1.RunEvent {
	p := &perceptorv1.RunEvent{
		Type: perceptorv1.RunEvent_Type(e.Event), Seq: e.Seq, Attempt: e.Attempt,
		EventTime: timestamp(e.At), ScheduledTime: timestamp(e.ScheduledAt), Detail: e.Detail,
		ClaimTime: known(e.ClaimedAt), PublishTime: known(e.PublishedAt),
		ReceiveTime: moment(e.Received), HandlerBeginTime: moment(e.Begun), HandlerEndTime: moment(e.Ended),
		Dispatcher: e.Dispatcher,
	}
	if l := e.Listener; l != (task.Listener{}) {
		p.Listener = &perceptorv1.Listener{Name: l.Name, Host: l.Host, Version: l.Version}
	}
	return p
}

// moment returns nil for the zero time.
func moment(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
