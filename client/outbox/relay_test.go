package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/client"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

var errKilled = errors.New("killed")

// killedAt makes a relay end like a killed process when a step comes for the nth time: after that it
// makes no call and no statement.
func killedAt(step string, n int32) (change func(*Relay), killed *atomic.Bool) {
	killed = new(atomic.Bool)
	var count atomic.Int32
	return func(r *Relay) {
		r.failpoint = func(at string) error {
			if at == step && count.Add(1) == n {
				killed.Store(true)
			}
			if killed.Load() {
				return errKilled
			}
			return nil
		}
	}, killed
}

func TestARelayThatIsKilledAtAnyStepLosesAndRepeatsNothing(t *testing.T) {
	for _, step := range []string{stepClaim, stepRead, stepSend, stepFinish, stepLease} {
		t.Run(step, func(t *testing.T) {
			b := setup(t)
			const rows = 40
			write := func(from int) {
				for n := from; n < from+rows; n++ {
					b.within(func(tx pgx.Tx) error {
						if n%2 == 0 {
							return AddTask(t.Context(), tx, oneShot(n))
						}
						return errors.Join(AddTask(t.Context(), tx, keyed(fmt.Sprint("k", n), n)), TriggerTask(t.Context(), tx, ByKey(fmt.Sprint("k", n))))
					})
				}
			}
			for i := range 3 {
				change, killed := killedAt(step, int32(i+1))
				stop := b.relay(change)
				write(i * rows)
				b.eventually("killed", killed.Load)
				stop()
			}
			b.relay()
			b.drained()
			b.eventually("all added", func() bool { return len(b.added()) == 3*rows })
			for n, times := range b.added() {
				if times != 1 {
					t.Errorf("task %s was added %d times", n, times)
				}
			}
			for n := 1; n < 3*rows; n += 2 {
				info, err := b.api.ByKey(fmt.Sprint("k", n)).Get(t.Context())
				b.must(err)
				if info.RunCount != 1 {
					t.Errorf("task %d has %d runs, want 1", n, info.RunCount)
				}
			}
		})
	}
}

func TestLostAnswersRepeatNothing(t *testing.T) {
	b := setup(t)
	b.lose = func(method string) bool { return !strings.Contains(method, "Preview") && rand.IntN(3) == 0 }
	b.relay()
	b.relay()
	for n := range 60 {
		b.within(func(tx pgx.Tx) error {
			key := fmt.Sprint("k", n%7)
			return errors.Join(AddTask(t.Context(), tx, oneShot(n)), AddTask(t.Context(), tx, keyed(key, key)), TriggerTask(t.Context(), tx, ByKey(fmt.Sprint("none", n))))
		})
	}
	b.drained()
	for n, times := range b.added() {
		if times != 1 {
			t.Errorf("task %s was added %d times", n, times)
		}
	}
	if got := len(b.added()); got != 67 {
		t.Errorf("%d tasks, want 67", got)
	}
}

// freezeAt makes all of a relay stand still before its next call of a method, so that it renews no lease, until thaw is
// closed.
func (b *bench) freezeAt(method string, r *Relay, frozen, thaw chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold = func(_ context.Context, called string) {
		if !strings.HasSuffix(called, method) {
			return
		}
		b.mu.Lock()
		b.hold = nil
		b.mu.Unlock()
		r.mu.Lock()
		close(frozen)
		<-thaw
		r.mu.Unlock()
	}
}

// A relay freezes in the middle of a call; another one takes its parts over and moves later operations on
// the same key. Then the first one continues.
func TestARelayThatFreezesDelaysOthersForALeaseAndUndoesNothing(t *testing.T) {
	b := setup(t)
	b.within(func(tx pgx.Tx) error {
		return errors.Join(AddTask(t.Context(), tx, keyed("k", 0)), AddTask(t.Context(), tx, oneShot("free")))
	})
	thaw, frozen := make(chan struct{}), make(chan struct{})
	var first *Relay
	stop := b.relay(func(r *Relay) { first = r })
	b.eventually("added", func() bool { return len(b.api.Added()) == 2 })
	b.freezeAt("UpdateTask", first, frozen, thaw)
	b.within(func(tx pgx.Tx) error {
		return UpdateTask(t.Context(), tx, ByKey("k"), client.Task{Params: map[string]string{"n": "1"}})
	})
	<-frozen
	b.within(func(tx pgx.Tx) error {
		return UpdateTask(t.Context(), tx, ByKey("k"), client.Task{Params: map[string]string{"n": "2"}})
	})
	b.relay()
	b.drained()
	close(thaw)
	stop()
	info, err := b.api.ByKey("k").Get(t.Context())
	b.must(err)
	if info.Params["n"] != "2" {
		t.Errorf("the task has n %s, want 2: an update that came late has undone it", info.Params["n"])
	}
}

