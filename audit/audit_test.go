package audit

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a sink that can fail.
type memory struct {
	mu     sync.Mutex
	events []task.AuditEvent
	err    error
	hold   chan struct{} // if not nil, Write waits for it or its context
}

func (m *memory) Name() string { return "memory" }

func (m *memory) Write(ctx context.Context, events []task.AuditEvent) error {
	m.mu.Lock()
	err, hold := m.err, m.hold
	m.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, events...)
	return nil
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *memory) all() []task.AuditEvent {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.events)
}

// counted counts dropped events by sink.
type counted struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counted) add(sink string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[sink] += n
}

// running runs a recorder until the end of the test.
func running(t *testing.T, c Config) *Recorder {
	t.Helper()
	r := New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// record records an event if it is admitted.
func (r *Recorder) record(t *testing.T, e task.AuditEvent) {
	t.Helper()
	if r.Admit(e) {
		r.Record(t.Context(), e)
	}
}

func TestAnOperatorsEventIsStoredWhenRecordReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		r := running(t, Config{Sinks: []Sink{m}})
		r.record(t, task.AuditEvent{Operator: true, Action: "a"})
		if got := m.all(); len(got) != 1 || got[0].ID <= 0 || got[0].At == 0 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestASinkThatHangsDelaysACallerAtMostByWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{hold: make(chan struct{})}
		r := running(t, Config{Sinks: []Sink{m}})
		began := time.Now()
		r.record(t, task.AuditEvent{Operator: true})
		if took := time.Since(began); took != Wait {
			t.Errorf("the event of an operator took %s, want %s", took, Wait)
		}
		began = time.Now()
		for range 100 {
			r.record(t, task.AuditEvent{Tenant: 1})
		}
		for range 3 {
			r.record(t, task.AuditEvent{Operator: true})
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("events of a tenant, and those of an operator after the first, took %s", took)
		}
		close(m.hold)
		synctest.Wait()
		m.mu.Lock()
		m.hold = nil
		m.mu.Unlock()
		r.record(t, task.AuditEvent{Operator: true, Action: "later"})
		if all := m.all(); all[len(all)-1].Action != "later" {
			t.Error("an operator does not wait for a sink that stores events again")
		}
	})
}

func TestStoreFailsUnlessTheEventIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		r := running(t, Config{Sinks: []Sink{m}})
		if err := r.Store(t.Context(), task.AuditEvent{}); err != nil || len(m.all()) != 1 {
			t.Errorf("got %v, %d events", err, len(m.all()))
		}
		m.fail(errors.New("away"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Store(ctx, task.AuditEvent{}); !errors.Is(err, ErrNotStored) {
			t.Errorf("got %v, want %v", err, ErrNotStored)
		}
		m.fail(nil)
	})
}

func TestEventsWaitForASinkThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{err: errors.New("away")}
		r := running(t, Config{Sinks: []Sink{m}})
		for range 10 {
			r.record(t, task.AuditEvent{Tenant: 1})
		}
		time.Sleep(time.Minute)
		if n := len(m.all()); n != 0 {
			t.Errorf("%d events are stored", n)
		}
		m.fail(nil)
		time.Sleep(2 * lastRetry)
		if n := len(m.all()); n != 10 {
			t.Errorf("%d events are stored, want 10", n)
		}
	})
}

