package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/perceptor/perceptor/task"
)

// recorder is a TracerProvider that keeps its spans in the order in which they
// end.
type recorder struct {
	noop.TracerProvider
	mu      sync.Mutex
	changed *sync.Cond
	n       byte
	spans   []*span
}

type span struct {
	noop.Span
	r      *recorder
	name   string
	config trace.SpanConfig
	sc     trace.SpanContext
	parent trace.SpanContext
	attrs  []attribute.KeyValue
	status codes.Code
}

func newRecorder() *recorder {
	r := &recorder{}
	r.changed = sync.NewCond(&r.mu)
	return r
}

func (r *recorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{r: r} }

type tracer struct {
	noop.Tracer
	r *recorder
}

func (t tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.r.n++
	s := &span{r: t.r, name: name, config: trace.NewSpanStartConfig(opts...), parent: trace.SpanContextFromContext(ctx)}
	s.sc = trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, t.r.n}, SpanID: trace.SpanID{2, t.r.n}, TraceFlags: trace.FlagsSampled})
	return trace.ContextWithSpan(ctx, s), s
}

func (s *span) SpanContext() trace.SpanContext         { return s.sc }
func (s *span) SetStatus(c codes.Code, _ string)       { s.status = c }
func (s *span) SetAttributes(kv ...attribute.KeyValue) { s.attrs = append(s.attrs, kv...) }
func (s *span) IsRecording() bool                      { return true }
func (s *span) End(...trace.SpanEndOption) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.spans = append(s.r.spans, s)
	s.r.changed.Broadcast()
}

// await returns the spans once there are n.
func (r *recorder) await(n int) []*span {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.spans) < n {
		r.changed.Wait()
	}
	return slices.Clone(r.spans)
}

func traceContext(flags trace.TraceFlags) context.Context {
	return trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{0xab, 15: 1}, SpanID: trace.SpanID{0xcd, 7: 2}, TraceFlags: flags,
	}))
}

const traceOfContext = "00-ab000000000000000000000000000001-cd00000000000002-01"

func TestASampledTraceTravelsWithTheTask(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	for name, c := range map[string]struct {
		ctx  context.Context
		want string
	}{
		"sampled":     {traceContext(trace.FlagsSampled), traceOfContext},
		"not sampled": {traceContext(0), ""},
		"no trace":    {context.Background(), ""},
	} {
		b.svc.with(func() { b.svc.tasks = nil })
		one := Task{Kind: "k", Type: OneShot}
		if _, err := b.client.AddTask(c.ctx, one); err != nil {
			t.Fatal(err)
		}
		if _, err := b.client.AddTask(c.ctx, one, WithRequestID("given")); err != nil {
			t.Fatal(err)
		}
		if _, err := b.client.AddTasks(c.ctx, []Task{one, one}); err != nil {
			t.Fatal(err)
		}
		b.svc.with(func() {
			if len(b.svc.tasks) != 4 {
				t.Fatalf("%d tasks", len(b.svc.tasks))
			}
			for _, p := range b.svc.tasks {
				if p.GetTraceParent() != c.want {
					t.Errorf("%s: %q", name, p.GetTraceParent())
				}
			}
		})
	}
}

func TestAHandlerHasASpanThatLinksToTheAdd(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	r := newRecorder()
	b.client = b.newClient(Config{TracerProvider: r})
	inner := make(chan trace.SpanContext, 3)
	b.listen(ListenerConfig{}, map[string]Handler{
		"good": func(ctx context.Context, _ *Run) error { inner <- trace.SpanContextFromContext(ctx); return nil },
		"bad": func(ctx context.Context, _ *Run) error {
			inner <- trace.SpanContextFromContext(ctx)
			return errors.New("sad")
		},
		"ugly": func(ctx context.Context, _ *Run) error { inner <- trace.SpanContextFromContext(ctx); panic("no") },
	})
	good, bad, ugly := newRunOf(1, task.OneShot, "good", nil), newRunOf(2, task.OneShot, "bad", nil), newRunOf(3, task.OneShot, "ugly", nil)
	good.TraceParent = traceOfContext
	b.publish(good, bad, ugly)
	for _, s := range r.await(6) { // each handler and each report
		links := s.config.Links()
		if strings.HasPrefix(s.name, "report ") {
			continue
		}
		switch s.name {
		case "process good":
			if len(links) != 1 || traceParentOf(links[0].SpanContext) != traceOfContext || !links[0].SpanContext.IsRemote() || s.status != codes.Unset {
				t.Errorf("links %+v, status %s", links, s.status)
			}
			if !slices.Contains(s.config.Attributes(), attribute.String("perceptor.run_id", good.RunID().String())) ||
				!slices.Contains(s.attrs, attribute.String("perceptor.outcome", "SUCCESS")) {
				t.Errorf("attributes %v, %v", s.config.Attributes(), s.attrs)
			}
		case "process bad", "process ugly":
			if len(links) != 0 || s.status != codes.Error {
				t.Errorf("%s: links %+v, status %s", s.name, links, s.status)
			}
		default:
			t.Errorf("a span %q", s.name)
		}
		if s.config.SpanKind() != trace.SpanKindConsumer || !s.config.NewRoot() {
			t.Errorf("%s: kind %s, new root %v", s.name, s.config.SpanKind(), s.config.NewRoot())
		}
		if sc := within(t, "the handler", inner); !sc.IsValid() {
			t.Errorf("the handler has no span: %+v", sc)
		}
	}
}

func traceParentOf(sc trace.SpanContext) string {
	return traceParent(trace.ContextWithSpanContext(context.Background(), sc))
}

