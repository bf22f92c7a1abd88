package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/perceptor/perceptor/dispatch/fair"
	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// A scheduler guards the fair-sharing scheduler of all databases, and reports tenants that
// become backlogged or no longer are. Its methods may be called concurrently.
type scheduler struct {
	*env
	// turn holds one token: only one claim at a time claims backlogs, and databases wait for
	// the token in first-come order. A claim that takes longer than placeFor gives it back.
	turn chan struct{}

	mu   sync.Mutex
	fair *fair.Scheduler
}

func newScheduler(e *env) *scheduler {
	return &scheduler{env: e, turn: make(chan struct{}, 1), fair: fair.NewScheduler()}
}

// backlogged returns the backlogged tenants in ascending order, read-only.
func (s *scheduler) backlogged() []int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fair.Backlogged()
}

// observeClaim passes a foreground claim to the scheduler, and reports whether a tenant has
// become backlogged, or no longer is.
func (s *scheduler) observeClaim(now time.Time, c *task.Claim, rates map[int32]task.Rates) bool {
	s.mu.Lock()
	began, ended := s.fair.ObserveClaim(now, c, rates), s.fair.EndForgotten(now)
	s.mu.Unlock()
	return s.changed(began, ended)
}

// observeFlow passes the outcome of a flow claim in a database to the scheduler, and reports
// whether the tenant is no longer backlogged.
func (s *scheduler) observeFlow(now time.Time, database int, of fair.Service) bool {
	s.mu.Lock()
	ended := s.fair.ObserveFlow(now, of.Tenant, database, of.Rows, of.More)
	s.mu.Unlock()
	if ended {
		s.events.Backlogged(of.Tenant, false)
	}
	return ended
}

// lagging passes tenants that lag to the scheduler, and reports whether one has become backlogged, or no longer is.
func (s *scheduler) lagging(now time.Time, w fair.Word, part float64) bool {
	s.mu.Lock()
	began, ended := s.fair.ObserveLags(now, w, part), s.fair.EndForgotten(now)
	s.mu.Unlock()
	return s.changed(began, ended)
}

// changed tells of tenants that have become backlogged and of those that no longer are, and reports whether there are any.
func (s *scheduler) changed(began, ended []int32) bool {
	for _, t := range began {
		s.events.Backlogged(t, true)
	}
	for _, t := range ended {
		s.events.Backlogged(t, false)
	}
	return len(began)+len(ended) > 0
}

// limitLagging is [fair.Scheduler.LimitLagging].
func (s *scheduler) limitLagging(now time.Time, grants []*fair.Grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fair.LimitLagging(now, grants)
}

// chargeLagging counts claimed rows of a tenant.
func (s *scheduler) chargeLagging(tenant int32, rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fair.ChargeLagging(time.Now(), tenant, rows)
}

// observePublished passes confirmed records and the lateness of each to the scheduler.
func (s *scheduler) observePublished(now time.Time, records []*record, late []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range records {
		s.fair.ObservePublished(now, &r.pub, r.background, late[i])
	}
}

// takeRows takes the token of s.turn, waits until rows of backlogs may be claimed, and returns
// their number. If ctx ends before, it returns 0 and the token is back.
func (s *scheduler) takeRows(ctx context.Context) int {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for {
		s.mu.Lock()
		n, wait := s.fair.TakeRows(time.Now())
		s.mu.Unlock()
		if n > 0 {
			return n
		}
		if !ctxtime.Sleep(ctx, wait) {
			<-s.turn
			return 0
		}
	}
}

func (s *scheduler) returnRows(rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fair.ReturnRows(rows)
}

func (s *scheduler) balance(grants []*fair.Grant, rates map[int32]task.Rates) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fair.Balance(grants, rates)
}

func (s *scheduler) figures() (backlogged []int32, lagging int, perSecond float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fair.Backlogged(), s.fair.Lagging(time.Now()), s.fair.PerSecond()
}