func TestAFullQueueDropsTenantsBeforeOperatorsAndTellsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, lost := &memory{err: errors.New("away")}, &counted{}
		r := New(Config{Sinks: []Sink{m}, Rate: 1_000_000, Dropped: lost.add})
		for range queueEvents {
			r.put(task.AuditEvent{Tenant: 1})
		}
		if want := queueEvents / 4; lost.n["memory"] != want {
			t.Errorf("%d events of tenants were dropped, want %d", lost.n["memory"], want)
		}
		for range queueEvents/4 + 1 {
			r.put(task.AuditEvent{Operator: true, Action: "op"})
		}
		if want := queueEvents/4 + 1; lost.n["memory"] != want {
			t.Errorf("%d events were dropped, want %d: only one more, of the operator", lost.n["memory"], want)
		}
		m.fail(nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		synctest.Wait()
		all := m.all()
		told := all[slices.IndexFunc(all, func(e task.AuditEvent) bool { return e.Action == task.AuditDropped })]
		if len(all) != queueEvents+1 || told.Changes[0].After != "1025" {
			t.Errorf("%d events are stored; of dropped ones %+v is told", len(all), told)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestATenantsLimitAffectsNeitherOthersNorOperators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, lost := &memory{}, &counted{}
		r := running(t, Config{Sinks: []Sink{m}, Rate: 2, Dropped: lost.add})
		for range 150 { // 2 per second, 100 at once
			r.record(t, task.AuditEvent{Tenant: 1, TenantName: "greedy"})
		}
		r.record(t, task.AuditEvent{Tenant: 1, Operator: true, Action: "op"})
		r.record(t, task.AuditEvent{Tenant: 2, Action: "other"})
		time.Sleep(tellEvery + time.Second)
		count := map[string]int{}
		var told task.AuditEvent
		for _, e := range m.all() {
			count[e.Action]++
			if e.Action == task.AuditDropped {
				told = e
			}
		}
		if count[""] != 100 || count["op"] != 1 || count["other"] != 1 || lost.n[""] != 50 {
			t.Errorf("stored %v, dropped %v", count, lost.n)
		}
		if told.Tenant != 1 || told.TenantName != "greedy" || len(told.Changes) != 1 || told.Changes[0].After != "50" {
			t.Errorf("told: %+v", told)
		}
		r.record(t, task.AuditEvent{Tenant: 1, Action: "later"})
		time.Sleep(time.Second)
		if got := m.all(); got[len(got)-1].Action != "later" {
			t.Error("the tenant gets no new tokens")
		}
	})
}

func TestAStopHandsOverWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		r := New(Config{Sinks: []Sink{m}})
		for range 1000 {
			r.put(task.AuditEvent{Tenant: 1})
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Run(ctx); err != nil || len(m.all()) != 1000 {
			t.Errorf("got %v; %d events are stored", err, len(m.all()))
		}
		m.fail(errors.New("away"))
		r.put(task.AuditEvent{Tenant: 1})
		began := time.Now()
		if err := r.Run(ctx); err != nil || time.Since(began) > stopWait+lastRetry {
			t.Errorf("with a sink that fails: %v after %s", err, time.Since(began))
		}
	})
}

func TestTextsAreCutAndValid(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	e := task.AuditEvent{Object: "a\x00b\xffc", Actor: long, Changes: []task.AuditChange{
		{Field: "a", After: long}, {Field: "b", Before: long, After: long}, {Field: "c", Before: long, After: long},
		{Field: "d", Before: long, After: long}, {Field: "e", Before: long, After: long}, {Field: "f", After: "x"},
	}}
	clean(&e)
	if e.Object != "a?b?c" || len(e.Actor) > task.MaxAuditText || strings.ToValidUTF8(e.Actor, "") != e.Actor {
		t.Errorf("got %q and %q", e.Object, e.Actor)
	}
	if last := e.Changes[len(e.Changes)-1]; last.Field != "..." || last.After != "2 more fields" {
		t.Errorf("the last change is %+v", last)
	}
}