// lines are those of a log.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func TestWhatIsRefusedForGoodBlocksNobodyAndCanBeRetriedOrDiscarded(t *testing.T) {
	b := setup(t)
	ctx := t.Context()
	_, err := b.pool.Exec(ctx, `SELECT perceptor_outbox.perceptor_add('json', '{"n": 1, "deep": {"a": [1]}}', now() + interval '1 hour', '{"idempotencyKey": "j"}')`)
	b.must(err)
	for _, options := range []string{`{"noSuchField": 1}`, `{"type": "WRONG"}`, `{"interval": "60s"}`} {
		_, err := b.pool.Exec(ctx, "SELECT perceptor_outbox.perceptor_add('bad', '{}', NULL, $1::text::jsonb)", options)
		b.must(err)
	}
	_, err = b.pool.Exec(ctx, "INSERT INTO perceptor_outbox.operation (part, op, form, body) VALUES (1, 1, 1, '\\xffff'), (4, 1, 99, '\\x00'), (4, 2, 1, '')")
	b.must(err)
	b.within(func(tx pgx.Tx) error {
		return errors.Join(AddTask(ctx, tx, keyed("k", "first")), AddTask(ctx, tx, keyed("k", "second")), TriggerTask(ctx, tx, ByKey("k")), AddTask(ctx, tx, oneShot("free")))
	})
	var told lines
	b.relay(func(r *Relay) { r.cfg.Log = slog.New(slog.NewTextHandler(&told, nil)) })
	b.drained()
	b.eventually("added", func() bool { return len(b.api.Added()) == 3 })
	info, err := b.api.ByKey("j").Get(ctx)
	b.must(err)
	if info.Params["n"] != "1" || info.Params["deep"] != `{"a": [1]}` || info.Type != client.OneShot {
		t.Errorf("the task of the SQL function is %+v", info)
	}
	if info, err = b.api.ByKey("k").Get(ctx); err != nil || info.RunCount != 1 {
		t.Errorf("the operation behind the refused one was not moved: %+v, %v", info, err)
	}
	list, err := standard.ListRefused(ctx, b.pool, 0, 100)
	b.must(err)
	reasons := map[string]int{}
	var positions []int64
	for _, x := range list {
		reasons[x.Reason]++
		positions = append(positions, x.Position)
		if x.Message == "" || x.RefusedAt.Before(x.WrittenAt) {
			t.Errorf("refused: %+v", x)
		}
		if !strings.Contains(told.text(), fmt.Sprintf(" position=%d ", x.Position)) {
			t.Errorf("the log does not say which operation was set aside: it lacks position %d", x.Position)
		}
	}
	if reasons[ReasonUnreadable] != 5 || reasons["INVALID_FIELD"] != 1 || reasons["IDEMPOTENCY_KEY_REUSED"] != 1 {
		t.Errorf("reasons: %v", reasons)
	}
	n, err := standard.RetryRefused(ctx, b.pool, positions[:2])
	b.must(err)
	b.drained()
	backlog, err := standard.Backlog(ctx, b.pool)
	b.must(err)
	if n != 2 || backlog.Refused != 7 || backlog.Rows != 0 {
		t.Errorf("%d retried; backlog %+v", n, backlog)
	}
	if n, err = standard.DiscardRefused(ctx, b.pool, positions); err != nil || n != 5 {
		t.Errorf("%d discarded, %v; want 5: those that were retried have new positions", n, err)
	}
}

