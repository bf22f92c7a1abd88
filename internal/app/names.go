package app

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

const (
	// maxNames bounds the cached tenants.
	maxNames = 100_000
	// namesEvery is how often the cached tenants are compared with a database, so that a key
	// is used a few seconds after its start and not after its end.
	namesEvery = 4 * time.Second
	namesPage  = 10_000
)

// names caches the names of tenants, which never change, and so their topics; their keys,
// which are rotated; the form of their records, and whether their listeners hold runs.
type names struct {
	store  *control.Store
	prefix string
	secret []byte

	mu    sync.RWMutex
	cache map[int32]*knownTenant
	// compared is when the last successful comparison with the database that decides began. notBefore is when what
	// listeners have been told before a database lost commits does not matter any more.
	compared, notBefore time.Time
}

// knownTenant is immutable.
type knownTenant struct {
	name, topic    string
	version        int64
	keys           []signingKey // by their start
	payloadRecords bool
	ahead          task.Ahead
}

type signingKey struct {
	start task.Instant
	key   *record.Key
}

func newNames(store *control.Store, prefix, secret string) *names {
	return &names{store: store, prefix: prefix, secret: []byte(secret), cache: map[int32]*knownTenant{}}
}

// Tenant implements [delivery.Tenants].
func (n *names) Tenant(ctx context.Context, id int32) (delivery.Tenant, error) {
	n.mu.RLock()
	t := n.cache[id]
	n.mu.RUnlock()
	if t == nil {
		var err error
		if t, err = n.read(ctx, id); err != nil {
			return delivery.Tenant{}, err
		}
	}
	return delivery.Tenant{Name: t.name, Topic: t.topic, Key: t.key(n.store.Now()), PayloadRecords: t.payloadRecords}, nil
}

// key returns the newest key that has started. If none has, because the clocks differ, it
// returns the oldest; nil if there is none.
func (t *knownTenant) key(now task.Instant) *record.Key {
	for _, k := range slices.Backward(t.keys) {
		if k.start <= now {
			return k.key
		}
	}
	if len(t.keys) > 0 {
		return t.keys[0].key
	}
	return nil
}

// read reads a tenant and caches it.
func (n *names) read(ctx context.Context, id int32) (*knownTenant, error) {
	found, err := n.store.TenantByID(ctx, id)
	if err != nil {
		return nil, err
	}
	t := &knownTenant{
		name: found.Name, topic: delivery.TopicName(n.prefix, id, found.Name), version: found.Version, payloadRecords: found.Rates.PayloadRecords, ahead: found.Rates.Ahead,
	}
	for i := range found.Keys {
		k := &found.Keys[i]
		t.keys = append(t.keys, signingKey{k.Start, record.NewKey(k.ID, derive(n.secret, &found, k, recordPurpose))})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.cache) >= maxNames {
		clear(n.cache)
	}
	n.cache[id] = t
	return t, nil
}

// run reads the tenants that have changed, until ctx ends. While no database answers, the last
// known keys are used.
func (n *names) run(ctx context.Context) error {
	return ctxtime.Every(ctx, namesEvery, func(ctx context.Context) {
		began, all := time.Now(), true
		for ids := range slices.Chunk(n.ids(), namesPage) {
			all = n.refresh(ctx, ids) && all
		}
		if all {
			n.mu.Lock()
			n.compared = began
			n.mu.Unlock()
		}
	})
}

// holdFor is how old what is known of a tenant may be for its runs to be published ahead.
const holdFor = 10 * time.Second

// Holds reports whether the listeners of a tenant hold runs until they are due. If that is not known for certain they do not. Nor
// do consumers of payload records, which know only CloudEvents.
func (n *names) Holds(tenant int32) bool {
	now := time.Now()
	n.mu.RLock()
	defer n.mu.RUnlock()
	t := n.cache[tenant]
	return t != nil && !t.payloadRecords && now.After(n.notBefore) && now.Sub(n.compared) < holdFor && t.ahead.Covers(n.store.Now())
}

func (n *names) ids() []int32 {
	n.mu.RLock()
	defer n.mu.RUnlock()
	ids := make([]int32, 0, len(n.cache))
	for id := range n.cache {
		ids = append(ids, id)
	}
	return ids
}

// refresh reads those of the tenants that have changed. It reports whether it could, by the database that decides.
func (n *names) refresh(ctx context.Context, ids []int32) (ok bool) {
	found, err := n.store.TenantVersions(ctx, ids)
	if err != nil {
		return false // the checks of readiness report the databases
	}
	ok = found.Decided
	for _, id := range ids {
		n.mu.RLock()
		t := n.cache[id]
		n.mu.RUnlock()
		if version, exists := found.Of[id]; exists && t != nil && t.version != version {
			t, err := n.read(ctx, id)
			ok = ok && err == nil && t.version == version // otherwise tried again
		}
	}
	return ok
}

// Deleted implements [delivery.Tenants].
func (n *names) Deleted(ctx context.Context, tenant int32) (bool, error) {
	deleted, err := n.store.Deleted(ctx, tenant)
	if deleted {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.cache, tenant)
	}
	return deleted, err
}

// forget drops the cached tenants. A database that has lost commits may have given a number to
// another tenant since.
func (n *names) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cache)
	n.notBefore = time.Now().Add(task.AheadAfter)
}

// label returns the name of the tenant for logs, or its number if the name is not cached. It
// makes no call.
func (n *names) label(tenant int32) string {
	if name, ok := n.name(tenant); ok {
		return name
	}
	return strconv.Itoa(int(tenant))
}

// known returns the name of the tenant for metrics; "" if it is not cached. It makes no call.
func (n *names) known(tenant int32) string {
	name, _ := n.name(tenant)
	return name
}

// name returns the name if it is cached.
func (n *names) name(tenant int32) (name string, ok bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	t, ok := n.cache[tenant]
	if !ok {
		return "", false
	}
	return t.name, true
}
