package shards

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// TestAnAddWhoseSchedulesTakeLongDelaysNoOther: neither the adds of others in its database nor one of its
// connections waits while they are computed.
func TestAnAddWhoseSchedulesTakeLongDelaysNoOther(t *testing.T) {
	var once sync.Once
	calls, computing, release := 0, make(chan struct{}), make(chan struct{})
	b := setup(t, nearOnly, func(c *Config) {
		c.Windows = func(int32, []string, []string) (*task.Windows, task.MissingCalendar) { // as if a search took that long
			if calls++; calls == 1 {
				time.Sleep(2 * slowAdd)
				return nil, task.MissingCalendar{}
			}
			once.Do(func() { close(computing) })
			<-release
			return nil, task.MissingCalendar{}
		}
	}).running()
	request := func(tenant int32, specs ...task.Spec) task.AddRequest {
		return task.AddRequest{Tenant: tenant, RequestID: b.requestID(), Specs: specs}
	}
	slow := b.spec(task.NonBlocking, func(s *task.Spec) { s.Interval, s.Exclude = time.Hour, []string{"x"} })
	var result task.AddResult
	done := async(func() (err error) {
		result, err = b.Add(t.Context(), request(b.tenant, slices.Repeat([]task.Spec{slow}, 3)...))
		return err
	})
	<-computing
	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := b.Add(within, request(b.tenant+1, b.spec(task.OneShot))); err != nil {
		t.Errorf("the add of another tenant: %v", err)
	}
	if n := b.db.Pool(b.d).Stat().AcquiredConns(); n > 0 {
		t.Errorf("%d connections are in use while schedules are computed", n)
	}
	close(release)
	if err := <-done; err != nil || len(result.Items) != 3 {
		t.Fatalf("%+v, %v", result, err)
	}
	for _, item := range result.Items {
		if s, err := b.Get(t.Context(), b.tenant, item.ID); err != nil || s.ScheduledAt == 0 || s.CreatedAt != b.now {
			t.Errorf("task %d: %+v, %v", item.ID, s, err)
		}
	}
}

// TestAnAddWhoseSchedulesTakeTooLongIsRefusedInTime: its caller learns why while it waits for the answer.
func TestAnAddWhoseSchedulesTakeTooLongIsRefusedInTime(t *testing.T) {
	const search = 50 * time.Millisecond
	var searches atomic.Int64
	b := setup(t, nearOnly, func(c *Config) {
		c.Windows = func(int32, []string, []string) (*task.Windows, task.MissingCalendar) { // as if a search took that long
			searches.Add(1)
			time.Sleep(search)
			return nil, task.MissingCalendar{}
		}
	}).running()
	slow := b.spec(task.NonBlocking, func(s *task.Spec) { s.Interval, s.Exclude = time.Hour, []string{"x"} })
	const left = 2 * time.Second
	_, err := b.Add(unhurried{t.Context(), left}, task.AddRequest{Tenant: b.tenant, RequestID: b.requestID(), Specs: slices.Repeat([]task.Spec{slow}, task.MaxTasksPerAdd)})
	var e *task.Error
	if !errors.As(err, &e) || e.Reason != task.ReasonRequestTooLarge {
		t.Error(err)
	}
	if n := searches.Load(); n < 2 || n > int64(left/search)*3/4 {
		t.Errorf("%d searches of %s were made; half of the %s of the call is left to its transaction", n, search, left)
	}
}

// unhurried is the context of a call that has a time left, however slow the machine is: it never ends.
type unhurried struct {
	context.Context //nolint:containedctx // it is one
	left            time.Duration
}

func (u unhurried) Deadline() (time.Time, bool) { return time.Now().Add(u.left), true }