func TestAFunctionRefusesABeginThatIsNoInstantOfATask(t *testing.T) {
	b := setup(t)
	for _, begin := range []string{"infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "1969-12-31 23:59:59+00", "9000-01-01 00:00:01+00"} {
		for _, function := range []string{"perceptor_add", "perceptor_upsert"} {
			_, err := b.pool.Exec(t.Context(), "SELECT perceptor_outbox."+function+`('k', '{}', $1::text::timestamptz, '{"idempotencyKey": "k"}')`, begin)
			if err == nil || !strings.Contains(err.Error(), function+": begin_time") {
				t.Errorf("%s at %s: %v", function, begin, err)
			}
		}
	}
}

func TestARowWithFaultsIsSetAsideWithAllOfThem(t *testing.T) {
	b := setup(t)
	_, err := b.pool.Exec(t.Context(), `SELECT perceptor_outbox.perceptor_add('k', '{}', NULL, '{"type": "NON_BLOCKING", "interval": "1h", "max_cuont": 5}')`)
	b.must(err)
	b.relay()
	b.drained()
	list, err := standard.ListRefused(t.Context(), b.pool, 0, 100)
	b.must(err)
	if len(list) != 1 || list[0].Reason != ReasonUnreadable {
		t.Fatalf("refused: %+v", list)
	}
	for _, fault := range []string{`task.interval: "1h" is not a duration; write seconds with an s`, "task.max_cuont: unknown field; did you mean max_count?"} {
		if !strings.Contains(list[0].Message, fault) {
			t.Errorf("the message is %q, without %q", list[0].Message, fault)
		}
	}
}

func TestTheOutboxWaitsWhilePerceptorIsAwayAndThenMovesAll(t *testing.T) {
	b := setup(t)
	b.api.Refuse(client.ErrUnavailable)
	var gate *gate
	b.relay(func(r *Relay) { gate = r.gate })
	for n := range 20 {
		b.within(func(tx pgx.Tx) error {
			return errors.Join(AddTask(t.Context(), tx, oneShot(n)), AddTask(t.Context(), tx, keyed(fmt.Sprint("k", n), fmt.Sprint("k", n))))
		})
	}
	b.eventually("away", func() bool { return !gate.open() })
	b.within(func(tx pgx.Tx) error { return AddTask(t.Context(), tx, oneShot("last")) })
	b.api.Refuse(nil)
	b.drained()
	if got := len(b.added()); got != 41 {
		t.Errorf("%d tasks, want 41", got)
	}
}

func TestAQuotaDelaysOperationsAndRefusesNone(t *testing.T) {
	b := setup(t)
	b.api.Refuse(client.ErrResourceExhausted)
	var failed atomic.Int32
	b.relay(func(r *Relay) { r.cfg.Events.Failed = func(string, error) { failed.Add(1) } })
	b.within(func(tx pgx.Tx) error {
		return errors.Join(AddTask(t.Context(), tx, oneShot(1)), AddTask(t.Context(), tx, keyed("k", 2)), CancelTask(t.Context(), tx, ByKey("k")))
	})
	b.eventually("refused", func() bool { return failed.Load() > 3 })
	b.api.Refuse(nil)
	b.drained()
	info, err := b.api.ByKey("k").Get(t.Context())
	b.must(err)
	if info.State != client.Cancelled || len(b.api.Added()) != 2 {
		t.Errorf("state %s, %d tasks", info.State, len(b.api.Added()))
	}
}

// TestBatchesThatAreTooLargeForTheServiceAreSentInParts, and one operation that is too large is set aside.
func TestBatchesThatAreTooLargeForTheServiceAreSentInParts(t *testing.T) {
	b := setup(t)
	b.most = 40_000
	large := func(t client.Task, size int) client.Task {
		t.Params = map[string]string{"p": strings.Repeat("x", size)}
		return t
	}
	b.within(func(tx pgx.Tx) error {
		var errs []error
		for n := range 5 {
			errs = append(errs, AddTask(t.Context(), tx, large(oneShot(n), 16_000)), AddTask(t.Context(), tx, large(keyed(fmt.Sprint("k", n), n), 16_000)))
		}
		return errors.Join(append(errs, AddTask(t.Context(), tx, large(oneShot(9), 50_000)))...)
	})
	refused := make(chan string, 1)
	b.relay(func(r *Relay) { r.cfg.Events.Refused = func(_ Op, reason string) { refused <- reason } })
	b.eventually("all but one are added", func() bool { return len(b.api.Added()) == 10 })
	if reason := <-refused; reason != "REQUEST_TOO_LARGE" {
		t.Errorf("set aside because of %s", reason)
	}
}

