package timingspec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/internal/virtualclock"
	"github.com/perceptor/perceptor/internal/virtualtest"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestMain(m *testing.M) {
	testenv.MainWithoutLeaks(m,
		// kfake and kafka-go keep timers and connections for a moment after their end.
		goleak.IgnoreAnyFunction("github.com/segmentio/kafka-go.(*conn).run"),
		goleak.IgnoreAnyFunction("github.com/segmentio/kafka-go.(*connPool).discover"),
	)
}

// story shows sentences of the contract.
type story struct {
	name, cites string
	tell        func(e *stage)
}

// stage is where a story is told. Its time begins at 0, a midnight; instants are
// durations since then.
type stage struct {
	*testing.T
	stack  *virtualtest.Stack
	tenant *virtualtest.Tenant
	kind   string
	zero   time.Time
	ids    []int64
	log    *callLog
}

// callLog are the calls of the handler of a story.
type callLog struct {
	mu     sync.Mutex
	calls  []virtualtest.Ran
	answer client.Handler
}

func (l *callLog) note(r virtualtest.Ran) client.Handler {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, r)
	return l.answer
}

func (l *callLog) all() []virtualtest.Ran {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

// backfilled returns the runs that are ones of a backfill.
func (l *callLog) backfilled() []virtualtest.Ran {
	return slices.DeleteFunc(l.all(), func(c virtualtest.Ran) bool { return c.BackfillOf == 0 })
}

func TestTheContractOfTime(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	s := virtualtest.Start(t, virtualtest.Options{})
	tenant := s.Tenant(t)
	logs, handlers := map[string]*callLog{}, map[string]client.Handler{}
	for _, story := range stories {
		kind := strings.ReplaceAll(story.name, " ", "-")
		l := &callLog{}
		logs[kind] = l
		handlers[kind] = func(ctx context.Context, run *client.Run) error {
			now, err := s.Clock.Now(ctx)
			if err != nil {
				return err
			}
			if answer := l.note(virtualtest.Ran{Run: run, At: now.Now.Time()}); answer != nil {
				return answer(ctx, run)
			}
			return nil
		}
	}
	tenant.Listen(t, handlers)
	for _, story := range stories {
		t.Run(story.name, func(t *testing.T) {
			kind := strings.ReplaceAll(story.name, " ", "-")
			e := &stage{T: t, stack: s, tenant: tenant, kind: kind, log: logs[kind]}
			e.begin(s.Now(t).Truncate(24 * time.Hour).Add(24 * time.Hour))
			defer e.end()
			story.tell(e)
		})
	}
}

// begin moves the clock to the story's midnight.
func (e *stage) begin(midnight time.Time) {
	e.zero = midnight
	e.stack.Advance(e.T, midnight.Sub(e.stack.Now(e.T)))
}

// end leaves nothing that would fire in the next story.
func (e *stage) end() {
	for _, id := range e.ids {
		if _, err := e.tenant.CancelTask(context.WithoutCancel(e.Context()), id); err != nil && !errors.Is(err, client.ErrNotFound) {
			e.Errorf("cancel task %d: %v", id, err)
		}
	}
}

// at is an instant of the story.
func (e *stage) at(since string) time.Time {
	e.Helper()
	d, err := time.ParseDuration(since)
	if err != nil {
		e.Fatal(err)
	}
	return e.zero.Add(d)
}

// add adds a task of the story's kind, which begins at midnight if it does not say.
func (e *stage) add(t client.Task) int64 {
	e.Helper()
	id, err := e.tryAdd(t)
	if err != nil {
		e.Fatal(err)
	}
	return id
}

func (e *stage) tryAdd(t client.Task) (int64, error) {
	t.Kind, t.Retention = e.kind, 7*24*time.Hour
	if t.Retry.Jitter == 0 {
		t.Retry.Jitter = client.NoJitter
	}
	id, err := e.tenant.AddTask(e.Context(), t)
	if err == nil {
		e.ids = append(e.ids, id)
	}
	return id, err
}

// refused expects that a task is not taken, for a fault that names a field.
func (e *stage) refused(field string, t client.Task) {
	e.Helper()
	if _, err := e.tryAdd(t); !errors.Is(err, client.ErrInvalidArgument) || !strings.Contains(err.Error(), field) {
		e.Errorf("%+v: %v; want a fault of %s", t, err, field)
	}
}

// until moves the clock on, as it goes.
func (e *stage) until(since string) {
	e.Helper()
	e.stack.Advance(e.T, e.at(since).Sub(e.stack.Now(e.T)))
}

// away moves the clock on at once, as if the system had been away; then all that
// is due has fired.
func (e *stage) away(since string) {
	e.Helper()
	e.stack.Jump(e.T, e.at(since).Sub(e.stack.Now(e.T)))
	e.stack.Advance(e.T, 0)
}

// answers sets what the handler does from now on.
func (e *stage) answers(h client.Handler) {
	e.log.mu.Lock()
	defer e.log.mu.Unlock()
	e.log.answer = h
}

// fired expects the calls of the handler, in their order: "1h" was scheduled and
// called then, "1h@5h30m" was scheduled then and called later.
func (e *stage) fired(want string) {
	e.Helper()
	var got []string
	for _, c := range e.log.all() {
		text := short(c.ScheduledAt.Sub(e.zero))
		if !c.At.Equal(c.ScheduledAt) {
			text += "@" + short(c.At.Sub(e.zero))
		}
		got = append(got, text)
	}
	if g := strings.Join(got, " "); g != want {
		e.Errorf("fired %q, want %q", g, want)
	}
}

// short writes a duration without parts that are 0.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (e *stage) task(id int64) *client.TaskInfo {
	e.Helper()
	t, err := e.tenant.GetTask(e.Context(), id)
	if err != nil {
		e.Fatal(err)
	}
	return t
}

