package client

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/internal/ctxtime"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/record/recordset"
	"github.com/perceptor/perceptor/task"
)

// forgeries returns records of a run that the service has not signed, by what is wrong.
func forgeries(p task.Publication) map[string]kafka.Message {
	all := map[string]kafka.Message{
		"wrong secret":   signedMessage(p, record.NewKey(1, []byte("guessed"))),
		"unknown number": signedMessage(p, record.NewKey(77, []byte("guessed"))),
	}
	unsigned := signedMessage(p, testKey)
	unsigned.Headers = nil
	all["unsigned"] = unsigned
	changed := signedMessage(p, testKey)
	changed.Value = append(slices.Clone(changed.Value), 0x78, 1) // an unknown field
	all["changed"] = changed
	k, value, headers := record.EncodeDead(&task.DeadLetter{
		DeadRun: task.DeadRun{Type: p.Type, RunID: p.RunID(), Attempt: 1, Kind: p.Kind, ScheduledAt: p.ScheduledAt}, Terms: task.Terms{AckTimeout: time.Minute},
	}, "shop")
	dead := kafka.Message{Key: k, Value: value}
	for _, h := range testKey.Signer().Sign(value, headers) {
		dead.Headers = append(dead.Headers, kafka.Header(h))
	}
	all["of a dead run"] = dead
	return all
}

// TestAForgedRecordCallsNoHandler publishes forgeries of runs between genuine records.
func TestAForgedRecordCallsNoHandler(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	began := time.Now()
	var c counter
	var forged atomic.Int32
	b.listen(ListenerConfig{Events: Events{Forged: func(int, int64, error) { forged.Add(1) }}}, map[string]Handler{"count": c.handle})
	want := 0
	for i := range 5 {
		victim := newRunOf(int64(100+i), task.OneShot, "count", nil)
		b.svc.with(func() { b.svc.runs[victim.RunID()] = newRefRun(victim.Type, 5) })
		for _, m := range forgeries(victim) {
			b.write(m)
			want++
		}
		b.publish(newRunOf(int64(i)+1, task.OneShot, "count", nil))
	}
	b.svc.await(t, "5 results", func() bool { return b.svc.codes["report ACCEPTED"] == 5 })
	b.awaitCommitted()
	if n := int(forged.Load()); n != want {
		t.Errorf("%d forged records were told, want %d", n, want)
	}
	if n := c.len(); n != 5 {
		t.Errorf("handlers were called %d times, want 5", n)
	}
	b.svc.with(func() {
		if n := b.svc.calls["delivery"]; n > 2+2*int(time.Since(began)/keysAgain) {
			t.Errorf("the service was asked for keys %d times, want once more than at the start, and twice in %s later", n, keysAgain)
		}
	})
}

// TestKeysAreRotatedWithoutLosingARecord replaces the key twice while records come.
func TestKeysAreRotatedWithoutLosingARecord(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	var c counter
	var forged atomic.Int32
	l := b.listen(ListenerConfig{Events: Events{Forged: func(_ int, _ int64, err error) {
		if !errors.Is(err, errKeyOver) {
			t.Error(err)
		}
		forged.Add(1)
	}}}, map[string]Handler{"count": c.handle})
	handled := func(n int) {
		b.svc.await(t, strconv.Itoa(n)+" results", func() bool { return b.svc.codes["report ACCEPTED"] == n })
	}
	first, second := &perceptorv1.RecordKey{Id: 1, Secret: []byte("secret of the key")}, &perceptorv1.RecordKey{Id: 2, Secret: []byte("second")}
	b.publish(newRunOf(1, task.OneShot, "count", nil))
	handled(1)

	ctxtime.Sleep(t.Context(), keysAgain) // an unknown key is asked about again
	first.ExpireTime = timestamppb.New(time.Now().Add(time.Hour))
	b.svc.with(func() { b.svc.keys = []*perceptorv1.RecordKey{first, second} })
	b.write(b.signed(newRunOf(2, task.OneShot, "count", nil), record.NewKey(2, []byte("second"))), b.signed(newRunOf(3, task.OneShot, "count", nil), testKey))
	handled(3)

	first.ExpireTime = timestamppb.New(time.Now().Add(-time.Second))
	if err := l.keys.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.write(b.signed(newRunOf(4, task.OneShot, "count", nil), testKey), b.signed(newRunOf(5, task.OneShot, "count", nil), record.NewKey(2, []byte("second"))))
	handled(4)
	b.awaitCommitted()
	if n := forged.Load(); n != 1 {
		t.Errorf("%d records were refused, want that of the key that has ended", n)
	}
}