// TestTasksThatAreSentSinglyHaveTheirOwnRequestIDsAlsoInARetry: the answer of one of them is lost, so it and those behind
// it are sent again.
func TestTasksThatAreSentSinglyHaveTheirOwnRequestIDsAlsoInARetry(t *testing.T) {
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%t", kill), func(t *testing.T) {
			b := setup(t)
			b.most = 40_000
			var calls atomic.Int32
			b.lose = func(method string) bool { return strings.HasSuffix(method, "AddTasks") && calls.Add(1)%4 == 3 }
			b.within(func(tx pgx.Tx) error {
				var errs []error
				for n := range 9 {
					x := oneShot(n)
					x.Params["p"] = strings.Repeat("x", 16_000)
					errs = append(errs, AddTask(t.Context(), tx, x))
				}
				return errors.Join(errs...)
			})
			stop := b.relay()
			if kill {
				b.eventually("some are moved", func() bool { return calls.Load() >= 3 && b.rows() <= 4 })
				stop()
				b.relay()
			}
			b.drained()
			for n := range 9 {
				if times := b.added()[fmt.Sprint(n)]; times != 1 {
					t.Errorf("task %d was added %d times", n, times)
				}
			}
			list, err := standard.ListRefused(t.Context(), b.pool, 0, 10)
			b.must(err)
			for _, x := range list {
				t.Errorf("set aside: %s: %s", x.Reason, x.Message)
			}
		})
	}
}

// Perceptor forgets request ids after a day, so what may have been stored before is not sent again.
func TestWhatWasSentWithoutAnAnswerADayAgoIsSetAside(t *testing.T) {
	b := setup(t)
	b.lose = func(method string) bool {
		return strings.HasSuffix(method, "AddTasks") || strings.HasSuffix(method, "TriggerTask")
	}
	stop := b.relay()
	b.within(func(tx pgx.Tx) error {
		return errors.Join(AddTask(t.Context(), tx, oneShot(1)), TriggerTask(t.Context(), tx, ByKey("k")), AddTask(t.Context(), tx, keyed("other", 2)))
	})
	b.eventually("sent", func() bool { return len(b.api.Added()) == 2 })
	stop()
	b.mu.Lock()
	b.lose, b.calls = nil, nil
	b.mu.Unlock()
	_, err := b.pool.Exec(t.Context(), "UPDATE perceptor_outbox.batch SET claimed_at = claimed_at - interval '1 day'")
	b.must(err)
	b.relay()
	b.drained()
	list, err := standard.ListRefused(t.Context(), b.pool, 0, 10)
	b.must(err)
	for _, x := range list {
		if x.Reason != ReasonOutcomeUnknown && x.Reason != "TASK_NOT_FOUND" {
			t.Errorf("refused: %+v", x)
		}
	}
	for _, q := range b.recorded() {
		if add, ok := q.(*perceptorv1.AddTasksRequest); ok && add.GetTasks()[0].GetIdempotencyKey() == "" {
			t.Error("a task without a key was sent again")
		}
	}
	if len(list) < 1 || len(b.api.Added()) != 2 {
		t.Errorf("%d set aside, %d tasks", len(list), len(b.api.Added()))
	}
}

func TestSeveralRelaysShareThePartsAndTakeOver(t *testing.T) {
	b := setup(t)
	var relays [3]*Relay
	var stops [3]func()
	for i := range relays {
		stops[i] = b.relay(func(r *Relay) { relays[i] = r })
	}
	total := func() (n int) {
		for _, r := range relays {
			n += len(r.held())
		}
		return n
	}
	b.eventually("shared", func() bool {
		return total() == parts && len(relays[0].held()) == 2 && len(relays[1].held()) == 2 && len(relays[2].held()) == 2
	})
	stops[0]()
	stops[1]()
	b.eventually("taken over", func() bool { return len(relays[2].held()) == parts })
}