func TestAnAddHasASpanWhichIsTheOneThatIsLinkedTo(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	r := newRecorder()
	c := b.newClient(Config{TracerProvider: r})
	ctx := traceContext(trace.FlagsSampled)
	if _, err := c.AddTask(ctx, Task{Kind: "k", Type: OneShot}); err != nil {
		t.Fatal(err)
	}
	s := r.await(1)[0]
	if s.name != "AddTask" || s.config.SpanKind() != trace.SpanKindProducer || traceParentOf(s.parent) != traceOfContext {
		t.Errorf("span %q, kind %s, under %+v", s.name, s.config.SpanKind(), s.parent)
	}
	b.svc.with(func() {
		if got := b.svc.tasks[0].GetTraceParent(); got != traceParentOf(s.sc) {
			t.Errorf("the task has %s, the span is %+v", got, s.sc)
		}
	})
	if _, err := c.AddTasks(ctx, make([]Task, 3)); err != nil {
		t.Fatal(err)
	}
	if s := r.await(2)[1]; s.name != "AddTasks" || !slices.Contains(s.config.Attributes(), attribute.Int("messaging.batch.message_count", 3)) {
		t.Errorf("span %q %v", s.name, s.config.Attributes())
	}
}

func TestTheSpanOfAddTasksHasTheirKindAndIDs(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	r := newRecorder()
	c := b.newClient(Config{TracerProvider: r})
	got, err := c.AddTasks(t.Context(), []Task{{Kind: "k", Type: OneShot}, {Kind: "k", Type: OneShot}})
	if err != nil {
		t.Fatal(err)
	}
	s := r.await(1)[0]
	for _, want := range []attribute.KeyValue{attribute.String("perceptor.kind", "k"), attribute.Int64Slice("perceptor.task_ids", []int64{got[0].ID, got[1].ID})} {
		if !slices.Contains(s.attrs, want) {
			t.Errorf("the span has %v and not %v", s.attrs, want)
		}
	}
	mixed := []Task{{Kind: "a"}, {Kind: "b"}}
	if a := ofTasks(mixed, []AddResult{{ID: 7}, {Err: ErrInvalidArgument}}); !slices.Equal(a, []attribute.KeyValue{attribute.Int64Slice("perceptor.task_ids", []int64{7})}) {
		t.Errorf("two kinds, of which one is refused: %v", a)
	}
	if a := ofTasks(make([]Task, 1000), make([]AddResult, 1000)); len(a[len(a)-1].Value.AsInt64Slice()) != maxSpanTasks {
		t.Errorf("the span of a thousand tasks has %d ids", len(a[len(a)-1].Value.AsInt64Slice()))
	}
}

func TestWhatIsNoTraceContextLinksToNothing(t *testing.T) {
	for _, s := range []string{"", "00", "00-0-0-01", "00-00000000000000000000000000000000-cd00000000000002-01", "a-b-c-d"} {
		if sc := spanContext(s); sc.IsValid() {
			t.Errorf("%q became %+v", s, sc)
		}
	}
}

func TestHandlerAndReportContinueTheTraceOfTheDispatcher(t *testing.T) {
	t.Parallel()
	const published = "00-11112222333344445555666677778888-1111222233334444-01"
	traced, untraced := newRunOf(1, task.OneShot, "k", nil), newRunOf(2, task.OneShot, "k", nil)
	traced.TraceParent, traced.Trace = traceOfContext, published
	untraced.Trace = published // somebody else's header: the add was not sampled
	for name, provider := range map[string]trace.TracerProvider{"with a provider": newRecorder(), "without": nil} {
		b := setup(t, 1)
		b.client = b.newClient(Config{TracerProvider: provider})
		b.listen(ListenerConfig{}, map[string]Handler{"k": func(context.Context, *Run) error { return nil }})
		b.publish(traced, untraced)
		b.svc.await(t, "2 results", func() bool { return len(b.svc.results) == 2 })
		sent := map[int64]string{}
		b.svc.with(func() {
			for _, r := range b.svc.results {
				sent[r.GetAttempt().GetTaskId()] = r.GetTraceParent()
			}
		})
		r, _ := provider.(*recorder)
		if r == nil {
			if sent[int64(traced.Task)] != published || sent[int64(untraced.Task)] != "" {
				t.Errorf("%s: the results carry %v", name, sent)
			}
			continue
		}
		handlers, reports := map[attribute.Value]*span{}, map[attribute.Value]*span{}
		for _, s := range r.await(4) {
			id := attribute.NewSet(s.config.Attributes()...)
			key, _ := id.Value("perceptor.task_id")
			if s.name == "process k" {
				handlers[key] = s
			} else {
				reports[key] = s
			}
		}
		key := attribute.Int64Value(int64(traced.Task))
		if h := handlers[key]; h.config.NewRoot() || traceParentOf(h.parent) != published {
			t.Errorf("%s: the handler is under %+v", name, h.parent)
		}
		if h := handlers[attribute.Int64Value(int64(untraced.Task))]; !h.config.NewRoot() {
			t.Errorf("%s: a header that does not count is the parent of the handler", name)
		}
		report := reports[key]
		if report.name != "report k" || report.config.SpanKind() != trace.SpanKindClient || !report.parent.Equal(handlers[key].sc) {
			t.Errorf("%s: the report %q is under %+v", name, report.name, report.parent)
		}
		if sent[int64(traced.Task)] != traceParentOf(report.sc) {
			t.Errorf("%s: the results carry %v", name, sent)
		}
	}
}