// leak is a service that has rotated a key without overlap. Each of its answers is as old as
// taskd may make it.
type leak struct {
	rotated time.Time
	mu      sync.Mutex
	// silent says that it does not answer, slow that an answer takes as long as it may.
	silent, slow func() bool
}

func (l *leak) ask(ctx context.Context) (*perceptorv1.Delivery, error) {
	l.mu.Lock()
	silent, slow := l.silent(), l.slow()
	l.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	d := &perceptorv1.Delivery{Now: timestamppb.Now(), RecordKeys: []*perceptorv1.RecordKey{{Id: 1, Secret: []byte("secret of the key")}}}
	if time.Now().Add(-keysDelay).After(l.rotated) {
		d.RecordKeys = []*perceptorv1.RecordKey{{Id: 2, Secret: []byte("second")}}
	}
	if slow {
		time.Sleep(keysTimeout - time.Millisecond)
	}
	return d, nil
}

// accepted runs a keyring against the service, and returns how long after the rotation it
// accepted a record that the old key has signed.
func (l *leak) accepted(t *testing.T, before, after time.Duration) (last time.Duration) {
	t.Helper()
	l.rotated = time.Now().Add(before)
	signed := signedMessage(newRunOf(1, task.OneShot, "count", nil), testKey)
	forged := recordset.Record{Value: signed.Value}
	for _, h := range signed.Headers {
		forged.Headers = append(forged.Headers, record.Header(h))
	}
	r := newKeyring(l.ask)
	if err := r.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx) })
	for time.Since(l.rotated) < after {
		if r.awaitTrust(ctx) && r.verify(ctx, &forged) == nil {
			last = time.Since(l.rotated)
		}
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	running.Wait()
	return last
}

// TestALeakedKeyIsAcceptedForABoundedTime is the bound that security.md tells. The service's
// clock starts at many places between two questions.
func TestALeakedKeyIsAcceptedForABoundedTime(t *testing.T) {
	t.Parallel()
	never := func() bool { return false }
	synctest.Test(t, func(t *testing.T) {
		for _, slow := range []bool{false, true} {
			const answers = 14 * time.Second
			worst := time.Duration(0)
			for before := time.Duration(0); before < 2*keysEvery; before += 333 * time.Millisecond {
				l := leak{silent: never, slow: func() bool { return slow }}
				worst = max(worst, l.accepted(t, before, 20*time.Second))
			}
			if bound := keysDelay + keysEvery + 2*keysTimeout; bound != answers || worst > bound || worst < keysEvery {
				t.Errorf("slow %v: the key was accepted for %s, the bound is %s", slow, worst, bound)
			}
		}
		for seed := range uint64(30) {
			const ever = time.Minute
			random := rand.New(rand.NewPCG(seed, 1))
			back := time.Now().Add(3 * time.Minute)
			asked := false // the first question is answered
			l := leak{slow: func() bool { return random.IntN(3) == 0 }, silent: func() bool {
				was := asked
				asked = true
				return was && time.Now().Before(back) && random.IntN(8) != 0
			}}
			last := l.accepted(t, time.Duration(random.IntN(8000))*time.Millisecond, 4*time.Minute)
			if bound := keysTrusted + keysDelay; bound != ever || last > bound {
				t.Errorf("seed %d: the key was accepted for %s, the bound is %s", seed, last, bound)
			}
		}
	})
}

func TestAnAnswerWithOlderKeysDoesNotReplaceNewerOnes(t *testing.T) {
	t.Parallel()
	r, now := newKeyring(nil), time.Now()
	r.set(&perceptorv1.Delivery{RecordKeys: []*perceptorv1.RecordKey{{Id: 2}}}, now)
	r.set(&perceptorv1.Delivery{RecordKeys: []*perceptorv1.RecordKey{{Id: 1}}}, now.Add(-time.Second))
	if _, known := r.known(1); known {
		t.Error("an answer that was asked for earlier and came later has brought back a key")
	}
}

