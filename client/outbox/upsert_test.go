package outbox

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/client"
)

func (b *bench) upsert(t client.Task) {
	b.Helper()
	b.within(func(tx pgx.Tx) error { return UpsertTask(b.Context(), tx, t) })
}

func (b *bench) ofKey(key string) *client.TaskInfo {
	b.Helper()
	b.drained()
	info, err := b.api.ByKey(key).Get(b.Context())
	b.must(err)
	return info
}

func TestAnUpsertAddsATaskAndThenReplacesItsTerms(t *testing.T) {
	b := setup(t)
	b.relay()
	first := keyed("k", 1)
	first.Tags, first.Retention = []string{"a"}, time.Hour
	b.upsert(first)
	id := b.ofKey("k").ID
	second := keyed("k", 2)
	second.Begin = time.Time{}
	b.upsert(second)
	got := b.ofKey("k")
	if got.ID != id || got.Params["n"] != "2" || len(got.Tags) != 0 || !got.Begin.Equal(first.Begin.Truncate(time.Millisecond)) {
		t.Errorf("task %d has params %v, tags %v and begins at %s; want task %d with the terms of the second call, and the begin of the first", got.ID, got.Params, got.Tags, got.Begin, id)
	}
	b.within(func(tx pgx.Tx) error {
		return errors.Join(CancelTask(t.Context(), tx, ByKey("k")), UpsertTask(t.Context(), tx, keyed("k", 3)))
	})
	if got := b.ofKey("k"); got.ID == id || got.Params["n"] != "3" {
		t.Errorf("after its end the key has task %d with params %v, want another one", got.ID, got.Params)
	}
	if err := UpsertTask(t.Context(), b.pool, oneShot(1)); !errors.Is(err, client.ErrInvalidArgument) {
		t.Errorf("without a key the answer is %v", err)
	}
}

func TestUpsertsFromSQLHaveTheOrderOfTheirCalls(t *testing.T) {
	b := setup(t)
	for n := range 5 {
		_, err := b.pool.Exec(t.Context(), "SELECT perceptor_outbox.perceptor_upsert('remind', jsonb_build_object('n', $1::int), now() + interval '1 day', '{\"idempotencyKey\": \"k\"}')", n)
		b.must(err)
	}
	if _, err := b.pool.Exec(t.Context(), "SELECT perceptor_outbox.perceptor_upsert('remind')"); err == nil || !strings.Contains(err.Error(), "key is missing") {
		t.Errorf("without a key the answer is %v", err)
	}
	b.relay()
	if got := b.ofKey("k"); got.Params["n"] != "4" {
		t.Errorf("the params are %v, want those of the last call", got.Params)
	}
}

// A frozen relay sends its change when another relay has moved this and a later operation.
func TestAnUpsertThatArrivesLateUndoesNothing(t *testing.T) {
	b := setup(t)
	b.upsert(keyed("k", 0))
	var first *Relay
	stop := b.relay(func(r *Relay) { first = r })
	b.eventually("added", func() bool { return len(b.api.Added()) == 1 })
	thaw, frozen := make(chan struct{}), make(chan struct{})
	b.freezeAt("/AddTask", first, frozen, thaw)
	b.upsert(keyed("k", 1))
	<-frozen
	b.upsert(keyed("k", 2))
	b.relay()
	b.drained()
	close(thaw)
	stop()
	if got := b.ofKey("k"); got.Params["n"] != "2" {
		t.Errorf("the params are %v, want those of the last upsert", got.Params)
	}
}

func TestUpsertsWhoseAnswersAreLostLeaveTheLastTerms(t *testing.T) {
	b := setup(t)
	var calls atomic.Int32
	b.lose = func(method string) bool { // every other one of the first changes
		const lost = 8
		n := int32(0)
		if strings.Contains(method, "Add") || strings.Contains(method, "Update") {
			n = calls.Add(1)
		}
		return n%2 == 1 && n < 2*lost
	}
	b.relay()
	for n := range 12 {
		b.upsert(keyed(fmt.Sprint("k", n%3), n))
	}
	for key := range 3 {
		if got := b.ofKey(fmt.Sprint("k", key)); got.Params["n"] != fmt.Sprint(9+key) {
			t.Errorf("the params of k%d are %v, want n %d", key, got.Params, 9+key)
		}
	}
}

// A relay is killed when an upsert has been done, and before it removes the row. Meanwhile the task ends.
func TestAnUpsertWhoseTaskHasEndedIsNotRepeated(t *testing.T) {
	for _, before := range []string{"new", "another body", "the same body"} {
		t.Run(before, func(t *testing.T) {
			b := setup(t)
			task := keyed("k", 1)
			if before != "new" {
				stop := b.relay()
				old := task
				if before == "another body" {
					old = keyed("k", 0)
				}
				b.upsert(old)
				b.drained()
				stop()
			}
			b.upsert(task)
			change, killed := killedAt(stepFinish, 1)
			stop := b.relay(change)
			b.eventually("killed", killed.Load)
			stop()
			if b.rows() != 1 {
				t.Fatal("the row is removed")
			}
			first, err := b.api.ByKey("k").Get(t.Context())
			b.must(err)
			if first.Params["n"] != "1" {
				t.Fatalf("the params are %v", first.Params)
			}
			_, err = b.api.ByKey("k").Cancel(t.Context())
			b.must(err)
			b.relay()
			if got := b.ofKey("k"); got.ID != first.ID {
				t.Errorf("the key has task %d, want %d: the upsert was done twice", got.ID, first.ID)
			}
		})
	}
}