// is expects the state of a task, the number of its runs and of its missed
// instants.
func (e *stage) is(id int64, s client.State, runs, missed int64) {
	e.Helper()
	if t := e.task(id); t.State != s || t.RunCount != runs || t.MissedCount != missed {
		e.Errorf("the task is %s with %d runs and %d missed, want %s, %d, %d", t.State, t.RunCount, t.MissedCount, s, runs, missed)
	}
}

// missedMetric is what the metric of missed instants says of the tenant.
func (e *stage) missedMetric() float64 {
	return e.stack.Counter(e.T, "perceptor_instants_missed_total", "tenant", e.tenant.Name)
}

// history returns what happened to the runs of a task.
func (e *stage) history(id int64) []*perceptorv1.RunEvent {
	e.Helper()
	request, err := http.NewRequestWithContext(e.Context(), http.MethodGet, fmt.Sprintf("http://%s/v1/tasks/%d/events", e.stack.HTTP, id), nil)
	if err != nil {
		e.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+e.tenant.Token)
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		e.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	var page perceptorv1.ListRunEventsResponse
	body, err := io.ReadAll(response.Body)
	if err == nil {
		err = protojson.Unmarshal(body, &page)
	}
	if err != nil {
		e.Fatalf("%v in %s", err, body)
	}
	return page.GetEvents()
}

// open moves the clock until something has fired whose handler does not end, and
// returns the function that lets it end. The clock stays there. What fires at once after
// causes does not end either.
func (e *stage) open(since string, causes ...func()) (finish func()) {
	e.Helper()
	return e.openWith(since, func(context.Context, *client.Run) error { return nil }, causes...)
}

// openWith is open with what the handler does at its end.
func (e *stage) openWith(since string, end client.Handler, causes ...func()) (finish func()) {
	e.Helper()
	hold := make(chan struct{})
	e.answers(func(ctx context.Context, r *client.Run) error {
		select {
		case <-hold:
			return end(ctx, r)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	before := len(e.log.all())
	for _, cause := range causes {
		cause()
	}
	e.meanwhile(since)
	if n := len(e.log.all()); n == before {
		e.Fatal("nothing has fired")
	}
	e.answers(nil)
	return sync.OnceFunc(func() { close(hold) })
}

// meanwhile moves the clock on while runs are open.
func (e *stage) meanwhile(since string) {
	e.Helper()
	e.stack.AdvanceWith(e.T, e.at(since).Sub(e.stack.Now(e.T)), virtualclock.Options{Settle: 3 * time.Second, LeaveOpen: true})
}
