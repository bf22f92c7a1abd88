package shards

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// keyedRequest asks for a task under a key that lies in the bundle's database.
func (b *bundle) keyedRequest(body byte, change ...func(*task.Spec)) task.AddRequest {
	r := task.AddRequest{Tenant: b.tenant, KeepBegin: true, Specs: []task.Spec{b.spec(task.Blocking, change...)}}
	for r.Key = ""; r.Key == ""; {
		b.adds++
		if key := fmt.Sprintf("key%d", b.adds); newKeyed(task.AddRequest{Tenant: b.tenant, Key: key, Specs: r.Specs}, 0).home.Database() == b.d {
			r.Key = key
		}
	}
	r.Specs[0].Key = r.Key
	r.Hash[0] = body
	return r
}

// with returns the request with another body.
func with(r task.AddRequest, body byte, change func(*task.Spec)) task.AddRequest {
	s := r.Specs[0]
	change(&s)
	r.Specs, r.Hash[0] = []task.Spec{s}, body
	return r
}

func (b *bundle) addKey(r task.AddRequest) task.AddResult {
	b.t.Helper()
	got, err := b.Add(context.Background(), r)
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

func TestAKeyStoresOneTaskWhateverIsLostAndWhoeverAsks(t *testing.T) {
	var lost atomic.Int32
	lose := func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if point == "add:"+kernel.AfterCommit && lost.Add(1)%3 == 1 {
				return errors.New("connection lost")
			}
			return nil
		}
	}
	b := setup(t, lose).running()
	other := New(b.db.Cluster, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	done := async(func() error { return other.Run(ctx) })
	req := b.keyedRequest(1)
	ids := make(chan task.ID, 60)
	var g errgroup.Group
	for i := range 60 {
		g.Go(func() error {
			s := []*Store{b.Store, other}[i%2]
			for {
				r, err := s.Add(context.Background(), req)
				if err == nil {
					ids <- r.Items[0].ID
				}
				if task.CodeOf(err) != task.Unavailable || err == nil {
					return err
				}
			}
		})
	}
	err := g.Wait()
	cancel()
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	first := <-ids
	for range 59 {
		if id := <-ids; id != first {
			t.Fatalf("ids %s and %s", first, id)
		}
	}
	if pubs := b.claim(task.RangeForm).Publications; len(pubs) != 1 || pubs[0].Task != first {
		t.Fatalf("claimed %+v", pubs)
	}
}

func TestAKeyAnswersForAFinishedTaskAndRefusesAnotherBody(t *testing.T) {
	b := setup(t).running()
	req := b.keyedRequest(1, func(s *task.Spec) { s.Retention = time.Hour })
	id := b.addKey(req).Items[0].ID
	if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
		t.Fatal(err)
	}
	if got := b.addKey(req); !got.Replayed || got.Items[0].ID != id {
		t.Fatalf("the same body again: %+v", got)
	}
	_, err := b.Add(t.Context(), with(req, 2, func(s *task.Spec) { s.Kind = "other" }))
	if task.CodeOf(err) != task.AlreadyExists {
		t.Fatalf("another body: %v", err)
	}
}

// TestAKeyOutlivesAPurgedTask: callers learn why the key of a task that they cannot find is taken.
func TestAKeyOutlivesAPurgedTask(t *testing.T) {
	b := setup(t).running()
	req := b.keyedRequest(1, func(s *task.Spec) { s.Retention = time.Hour })
	id := b.addKey(req).Items[0].ID
	if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
		t.Fatal(err)
	}
	if err := b.PurgeTask(t.Context(), b.tenant, id); err != nil {
		t.Fatal(err)
	}
	if got := b.addKey(req); !got.Replayed || got.Items[0].ID != id {
		t.Errorf("the same body again: %+v", got)
	}
	other := with(req, 2, func(s *task.Spec) { s.Kind = "other" })
	_, err := b.Add(t.Context(), other)
	want := fmt.Sprintf("belonged to task %s, which was added with another body and is removed; the key is kept at least until 20", id)
	if task.CodeOf(err) != task.AlreadyExists || !strings.Contains(err.Error(), want) {
		t.Errorf("another body: %v, want %q", err, want)
	}
	other.Upsert = true
	if got := b.addKey(other); got.Replayed || got.Updated || got.Items[0].ID == id {
		t.Errorf("an upsert: %+v", got)
	}
}