// TestRecordsWaitWhileTheServiceDoesNotTellTheKeys takes the keys away and brings them back.
func TestRecordsWaitWhileTheServiceDoesNotTellTheKeys(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	var c counter
	l := b.listen(ListenerConfig{}, map[string]Handler{"count": c.handle})
	b.publish(newRunOf(1, task.OneShot, "count", nil))
	b.svc.await(t, "a result", func() bool { return b.svc.codes["report ACCEPTED"] == 1 })
	l.forgetKeys()
	b.publish(newRunOf(2, task.OneShot, "count", nil))
	b.eventually("the log says that the listener leaves", func() bool { return strings.Contains(b.logs.String(), "leaving the consumer group until it answers") })
	if n := c.len(); n != 1 {
		t.Errorf("handlers were called %d times, want 1", n)
	}
	if err := l.keys.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.svc.await(t, "a result after the service has told the keys again", func() bool { return b.svc.codes["report ACCEPTED"] == 2 })
}

// forgetKeys makes the listener believe that the service has not answered for long.
func (r *liveListener) forgetKeys() {
	r.keys.mu.Lock()
	defer r.keys.mu.Unlock()
	r.keys.until = time.Time{}
}

// TestAListenerThatTheServiceDoesNotAnswerLeavesItsPartitionsToOthers cuts one of two listeners off, and lets it come back.
func TestAListenerThatTheServiceDoesNotAnswerLeavesItsPartitionsToOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	var assigned [2]atomic.Int32
	var cut, unreported atomic.Bool
	var c counter
	var listeners [2]*liveListener
	for i := range listeners {
		if i == 1 {
			b.client = b.newClient(Config{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(
				func(ctx context.Context, method string, q, a any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					if cut.Load() {
						return status.Error(codes.Unauthenticated, "the token was revoked")
					}
					return invoke(ctx, method, q, a, conn, opts...)
				})}})
		}
		n := &assigned[i]
		listeners[i] = b.listen(ListenerConfig{Workers: 1, MaxPending: 1, Events: Events{Assigned: func(p []int) { n.Store(int32(len(p))) }}}, map[string]Handler{"count": func(ctx context.Context, r *Run) error {
			if n == &assigned[1] {
				unreported.Store(true)
			}
			return c.handle(ctx, r)
		}})
	}
	shared := func() bool { return assigned[0].Load() == 1 && assigned[1].Load() == 1 }
	b.eventually("each listener has a partition", shared)
	cut.Store(true)
	if err := listeners[1].keys.refresh(t.Context()); err == nil {
		t.Error("the listener is not cut off")
	}
	const runs = 20
	for n := range runs {
		b.publish(newRunOf(int64(n)+1, task.OneShot, "count", nil))
	}
	b.eventually("the listener has no room because a result has no answer", unreported.Load)
	listeners[1].forgetKeys()
	b.svc.await(t, "all results", func() bool { return b.svc.codes["report ACCEPTED"] == runs })
	b.awaitCommitted()
	if log := b.logs.String(); !strings.Contains(log, "the token was revoked") {
		t.Errorf("the log does not say why the listener leaves:\n%s", log)
	}
	cut.Store(false)
	if err := listeners[1].keys.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.eventually("each listener has a partition again", shared)
}

// signed registers a run with the service and returns its record, signed with a key.
func (b *bench) signed(p task.Publication, key *record.Key) kafka.Message {
	b.svc.with(func() { b.svc.runs[p.RunID()] = newRefRun(p.Type, 5) })
	return signedMessage(p, key)
}

func TestALoginThatSendsASecretNeedsTLS(t *testing.T) {
	t.Parallel()
	plain, err := KafkaLogin("PLAIN", "user", "hush")
	if err != nil {
		t.Fatal(err)
	}
	for _, login := range []sasl.Mechanism{plain, KafkaTokenFile("/no/such/file")} {
		_, err := New(Config{Token: "t", Kafka: KafkaConfig{SASL: login}})
		if err == nil || !strings.Contains(err.Error(), "Kafka.SASL "+login.Name()+" sends a secret, and Kafka.TLS is not set") || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s without TLS: %v", login.Name(), err)
		}
	}
	c, err := New(Config{Token: "t", Kafka: KafkaConfig{SASL: plain, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
