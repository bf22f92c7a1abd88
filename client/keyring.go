package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/kafkalogin"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/record/recordset"
)

// How long a listener accepts a key that has leaked, after the answer to a rotation without
// overlap: until it asks again, or until it stops trusting what it knows. An answer of taskd may
// be keysDelay old.
const (
	// keysEvery is how often a listener asks for the tenant's keys. A new key is used no
	// earlier than a minute after it was made, unless it replaces one that has leaked.
	keysEvery = 5 * time.Second
	// keysDelay is how long each taskd caches the keys with the identity of a caller.
	keysDelay = 5 * time.Second
	// keysTrusted is how long keys are used while nobody answers. Then the listener leaves its
	// group, and records that nobody else reads wait.
	keysTrusted = time.Minute - keysDelay
	// keysAgain is the least time between two questions because a record names an unknown
	// key: anyone who may write to the topic can cause them.
	keysAgain   = 2 * time.Second
	keysTimeout = 2 * time.Second
)

// errKeyOver is the error for records that are signed with a key that has ended.
var errKeyOver = errors.New("record: the key of its signature is unknown or has ended")

// keyring holds the keys that sign the tenant's records, and the tenant's login to Kafka. It
// is safe for concurrent use.
type keyring struct {
	ask func(context.Context) (*perceptorv1.Delivery, error)

	asking sync.Mutex // held while the service is asked because of an unknown key
	mu     sync.RWMutex
	keys   map[int32]ringKey
	login  *perceptorv1.KafkaLogin
	asked  time.Time
	// failed is why the last question was not answered; nil: it was.
	failed error
	// until is when the keys are no longer trusted. renewed is closed when they are replaced.
	until   time.Time
	renewed chan struct{}
}

// ringKey is a key with its end by this process's clock; zero: none.
type ringKey struct {
	signers *sync.Pool // preparing one takes longer than its use
	end     time.Time
}

func newRingKey(k *perceptorv1.RecordKey) ringKey {
	key := record.NewKey(k.GetId(), k.GetSecret())
	return ringKey{signers: &sync.Pool{New: func() any { return key.Signer() }}}
}

// verify returns nil if the key has signed the record of a run.
func (k ringKey) verify(value []byte, headers []record.Header) error {
	s := k.signers.Get().(*record.Signer)
	defer k.signers.Put(s)
	return s.Verify(record.EventType, value, headers)
}

func newKeyring(ask func(context.Context) (*perceptorv1.Delivery, error)) *keyring {
	return &keyring{ask: ask, renewed: make(chan struct{})}
}

// set replaces the keys by those of an answer to a question of the given time, unless they are
// of a later one.
func (r *keyring) set(d *perceptorv1.Delivery, asked time.Time) {
	keys := make(map[int32]ringKey, len(d.GetRecordKeys()))
	for _, k := range d.GetRecordKeys() {
		key := newRingKey(k)
		if k.GetExpireTime() != nil {
			key.end = asked.Add(k.GetExpireTime().AsTime().Sub(d.GetNow().AsTime()))
		}
		keys[k.GetId()] = key
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	until := asked.Add(keysTrusted)
	if until.Before(r.until) {
		return
	}
	r.keys, r.login, r.asked, r.failed, r.until = keys, d.GetLogin(), asked, nil, until
	close(r.renewed)
	r.renewed = make(chan struct{})
}

// trustedAt reports whether the keys may be used at an instant, and why the last question was not answered.
func (r *keyring) trustedAt(now time.Time) (trusted bool, failed error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return now.Before(r.until), r.failed
}

// awaitTrust waits until the keys may be used. It returns false if ctx ends first.
func (r *keyring) awaitTrust(ctx context.Context) bool {
	for ctx.Err() == nil {
		r.mu.RLock()
		until, renewed := r.until, r.renewed
		r.mu.RUnlock()
		if time.Now().Before(until) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-renewed:
		}
	}
	return false
}

// refresh asks the service for the keys. The known ones stay if it does not answer.
func (r *keyring) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	asked := time.Now()
	d, err := r.ask(ctx)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked, r.failed = asked, err
		return err
	}
	r.set(d, asked)
	return nil
}

// run refreshes the keys until ctx ends.
func (r *keyring) run(ctx context.Context) {
	for ctxtime.Sleep(ctx, keysEvery) {
		_ = r.refresh(ctx) // asked again
	}
}

// verify returns nil if a valid key of the tenant has signed the record of a run.
func (r *keyring) verify(ctx context.Context, m *recordset.Record) error {
	id, err := record.KeyID(m.Headers)
	if err != nil {
		return err
	}
	key, ok := r.find(ctx, id)
	if !ok {
		return fmt.Errorf("%w: number %d", errKeyOver, id)
	}
	return key.verify(m.Value, m.Headers)
}

// find returns a valid key. It asks the service for an unknown one, unless it has just asked.
func (r *keyring) find(ctx context.Context, id int32) (key ringKey, ok bool) {
	key, known := r.known(id)
	if !known {
		r.asking.Lock()
		defer r.asking.Unlock()
		if key, known = r.known(id); !known && r.since() >= keysAgain {
			_ = r.refresh(ctx) // the record is refused then
			key, known = r.known(id)
		}
	}
	return key, known && (key.end.IsZero() || time.Now().Before(key.end))
}

func (r *keyring) known(id int32) (key ringKey, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	key, ok = r.keys[id]
	return key, ok
}

func (r *keyring) since() time.Duration {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return time.Since(r.asked)
}

// mechanism returns the SASL mechanism of the tenant's login; nil if it has none. Each
// connection uses the newest login.
func (r *keyring) mechanism() sasl.Mechanism {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.login == nil {
		return nil
	}
	return tenantLogin{r, r.login.GetMechanism()}
}

// tenantLogin logs in with the newest login of the keyring.
type tenantLogin struct {
	ring *keyring
	name string
}

// Name implements [sasl.Mechanism].
func (l tenantLogin) Name() string { return l.name }

// Start implements [sasl.Mechanism].
func (l tenantLogin) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	l.ring.mu.RLock()
	login := l.ring.login
	l.ring.mu.RUnlock()
	m, err := kafkalogin.New(l.name, login.GetUsername(), login.GetPassword())
	if err != nil {
		return nil, nil, fmt.Errorf("perceptor: %w", err)
	}
	return m.Start(ctx)
}
