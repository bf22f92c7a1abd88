package dispatch

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// fakeTracer records what happens to traces.
type fakeTracer struct {
	mu     sync.Mutex
	events []string
}

// Begin implements [Tracer].
func (f *fakeTracer) Begin(p *task.Publication, step string, _, _ time.Time) Trace {
	f.note("begin " + step + " " + p.RunID().String())
	return f
}

func (f *fakeTracer) note(event string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, event)
}

// Send implements [Trace].
func (f *fakeTracer) Send() string { f.note("send"); return "context" }

// Sent implements [Trace].
func (f *fakeTracer) Sent(err error) {
	if err != nil {
		f.note("failed")
		return
	}
	f.note("sent")
}

// End implements [Trace].
func (f *fakeTracer) End() { f.note("end") }

func tracedRecords(n int, traceParent string) []*record {
	records := make([]*record, n)
	for i := range records {
		records[i] = newRecord(&task.Publication{Tenant: 1, Task: task.ID(512 + i), Seq: 1, Origin: task.Origin{TraceParent: traceParent}}, &part{})
	}
	return records
}

func TestATraceFollowsItsRecordThroughEachCall(t *testing.T) {
	t.Parallel()
	f := &fakeTracer{}
	e := newEnv(Config{Tracer: f}, nil, Events{})
	records := append(tracedRecords(1, "00-ab-01"), tracedRecords(1, "")...)
	e.trace(records, StepClaim, time.Now(), time.Now())
	if records[1].trace != nil {
		t.Error("a record of a task without a trace context is traced")
	}
	for _, err := range []error{errors.New("no leader"), nil} {
		pubs, traced := publicationsOf(nil, records, time.Now(), "d")
		if !traced || pubs[0].Trace != "context" || pubs[1].Trace != "" {
			t.Errorf("traced %v, contexts %q and %q", traced, pubs[0].Trace, pubs[1].Trace)
		}
		sent(records, []int{0, 1}, err)
	}
	e.endTraces(records)
	e.endTraces(records)
	want := []string{"begin claim " + records[0].pub.RunID().String(), "send", "failed", "send", "sent", "end"}
	if !slices.Equal(f.events, want) {
		t.Errorf("%q, want %q", f.events, want)
	}
}

func TestTracesCostNoAllocationUnlessTheTaskIsSampled(t *testing.T) {
	const n = 1000
	now := time.Now()
	for name, c := range map[string]struct {
		tracer Tracer
		parent string
	}{
		"off":         {nil, "00-ab-01"},
		"not sampled": {&fakeTracer{}, ""},
	} {
		e, records := newEnv(Config{Tracer: c.tracer}, nil, Events{}), tracedRecords(n, c.parent)
		index, list := make([]int, n), make([]task.Publication, 0, n)
		allocations := testing.AllocsPerRun(10, func() {
			e.trace(records, StepClaim, now, now)
			if pubs, traced := publicationsOf(list, records, time.Now(), "d"); traced || len(pubs) != n {
				t.Error("a record is traced")
			}
			e.endTraces(records)
		})
		if allocations > 0 {
			t.Errorf("%s: %v allocations for %d records", name, allocations, n)
		}
		sent(records, index, nil)
	}
}

// BenchmarkTracesOfAClaim measures what traces add to the claim and the publication of 1,000
// records: with traces off, on for tasks that are not sampled, and for tasks that are. copy is
// the part of it that publishing needs in any case.
func BenchmarkTracesOfAClaim(b *testing.B) {
	const n = 1000
	now := time.Now()
	for _, c := range []struct {
		name   string
		tracer Tracer
		parent string
	}{{"copy", nil, ""}, {"off", nil, "00-ab-01"}, {"not sampled", nopTracer{}, ""}, {"sampled", nopTracer{}, "00-ab-01"}} {
		b.Run(c.name, func(b *testing.B) {
			e, records := newEnv(Config{Tracer: c.tracer}, nil, Events{}), tracedRecords(n, c.parent)
			b.ReportAllocs()
			list := make([]task.Publication, 0, n)
			for b.Loop() {
				if c.name == "copy" {
					copied(records)
					continue
				}
				e.trace(records, StepClaim, now, now)
				publicationsOf(list, records, time.Now(), "d")
				e.endTraces(records)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/record")
		})
	}
}

func copied(records []*record) []task.Publication {
	pubs := make([]task.Publication, len(records))
	for i, r := range records {
		pubs[i] = r.pub
	}
	return pubs
}

// nopTracer traces everything and does nothing.
type nopTracer struct{}

// Begin implements [Tracer].
func (nopTracer) Begin(*task.Publication, string, time.Time, time.Time) Trace { return nopTracer{} }

// Send implements [Trace].
func (nopTracer) Send() string { return "context" }

// Sent implements [Trace].
func (nopTracer) Sent(error) {}

// End implements [Trace].
func (nopTracer) End() {}
