package virtualtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/virtualclock"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

// Now returns the time of the clock.
func (s *Stack) Now(tb testing.TB) time.Time {
	tb.Helper()
	state, err := s.Clock.Now(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return state.Now.Time()
}

// patience bounds calls, the wait for a run, and the start of a listener, on slow machines. settle
// bounds the wait for a run's result at an instant.
const (
	patience = 2 * time.Minute
	settle   = virtualclock.MaxSettle
)

// Advance advances the clock by d, step by step. All tasks due on the way fire, and
// their runs have results when it returns. A run without a result fails the test.
func (s *Stack) Advance(tb testing.TB, d time.Duration) virtualclock.Moved {
	tb.Helper()
	return s.AdvanceWith(tb, d, virtualclock.Options{Settle: settle})
}

// AdvanceWith is [Stack.Advance] with options. For example, these options leave runs
// open that have no result after a second:
//
//	virtualclock.Options{Settle: time.Second, LeaveOpen: true}
func (s *Stack) AdvanceWith(tb testing.TB, d time.Duration, o virtualclock.Options) virtualclock.Moved {
	tb.Helper()
	m, err := s.Clock.AdvanceBy(tb.Context(), d, o)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// Jump moves the clock in one step, as after an outage.
func (s *Stack) Jump(tb testing.TB, d time.Duration) virtualclock.Moved {
	tb.Helper()
	m, err := s.Clock.Jump(tb.Context(), task.At(s.Now(tb).Add(d)), virtualclock.Options{Settle: settle})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// Tenant is a tenant with a client.
type Tenant struct {
	*client.Client
	Name, Token string
	s           *Stack
}

// Tenant creates a tenant. Its tasks are cancelled when the test ends.
func (s *Stack) Tenant(tb testing.TB) *Tenant {
	tb.Helper()
	s.tenants++
	t := &Tenant{Name: fmt.Sprintf("tenant-%d", s.tenants), s: s}
	ctx := tb.Context()
	_, err := s.api.Control().CreateTenant(ctx, control.Tenant{
		Name: t.Name, ParamsBytes: task.DefaultMaxParamsBytes, Retention: task.DefaultRetention, History: task.HistoryAll,
	})
	if err != nil {
		tb.Fatal(err)
	}
	_, t.Token, err = s.api.Control().CreateToken(ctx, control.Token{Scopes: control.TenantScope, Tenant: t.Name, Description: tb.Name(), ExpiresAt: task.Never})
	if err != nil {
		tb.Fatal(err)
	}
	t.Client = t.Dial(tb)
	tb.Cleanup(func() { t.cancelAll(tb) })
	return t
}

// Dial returns a new client of the tenant for the API's current address.
func (t *Tenant) Dial(tb testing.TB) *client.Client {
	tb.Helper()
	c, err := t.dial()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

// ShareCalendars makes all dispatchers know the calendars of the tenant with the names as they
// are now, which takes them some seconds otherwise.
func (t *Tenant) ShareCalendars(tb testing.TB, names ...string) {
	tb.Helper()
	stored, err := t.s.api.Control().Tenant(tb.Context(), t.Name)
	if err != nil {
		tb.Fatal(err)
	}
	for _, d := range t.s.dispatchers {
		d.Calendars().Refresh(tb.Context())
		if _, err := d.Calendars().Load(tb.Context(), stored.ID, names); err != nil {
			tb.Fatal(err)
		}
	}
}

// SetRates changes the rates of the tenant.
func (t *Tenant) SetRates(tb testing.TB, change task.RatesChange) {
	tb.Helper()
	if _, err := t.s.api.Control().UpdateTenant(tb.Context(), t.Name, control.TenantChange{Rates: change}); err != nil {
		tb.Fatal(err)
	}
}

func (t *Tenant) dial() (*client.Client, error) {
	return client.New(client.Config{Address: t.s.GRPC, Token: t.Token, CallTimeout: patience})
}

// Add adds a task and returns its id.
func (t *Tenant) Add(tb testing.TB, what client.Task) int64 {
	tb.Helper()
	id, err := t.AddTask(tb.Context(), what)
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

// cancelAll cancels all tasks of the tenant, so that none fires in the next test.
func (t *Tenant) cancelAll(tb testing.TB) {
	if t.s.stop == nil {
		return // the stack has ended
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := t.dial()
	if err == nil {
		err = errors.Join(cancelTasks(ctx, c), c.Close())
	}
	if err != nil {
		tb.Errorf("cancel the tasks of %s: %v", t.Name, err)
	}
}

func cancelTasks(ctx context.Context, c *client.Client) error {
	for living, err := range c.ListTasks(ctx, client.Filter{}) {
		if err == nil {
			_, err = c.CancelTask(ctx, living.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Listen runs a listener until the test ends or the returned function is called.
func (t *Tenant) Listen(tb testing.TB, handlers map[string]client.Handler) (stop func()) {
	tb.Helper()
	l, err := t.NewListener(client.ListenerConfig{})
	if err != nil {
		tb.Fatal(err)
	}
	for kind, h := range handlers {
		l.Handle(kind, h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(stop)
	return stop
}

// Ran is one call of a handler.
type Ran struct {
	*client.Run
	// At is the time of the clock when the handler was called.
	At time.Time
}

// Runs records the calls of a handler.
type Runs struct {
	mu  sync.Mutex
	all []Ran
}

// All returns the calls so far, in order.
func (r *Runs) All() []Ran {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// Record listens for a kind and records each run. The result of a run is that of
// done, or SUCCESS if done is not given.
func (t *Tenant) Record(tb testing.TB, kind string, done ...client.Handler) *Runs {
	tb.Helper()
	r := &Runs{}
	t.Listen(tb, map[string]client.Handler{kind: r.Handler(t.s, done...)})
	return r
}

// Handler records each run and returns the result of done.
func (r *Runs) Handler(s *Stack, done ...client.Handler) client.Handler {
	return func(ctx context.Context, run *client.Run) error {
		state, err := s.Clock.Now(ctx)
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.all = append(r.all, Ran{run, state.Now.Time()})
		r.mu.Unlock()
		for _, h := range done {
			return h(ctx, run)
		}
		return nil
	}
}
