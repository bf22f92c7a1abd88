package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m, leaks...) }

// leaks are goroutines that the test's own consumer and broker leave running for a moment.
// They include no goroutine of the package under test.
var leaks = []goleak.Option{
	goleak.IgnoreAnyFunction("github.com/twmb/franz-go/pkg/kfake.(*clientConn).read"),
}

// names maps tenants to their topics.
type names map[int32]string

func (n names) Tenant(_ context.Context, tenant int32) (Tenant, error) {
	name, ok := n[tenant]
	if !ok {
		return Tenant{}, ErrUnknownTenant
	}
	return Tenant{Name: strings.TrimPrefix(name, "t-"), Topic: name, Key: testKey}, nil
}

// testKey signs the records of all tenants.
var testKey = record.NewKey(7, []byte("secret"))

// deletedTenant is the number of the first tenant that was deleted.
const deletedTenant = 1000

func (n names) Deleted(_ context.Context, tenant int32) (bool, error) {
	return tenant >= deletedTenant, nil
}

// broker starts a cluster in memory with the topics of names, 4 partitions
// each.
func broker(t testing.TB, tenants names, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	topics := make([]string, 0, len(tenants))
	for _, n := range tenants {
		topics = append(topics, n)
	}
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(4, topics...)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func publisher(t testing.TB, brokers []string, tenants Tenants, change func(*Config)) *Publisher {
	t.Helper()
	cfg := Config{Brokers: brokers, MetadataTTL: 200 * time.Millisecond, Timeout: 5 * time.Second}
	if change != nil {
		change(&cfg)
	}
	p, err := NewPublisher(cfg, tenants)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// deliveries returns n deliveries for a tenant, with params of the given size.
func deliveries(tenant int32, n, params int) []task.Publication {
	pubs := make([]task.Publication, n)
	for i := range pubs {
		pubs[i] = task.Publication{
			Tenant: tenant, Task: task.NewID(int64(tenant)*1_000_000+int64(i)+1, task.Shard(i%512)), Seq: 1, Attempt: 2,
			Type: task.Blocking, Kind: "mail", ScheduledAt: 1_700_000_000_123, ClaimedAt: 1_700_000_000_124,
			AckTimeout: time.Minute, Params: paramsOf(params),
		}
	}
	return pubs
}

// paramsOf returns the wire bytes of one param with a value of n bytes.
func paramsOf(n int) []byte {
	if n == 0 {
		return nil
	}
	entry := append([]byte{0x0a, 1, 'k', 0x12}, varint(n)...)
	entry = append(entry, strings.Repeat("v", n)...)
	return append(append([]byte{0x0a}, varint(len(entry))...), entry...)
}

func varint(n int) []byte {
	var b []byte
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// publish publishes and returns the outcome of each publication. It fails the test unless
// each has exactly one.
func publish(t testing.TB, p *Publisher, pubs []task.Publication) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var mu sync.Mutex
	errs, count := make([]error, len(pubs)), make([]int, len(pubs))
	p.Publish(ctx, pubs, func(index []int, err error) {
		mu.Lock()
		defer mu.Unlock()
		for _, i := range index {
			errs[i] = err
			count[i]++
		}
	})
	for i, n := range count {
		if n != 1 {
			t.Fatalf("publication %d was reported %d times", i, n)
		}
	}
	return errs
}

func publishAll(t testing.TB, p *Publisher, pubs []task.Publication) {
	t.Helper()
	if err := errors.Join(publish(t, p, pubs)...); err != nil {
		t.Fatal(err)
	}
}

// eventually publishes until all records are acknowledged, as a dispatcher does.
func eventually(t testing.TB, p *Publisher, pubs []task.Publication, limit time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		var failed []task.Publication
		var last error
		for i, err := range publish(t, p, pubs) {
			if err != nil {
				failed, last = append(failed, pubs[i]), err
			}
		}
		if len(failed) == 0 {
			return
		}
		if pubs = failed; time.Now().After(deadline) {
			t.Fatalf("%d records still fail after %s: %v", len(failed), limit, last)
		}
	}
}

// stored reads the topics from their beginning with another library, until
// there are n records.
func stored(t testing.TB, brokers []string, n int, topics ...string) []*kgo.Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var records []*kgo.Record
	for len(records) < n {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatalf("found %d of %d records: %v", len(records), n, err)
		}
		records = append(records, fetches.Records()...)
	}
	return records
}

// runIDs counts records by run.
func runIDs(records []*kgo.Record) map[string]int {
	count := make(map[string]int)
	for _, r := range records {
		for _, h := range r.Headers {
			if h.Key == "perceptor_run_id" {
				count[string(h.Value)]++
			}
		}
	}
	return count
}

func tenantsOf(prefix string, n int) names {
	m := names{}
	for i := range n {
		m[int32(i+1)] = fmt.Sprintf("%st-%d", prefix, i+1)
	}
	return m
}