func TestManyWritersManyRelaysAndEveryAddOnce(t *testing.T) {
	b := setup(t)
	const writers, each = 6, 60
	var left sync.WaitGroup
	stopped := make(chan struct{})
	for range 2 {
		left.Go(func() {
			for i := int32(1); ; i++ {
				select {
				case <-stopped:
					return
				default:
				}
				step := []string{stepClaim, stepRead, stepSend, stepFinish}[rand.IntN(4)]
				change, killed := killedAt(step, 1+rand.Int32N(20))
				stop := b.relay(change)
				for end := time.Now().Add(2 * time.Second); !killed.Load() && time.Now().Before(end); time.Sleep(time.Millisecond) {
					select {
					case <-stopped:
						stop()
						return
					default:
					}
				}
				stop()
			}
		})
	}
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				n := w*each + i
				err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
					if err := AddTask(t.Context(), tx, oneShot(n)); err != nil {
						return err
					}
					if n%5 == 4 {
						return errKilled
					}
					return AddTask(t.Context(), tx, keyed(fmt.Sprint("k", n), fmt.Sprint("k", n)))
				})
				if err != nil && !errors.Is(err, errKilled) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	close(stopped)
	left.Wait()
	b.relay()
	b.drained()
	got := b.added()
	if want := writers * each / 5 * 4 * 2; len(got) != want {
		t.Errorf("%d tasks, want %d", len(got), want)
	}
	for n, times := range got {
		if times != 1 {
			t.Errorf("task %s was added %d times", n, times)
		}
	}
}

// A relay whose polls are an hour away moves what is announced: everything, also what is written while it is busy.
func TestARelayThatListensWaitsForNoPoll(t *testing.T) {
	b := setup(t)
	b.must(Announce(t.Context(), b.pool, true))
	b.must(Announce(t.Context(), b.pool, true))
	b.relay(func(r *Relay) { r.cfg.Listen, r.cfg.Poll = true, time.Hour })
	for n := range 20 {
		b.within(func(tx pgx.Tx) error {
			return errors.Join(AddTask(t.Context(), tx, oneShot(n)), AddTask(t.Context(), tx, keyed(fmt.Sprint("k", n), fmt.Sprint("k", n))))
		})
		if n%2 == 0 { // the relay is idle before the next commit
			b.eventually("moved", func() bool { return len(b.api.Added()) == 2*(n+1) })
		}
	}
	b.eventually("all moved", func() bool { return len(b.api.Added()) == 40 })
}

func TestARelayHearsAgainAfterItsConnectionWasLost(t *testing.T) {
	b := setup(t)
	b.must(Announce(t.Context(), b.pool, true))
	var r *Relay
	b.relay(func(x *Relay) { r = x; r.cfg.Listen, r.cfg.Poll = true, time.Hour })
	b.eventually("listening", r.listening.Load)
	_, err := b.pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_trigger%' AND pid <> pg_backend_pid()")
	b.must(err)
	b.within(func(tx pgx.Tx) error { return AddTask(t.Context(), tx, oneShot(1)) })
	b.eventually("moved", func() bool { return len(b.api.Added()) == 1 })
}

func TestARelayThatListensPollsAnOutboxThatAnnouncesNothing(t *testing.T) {
	b := setup(t)
	b.must(Announce(t.Context(), b.pool, true))
	b.must(Announce(t.Context(), b.pool, false))
	silent := make(chan error, 1)
	b.relay(func(r *Relay) {
		r.cfg.Listen = true
		r.cfg.Events.Failed = func(step string, err error) {
			if step == stepListen {
				select {
				case silent <- err:
				default:
				}
			}
		}
	})
	if err := <-silent; !errors.Is(err, errSilent) {
		t.Errorf("the relay says %v, want %v", err, errSilent)
	}
	b.within(func(tx pgx.Tx) error { return AddTask(t.Context(), tx, oneShot(1)) })
	b.drained()
}

func TestAllFaultsOfAConfigurationAreNamed(t *testing.T) {
	_, err := NewRelay(RelayConfig{Schema: "No", Lease: 1, Poll: time.Hour, SendTimeout: -1, BatchRows: 5000, Name: strings.Repeat("n", 201)})
	for _, want := range []string{"Postgres", "Client", "Schema", "Lease", "Poll", "SendTimeout", "BatchRows", "Name"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
	if _, err := New(Config{Schema: "a;b"}); err == nil {
		t.Error("a schema that is no name is accepted")
	}
}

func TestARelayWithoutTablesSaysWhatToDo(t *testing.T) {
	b := setup(t)
	cfg := b.config()
	cfg.Schema = "elsewhere"
	r, err := NewRelay(cfg)
	b.must(err)
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "perceptorctl relay schema") {
		t.Errorf("error %v", err)
	}
}