func TestARequestIDThatLooksLikeAKeyIsNone(t *testing.T) {
	b := setup(t).running()
	req := b.keyedRequest(1)
	id := b.addKey(req).Items[0].ID
	plain := task.AddRequest{Tenant: b.tenant, RequestID: req.Key, Specs: []task.Spec{b.spec(task.OneShot)}}
	if got := b.addKey(plain); got.Replayed || got.Items[0].ID == id {
		t.Fatalf("a request_id met a key: %+v", got)
	}
}

func TestARefusedTaskTakesNoKey(t *testing.T) {
	b := setup(t).running()
	req := b.keyedRequest(1, func(s *task.Spec) { s.Begin, s.End = 1, b.now })
	if got := b.addKey(req); len(got.Items[0].Faults) == 0 {
		t.Fatalf("added: %+v", got)
	}
	if id, err := b.TaskOfKey(t.Context(), b.tenant, req.Key); task.CodeOf(err) != task.NotFound {
		t.Fatalf("the key of a refused task names task %d, %v", id, err)
	}
	good := with(req, 2, func(s *task.Spec) { s.End = task.Never })
	if got := b.addKey(good); got.Replayed || got.Items[0].ID == 0 {
		t.Fatalf("the corrected task: %+v", got)
	}
}

func TestUpsertReplacesTheTermsWhereverTheTaskIs(t *testing.T) {
	for _, p := range everyPlace {
		t.Run(p.String(), func(t *testing.T) {
			b := setup(t, nearOnly).running()
			req := b.keyedRequest(1, b.inHours(3), func(s *task.Spec) { s.Interval = time.Hour })
			id := b.addKey(req).Items[0].ID
			b.put(p, pack.Hour, id)
			up := with(req, 2, func(s *task.Spec) { s.Kind, s.Begin, s.ParamsWire = "other", task.Never, nil })
			up.Upsert = true
			if got := b.addKey(up); !got.Updated || got.Replayed || got.Items[0].ID != id {
				t.Fatalf("upsert: %+v", got)
			}
			if got := b.addKey(up); got.Updated || !got.Replayed || got.Items[0].ID != id {
				t.Fatalf("the same upsert again: %+v", got)
			}
			if found, err := b.TaskOfKey(t.Context(), b.tenant, req.Key); err != nil || found != id {
				t.Fatalf("the task of the key is %d, %v, want %d", found, err, id)
			}
			row, err := b.Get(t.Context(), b.tenant, id)
			if err != nil || row.Kind != "other" || row.Version != 2 || row.Begin != req.Specs[0].Begin || row.Key != req.Key {
				t.Fatalf("the task is %+v, %v", row, err)
			}
			up.Upsert = false
			if got := b.addKey(up); !got.Replayed {
				t.Fatalf("an add with the body of the upsert: %+v", got)
			}
			if _, err := b.Add(t.Context(), req); task.CodeOf(err) != task.AlreadyExists {
				t.Fatalf("an add with the body before: %v", err)
			}
		})
	}
}

