package shards

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// paramsOf encodes params as they are stored.
func paramsOf(t testing.TB, p *perceptorv1.Params) []byte {
	t.Helper()
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

func TestAPatchChangesParamsAndPayloadApart(t *testing.T) {
	t.Parallel()
	stored := &perceptorv1.Params{Entries: map[string]string{"a": "1", "b": "2"}, Payload: []byte("old"), ContentType: "text/plain"}
	for name, c := range map[string]struct {
		patch task.ParamsPatch
		want  *perceptorv1.Params
	}{
		"params":            {task.ParamsPatch{Set: map[string]string{"b": "3"}, Remove: []string{"a"}}, &perceptorv1.Params{Entries: map[string]string{"b": "3"}, Payload: []byte("old"), ContentType: "text/plain"}},
		"another payload":   {task.ParamsPatch{Payload: &task.Payload{Data: []byte("new")}}, &perceptorv1.Params{Entries: stored.Entries, Payload: []byte("new")}},
		"the default type":  {task.ParamsPatch{Payload: &task.Payload{Data: []byte("new"), ContentType: task.DefaultContentType}}, &perceptorv1.Params{Entries: stored.Entries, Payload: []byte("new")}},
		"no payload":        {task.ParamsPatch{RemovePayload: true}, &perceptorv1.Params{Entries: stored.Entries}},
		"removed, then set": {task.ParamsPatch{RemovePayload: true, Payload: &task.Payload{Data: []byte("1"), ContentType: "application/json"}}, &perceptorv1.Params{Entries: stored.Entries, Payload: []byte("1"), ContentType: "application/json"}},
	} {
		wire, err := mergeParams(100)(paramsOf(t, stored), &c.patch)
		got := &perceptorv1.Params{}
		if err == nil {
			err = proto.Unmarshal(wire, got)
		}
		if diff := cmp.Diff(c.want, got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
	// The entries have 4 bytes.
	if _, err := mergeParams(100)(paramsOf(t, stored), &task.ParamsPatch{Payload: &task.Payload{Data: make([]byte, 96)}}); err != nil {
		t.Errorf("exactly the limit: %v", err)
	}
	if _, err := mergeParams(100)(paramsOf(t, stored), &task.ParamsPatch{Payload: &task.Payload{Data: make([]byte, 97)}}); err == nil || !strings.Contains(err.Error(), "together have 101 bytes") {
		t.Errorf("one byte more: %v", err)
	}
}

func TestAPatchKeepsWhatNewerProgramsHaveStored(t *testing.T) {
	t.Parallel()
	newer := protowire.AppendString(protowire.AppendTag(nil, 4, protowire.BytesType), "of a newer program")
	wire, err := mergeParams(100)(append(paramsOf(t, &perceptorv1.Params{Payload: []byte("x")}), newer...), &task.ParamsPatch{Set: map[string]string{"a": "1"}})
	if err != nil || !bytes.HasSuffix(wire, newer) || !bytes.Contains(wire, []byte("x")) {
		t.Errorf("%q, %v", wire, err)
	}
}

// TestAPayloadIsWithItsTaskWhereverItGoes follows a task from each place through an edit, a
// run, a change by its handler, a failure of its last attempt, and a replay.
func TestAPayloadIsWithItsTaskWhereverItGoes(t *testing.T) {
	for _, p := range everyPlace {
		t.Run(p.String(), func(t *testing.T) {
			b := setup(t, nearOnly)
			first := paramsOf(t, &perceptorv1.Params{Entries: map[string]string{"a": "1"}, Payload: []byte(`{"n":1}`), ContentType: "application/json"})
			id := b.add(b.spec(task.Blocking, b.inHours(3), func(s *task.Spec) {
				s.Interval, s.Retry.MaxAttempts, s.ParamsWire = time.Hour, 1, first
			}))[0]
			b.put(p, pack.Hour, id)
			read, err := b.Get(t.Context(), b.tenant, id)
			if err != nil || !bytes.Equal(read.Params, first) {
				t.Fatalf("%s, %v", read.Params, err)
			}
			edited := paramsOf(t, &perceptorv1.Params{Entries: map[string]string{"a": "1"}, Payload: []byte("two")})
			b.edit(id, func(s *task.Spec) { s.ParamsWire = edited }) // recalls it
			b.advance(3 * time.Hour)
			b.published(id, 1, edited)
			done := success(id, 1, 1, 7)
			done.Patch = &task.ParamsPatch{Payload: &task.Payload{Data: []byte("three"), ContentType: "text/plain"}}
			if got := b.report(done); got[0] != task.Accepted {
				t.Fatal(got)
			}
			changed := paramsOf(t, &perceptorv1.Params{Entries: map[string]string{"a": "1"}, Payload: []byte("three"), ContentType: "text/plain"})
			b.advance(time.Hour)
			b.published(id, 2, changed)
			if got := b.report(failure(id, 2, 1, 7)); got[0] != task.Accepted {
				t.Fatal(got)
			}
			dead := task.RunID{Task: id, Seq: 2}
			if d, err := b.Dead(t.Context(), b.tenant, dead); err != nil || !bytes.Equal(d.Params, changed) {
				t.Errorf("the dead run has %+v, %v", d, err)
			}
			again, err := b.ReplayDead(context.Background(), b.tenant, dead)
			if err != nil {
				t.Fatal(err)
			}
			b.published(again.ID, 1, changed)
		})
	}
}

// published claims, and expects a run with params. It starts the run.
func (b *bundle) published(id task.ID, seq int64, params []byte) {
	b.t.Helper()
	for _, p := range b.claim(task.RangeForm).Publications {
		if p.Task == id && p.Seq == seq && bytes.Equal(p.Params, params) {
			b.start(7, attempt(id, seq, 1))
			return
		}
		b.t.Errorf("claimed run %s with %q, want %q", p.RunID(), p.Params, params)
	}
	b.t.Fatalf("run %d of task %d was not claimed", seq, id)
}