// Operations on one key that come in one batch are finished one after the other, so that a relay that takes over
// does not send an update again that a later operation has made void.
func TestATakeOverRepeatsOnlyTheLastOperationOfAKey(t *testing.T) {
	for n := int32(1); n <= 4; n++ {
		t.Run(fmt.Sprint("killed at finish ", n), func(t *testing.T) {
			b := setup(t)
			b.within(func(tx pgx.Tx) error {
				ctx, k := t.Context(), ByKey("k")
				return errors.Join(AddTask(ctx, tx, keyed("k", 0)), UpdateTask(ctx, tx, k, client.Task{Params: map[string]string{"n": "1"}}),
					UpdateTask(ctx, tx, k, client.Task{Params: map[string]string{"n": "2"}}), TriggerTask(ctx, tx, k), CancelTask(ctx, tx, k))
			})
			change, killed := killedAt(stepFinish, n)
			stop := b.relay(change)
			b.eventually("killed", killed.Load)
			stop()
			b.relay()
			b.drained()
			list, err := standard.ListRefused(t.Context(), b.pool, 0, 10)
			b.must(err)
			if len(list) > 0 {
				t.Errorf("set aside: %+v", list)
			}
			last := "0"
			for _, q := range b.recorded() {
				if u, ok := q.(*perceptorv1.UpdateTaskRequest); ok {
					if now := u.GetTask().GetParams()["n"]; now < last {
						t.Errorf("update %s came after %s", now, last)
					} else {
						last = now
					}
				}
			}
		})
	}
}

// While the transaction of a claim waits, another one draws its id, a third one draws id and position, and the second one
// commits a later position. The third one has the highest id of all, and must not be passed over.
func TestATransactionThatBeginsDuringAClaimIsNotPassedOver(t *testing.T) {
	b := setup(t)
	ctx := t.Context()
	r, err := NewRelay(b.config())
	b.must(err)
	_, err = b.pool.Exec(ctx, "UPDATE perceptor_outbox.lease SET holder = $1, until = 'infinity'", r.id)
	b.must(err)
	m := newMover(ctx, r, b.pool, 1)
	b.must(m.load())
	claim := func() []int64 {
		t.Helper()
		got, err := m.finishAndClaim(ctx)
		b.must(err)
		if got == nil {
			return nil
		}
		m.out.done = append(m.out.done, got.positions...)
		return got.positions
	}
	write := func(tx Tx) {
		t.Helper()
		_, err := tx.Exec(ctx, "INSERT INTO perceptor_outbox.operation (part, op, form, body) VALUES (1, 1, 1, '\\x')")
		b.must(err)
	}
	write(b.pool)
	if got := claim(); len(got) != 1 {
		t.Fatalf("claimed %v, want one row", got)
	}
	lock, err := b.pool.Begin(ctx)
	b.must(err)
	_, err = lock.Exec(ctx, "SELECT 1 FROM perceptor_outbox.operation FOR UPDATE")
	b.must(err)
	found := make(chan int, 1)
	go func() { found <- len(claim()) }()
	b.eventually("waiting for the lock", func() bool {
		var n int
		b.must(b.pool.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&n))
		return n == 1
	})
	early, err := pgx.Connect(ctx, b.dsn)
	b.must(err)
	defer early.Close(ctx) //nolint:errcheck // the test is over
	_, err = early.Exec(ctx, "BEGIN; SELECT pg_current_xact_id()")
	b.must(err)
	late, err := pgx.Connect(ctx, b.dsn)
	b.must(err)
	defer late.Close(ctx) //nolint:errcheck // the test is over
	_, err = late.Exec(ctx, "BEGIN")
	b.must(err)
	write(late)
	write(early)
	_, err = early.Exec(ctx, "COMMIT")
	b.must(err)
	b.must(lock.Rollback(ctx))
	n := <-found + len(claim())
	_, err = late.Exec(ctx, "COMMIT")
	b.must(err)
	if n += len(claim()); n != 2 {
		t.Errorf("%d rows were claimed, want both", n)
	}
}