func TestLinesGoToANewFileWhenTheOldOneIsRenamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := NewLines(path)
	for i, name := range []string{"first", "second"} {
		if err := l.Write(t.Context(), []task.AuditEvent{{At: 1, ID: int64(i + 1), Action: name, Result: "OK", Changes: []task.AuditChange{{Field: "f", After: "<&>"}}}}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := os.Rename(path, path+".1"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{path + ".1": "first", path: "second"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var e struct{ EventTime, Action string }
		if err := json.Unmarshal(text, &e); err != nil || e.Action != want || strings.Count(string(text), "\n") != 1 || !strings.Contains(string(text), "<&>") {
			t.Errorf("%s: got %s, %v", file, text, err)
		}
		if info, _ := os.Stat(file); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %s", file, info.Mode())
		}
	}
}

func TestAFileThatCannotBeWrittenIsKnownBeforeTheFirstEvent(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, works := range map[string]bool{
		filepath.Join(dir, "new.jsonl"): true, StandardOutput: true, pipe: true, os.DevNull: true,
		filepath.Join(dir, "nowhere", "audit.jsonl"): false, dir: false,
	} {
		if err := CheckFile(path); (err == nil) != works || err != nil && !strings.Contains(err.Error(), "audit.file: open "+path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestABlockedStandardOutputHoldsUpNothing writes to a pipe that nobody reads.
func TestABlockedStandardOutputHoldsUpNothing(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := &Lines{path: StandardOutput, out: writer}
	big := task.AuditEvent{At: 1, ID: 1, Action: "big", Object: strings.Repeat("x", 100_000)}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for range 2 {
		if err := l.Write(ctx, []task.AuditEvent{big}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the end of the context", err)
		}
	}
	m := &memory{}
	r := New(Config{Sinks: []Sink{l, m}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	for range 5 {
		r.record(t, task.AuditEvent{Operator: true, Action: "op"})
	}
	for len(m.all()) < 5 {
		runtime.Gosched()
	}
	stop()
	if err := <-done; err != nil { // after stopWait
		t.Error(err)
	}
	read := make(chan string)
	go func() {
		text, _ := io.ReadAll(reader)
		read <- string(text)
	}()
	if err := l.Write(t.Context(), []task.AuditEvent{big}); err != nil {
		t.Error(err)
	}
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
	if text := <-read; strings.Count(text, "\n") != 1 || !strings.Contains(text, big.Object) {
		t.Errorf("%d lines were written, want the first event once", strings.Count(text, "\n"))
	}
}

// TestDeniedCallsHideNoChangesAndNoGuesses: a flood of calls that cost nothing uses up nothing that
// others need.
func TestDeniedCallsHideNoChangesAndNoGuesses(t *testing.T) {
	l, now := newLimit(2), time.Now()
	allowed := func(e task.AuditEvent, times int) (n int) {
		for range times {
			if l.allow(&e, now) {
				n++
			}
		}
		return n
	}
	denied := task.AuditEvent{Operator: true, Actor: "reader", Result: "PERMISSION_DENIED"}
	if n := allowed(denied, 500); n != 2*burstSeconds {
		t.Errorf("%d denied calls of one operator are recorded, want %d", n, 2*burstSeconds)
	}
	if n := allowed(task.AuditEvent{Operator: true, Actor: "reader"}, 500); n != 500 {
		t.Errorf("%d of 500 changes of operators are recorded", n)
	}
	if n := allowed(task.AuditEvent{Operator: true, Actor: "other", Result: "PERMISSION_DENIED"}, 1); n != 1 {
		t.Error("a denied call of another operator is not recorded")
	}
	allowed(task.AuditEvent{Tenant: 1, Actor: "reader", Result: "PERMISSION_DENIED"}, 500)
	if n := allowed(task.AuditEvent{Tenant: 1, Actor: "operate"}, 1); n != 1 {
		t.Error("a change of a tenant is hidden by its denied calls")
	}
	login := func(actor, source string) task.AuditEvent {
		return task.AuditEvent{Tenant: task.AuditLogins, Actor: actor, Source: source, Result: "UNAUTHENTICATED"}
	}
	allowed(login("", "192.0.2.1:5"), 500)
	if n := allowed(login("pct_known", "192.0.2.1:6"), 5); n != 5 {
		t.Errorf("%d of 5 guesses at a token are recorded after a flood without tokens", n)
	}
	allowed(login("pct_known", "[2001:db8::1]:5"), 500)
	if allowed(login("pct_known", "[2001:db8::2]:5"), 1) != 0 || allowed(login("pct_known", "[2001:db8:1::2]:5"), 1) != 1 {
		t.Error("IPv6 addresses of one network of 64 bits have one limit, others another")
	}
}