func TestUpsertOfAFinishedTaskAddsOneNewTask(t *testing.T) {
	b := setup(t).running()
	req := b.keyedRequest(1)
	old := b.addKey(req).Items[0].ID
	if _, err := b.Cancel(t.Context(), b.tenant, old); err != nil {
		t.Fatal(err)
	}
	req.Upsert = true
	ids := make(chan task.ID, 30)
	var g errgroup.Group
	for i := range 30 {
		g.Go(func() error {
			r := with(req, byte(1+i%3), func(s *task.Spec) { s.Kind = fmt.Sprint("k", i%3) })
			got, err := b.Add(context.Background(), r)
			if err == nil {
				ids <- got.Items[0].ID
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	fresh := <-ids
	for range 29 {
		if id := <-ids; id != fresh {
			t.Fatalf("ids %s and %s", fresh, id)
		}
	}
	rows := b.rows()
	row := rows[kernel.KeyOf(b.tenant, fresh, 0)]
	if fresh == old || len(rows) != 1 || row == nil {
		t.Fatalf("task %s after %s: %v", fresh, old, rows)
	}
	// The key has the body of the terms that the task has.
	var n byte
	if _, err := fmt.Sscanf(row.Kind, "k%d", &n); err != nil {
		t.Fatal(err)
	}
	req.Upsert = false
	if got := b.addKey(with(req, 1+n, func(s *task.Spec) { s.Kind = row.Kind })); !got.Replayed || got.Items[0].ID != fresh {
		t.Fatalf("an add with the body of the task: %+v", got)
	}
}

func TestUpsertCannotChangeTheType(t *testing.T) {
	b := setup(t).running()
	req := b.keyedRequest(1)
	b.addKey(req)
	up := with(req, 2, func(s *task.Spec) { s.Type, s.Interval, s.MaxCount = task.OneShot, 0, 1 })
	up.Upsert = true
	if got := b.addKey(up); len(got.Items[0].Faults) != 1 || got.Items[0].Faults[0].Field != "type" {
		t.Fatalf("upsert: %+v", got)
	}
}

func TestAKeyLivesAsLongAsItsTask(t *testing.T) {
	b := setup(t).running()
	req := b.keyedRequest(1, func(s *task.Spec) { s.Retention = 48 * time.Hour })
	id := b.addKey(req).Items[0].ID
	known := func() bool {
		if _, _, err := b.Purge(t.Context(), b.d); err != nil {
			t.Fatal(err)
		}
		return b.count(`SELECT count(*) FROM task_key`) == 1
	}
	for range 5 {
		b.advance(50 * time.Hour)
		if !known() {
			t.Fatal("the key of a living task is forgotten")
		}
	}
	if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
		t.Fatal(err)
	}
	b.advance(47 * time.Hour)
	if !known() {
		t.Fatal("the key of a finished task is forgotten before the task")
	}
	b.advance(50 * time.Hour)
	if known(); known() {
		t.Fatal("the key of a task that is forgotten is still there")
	}
	if id, err := b.TaskOfKey(t.Context(), b.tenant, req.Key); task.CodeOf(err) != task.NotFound {
		t.Fatalf("a key that is forgotten names task %d, %v", id, err)
	}
}

func TestATriggerIsRepeatedSafelyAlsoAfterTheEnd(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.OneShot, b.inHours(1)))[0]
	var g errgroup.Group
	for range 10 {
		g.Go(func() error {
			seq, _, err := b.Trigger(context.Background(), b.tenant, id, "once")
			if err == nil && seq != 1 {
				err = fmt.Errorf("run %d", seq)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Trigger(t.Context(), b.tenant, id, "another"); task.CodeOf(err) != task.FailedPrecondition {
		t.Fatalf("a trigger while the run is open: %v", err)
	}
	pubs := b.claim(task.RangeForm).Publications
	if len(pubs) != 1 || pubs[0].Attempt != 1 || pubs[0].ScheduledAt != b.now {
		t.Fatalf("claimed %+v", pubs)
	}
	if got := b.report(success(id, 1, 1, 7)); got[0] != task.Accepted {
		t.Fatal(got)
	}
	if seq, replayed, err := b.Trigger(t.Context(), b.tenant, id, "once"); seq != 1 || !replayed || err != nil {
		t.Fatalf("the trigger again after the end: %d, %t, %v", seq, replayed, err)
	}
}

func TestATriggeredRunOfABlockingTaskKeepsThePlannedInstant(t *testing.T) {
	b := setup(t)
	for _, tc := range []struct {
		name  string
		takes time.Duration
		next  time.Duration // of the planned instant, after the add
	}{{"before the planned instant", time.Minute, time.Hour}, {"after it", 2 * time.Hour, time.Hour}} {
		t.Run(tc.name, func(t *testing.T) {
			added := b.now
			id := b.add(b.spec(task.Blocking, b.inHours(1)))[0]
			b.advance(time.Minute)
			if _, _, err := b.Trigger(t.Context(), b.tenant, id, ""); err != nil {
				t.Fatal(err)
			}
			b.claim(task.RangeForm)
			b.start(7, attempt(id, 1, 1))
			b.advance(tc.takes)
			if got := b.report(success(id, 1, 1, 7)); got[0] != task.Accepted {
				t.Fatal(got)
			}
			row := b.rows()[kernel.KeyOf(b.tenant, id, 0)]
			if row.ScheduledAt != added.Add(tc.next) || row.DueAt != max(row.ScheduledAt, b.now) || row.State != task.Scheduled {
				t.Fatalf("the next run is at %s, due %s", row.ScheduledAt, row.DueAt)
			}
		})
	}
}

// The answer to an upsert may be lost, and its task may have ended when the call is repeated.
func TestARepeatedUpsertAddsNothingWhenItsTaskHasEnded(t *testing.T) {
	b := setup(t).running()
	first := b.keyedRequest(1)
	first.Upsert, first.RequestID = true, "first"
	edit := with(first, 2, func(s *task.Spec) { s.Kind = "edited" })
	edit.RequestID = "edit"
	next := with(first, 3, func(s *task.Spec) { s.Kind = "next" })
	next.RequestID = "next"
	end := func(id task.ID) {
		t.Helper()
		if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
	}
	repeat := func(r task.AddRequest, want task.ID) {
		t.Helper()
		if got := b.addKey(r); got.Items[0].ID != want || !got.Replayed {
			t.Errorf("the repeated upsert %s: %+v, want task %s and nothing stored", r.RequestID, got, want)
		}
		if got, known, err := b.Replay(t.Context(), r); err != nil || !known || got.Items[0].ID != want {
			t.Errorf("Replay of the upsert %s: %+v, %v, %v, want task %s", r.RequestID, got, known, err, want)
		}
	}
	old := b.addKey(first).Items[0].ID
	if got := b.addKey(edit); !got.Updated || got.Items[0].ID != old {
		t.Fatalf("the edit: %+v", got)
	}
	end(old)
	repeat(first, old)
	repeat(edit, old)
	fresh := b.addKey(next).Items[0].ID
	if fresh == old {
		t.Fatal("another upsert has added nothing")
	}
	end(fresh)
	repeat(next, fresh)
	// Another body, or no request_id, is another request.
	other := with(next, 4, func(s *task.Spec) { s.Kind = "other" })
	last := b.addKey(other).Items[0].ID
	end(last)
	other.RequestID = ""
	if got := b.addKey(other); got.Replayed || got.Items[0].ID == last {
		t.Errorf("an upsert without a request_id: %+v", got)
	}
}

// A caller that has read the task of a key changes that one only, whenever its call arrives.
func TestAnUpsertThatExpectsATaskChangesNoOther(t *testing.T) {
	b := setup(t).running()
	body := byte(0)
	upsert := func(id task.ID, version int32) task.AddRequest {
		body++
		r := with(b.keyedRequest(1), body, func(s *task.Spec) { s.Kind = fmt.Sprint("kind", body) })
		r.Key, r.Upsert, r.RequestID, r.Expected = "expected", true, fmt.Sprint("request", body), &task.Expected{ID: id, Version: version}
		return r
	}
	refused := func(r task.AddRequest) {
		t.Helper()
		if got, err := b.Add(t.Context(), r); task.CodeOf(err) != task.Aborted {
			t.Errorf("%s, which expects %+v: %+v, %v, want another version", r.RequestID, *r.Expected, got, err)
		}
	}
	repeated := func(r task.AddRequest, id task.ID) {
		t.Helper()
		if got := b.addKey(r); got.Items[0].ID != id || !got.Replayed {
			t.Errorf("%s again: %+v, want task %s and nothing stored", r.RequestID, got, id)
		}
		if got, known, err := b.Replay(t.Context(), r); err != nil || !known || got.Items[0].ID != id {
			t.Errorf("Replay of %s: %+v, %v, %v, want task %s", r.RequestID, got, known, err, id)
		}
	}
	refused(upsert(task.NewID(1, 0), 1)) // the key is not known
	add := upsert(0, 0)
	if _, known, err := b.Replay(t.Context(), add); known || err != nil {
		t.Errorf("Replay before the add: %v, %v", known, err)
	}
	id := b.addKey(add).Items[0].ID
	repeated(add, id)
	refused(upsert(0, 0))
	edit := upsert(id, 1)
	if got := b.addKey(edit); !got.Updated || got.Items[0].ID != id {
		t.Errorf("the edit: %+v", got)
	}
	last := upsert(id, 2)
	b.addKey(last)
	repeated(edit, id)
	refused(upsert(id, 2))
	same := last
	same.RequestID, same.Expected = "same", &task.Expected{ID: id, Version: 3}
	repeated(same, id)
	if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
		t.Fatal(err)
	}
	for _, r := range []task.AddRequest{add, edit, last, same} {
		repeated(r, id)
	}
	refused(upsert(id, 3))
}
