package delivery

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

var codecs = []string{"none", "lz4", "zstd", "snappy", "gzip"}

func TestRecordsArriveAsTheyWerePublished(t *testing.T) {
	for _, codec := range codecs {
		t.Run(codec, func(t *testing.T) {
			tenants := tenantsOf("", 3)
			testArrival(t, broker(t, tenants, kfake.NumBrokers(3)).ListenAddrs(), tenants, codec)
		})
	}
}

func TestRecordsArriveAsTheyWerePublishedOnARealKafka(t *testing.T) {
	kafka := testenv.Kafka(t)
	for _, codec := range codecs {
		t.Run(codec, func(t *testing.T) {
			tenants := tenantsOf(testenv.TopicPrefix(t), 3)
			topics, err := NewTopics(Config{Brokers: []string{kafka.Addr()}}, TopicConfig{Partitions: 4})
			if err != nil {
				t.Fatal(err)
			}
			topics.cfg.Prefix = ""
			for _, topic := range tenants {
				if err := topics.Ensure(t.Context(), topic); err != nil {
					t.Fatal(err)
				}
			}
			testArrival(t, []string{kafka.Addr()}, tenants, codec)
		})
	}
}

// testArrival publishes for three tenants, in batches that the publisher must split, and
// compares the stored records.
func testArrival(t *testing.T, brokers []string, tenants names, codec string) {
	p := publisher(t, brokers, tenants, func(c *Config) { c.Compression = codec; c.BatchBytes = 20_000 })
	var pubs []task.Publication
	want := make(map[string]task.Publication)
	var topics []string
	for tenant, topic := range tenants {
		pubs = append(pubs, deliveries(tenant, 300, 100*int(tenant-1))...)
		topics = append(topics, topic)
	}
	for i, pub := range pubs {
		want[tenants[pub.Tenant]+pub.RunID().String()] = pubs[i]
	}
	eventually(t, p, pubs, time.Minute)
	for _, r := range stored(t, brokers, len(pubs), topics...) {
		got, err := record.Decode(r.Value)
		if err != nil {
			t.Fatal(err)
		}
		pub := want[r.Topic+got.RunID().String()]
		got.Tenant = pub.Tenant
		if diff := cmp.Diff(pub, got); diff != "" {
			t.Fatal(diff)
		}
		_, _, headers := record.Encode(pub, tenantName(tenants, pub.Tenant))
		headers = testKey.Signer().Sign(r.Value, headers)
		if string(r.Key) != pub.Task.String() || int(r.Partition) != record.Partition(pub.Task, 4) || !sameHeaders(r, headers) {
			t.Fatalf("record %s has key %s, partition %d, headers %v", got.RunID(), r.Key, r.Partition, r.Headers)
		}
		if age := time.Since(r.Timestamp); age < -time.Minute || age > time.Minute {
			t.Fatalf("timestamp = %s, want about now", r.Timestamp)
		}
	}
}

func tenantName(tenants names, tenant int32) string {
	t, _ := tenants.Tenant(context.Background(), tenant)
	return t.Name
}

func sameHeaders(r *kgo.Record, want []record.Header) bool {
	return slices.EqualFunc(r.Headers, want, func(a kgo.RecordHeader, b record.Header) bool {
		return a.Key == b.Key && bytes.Equal(a.Value, b.Value)
	})
}

func TestManyTopicsAndPartitionsGoInOneRequestPerLeader(t *testing.T) {
	tenants := tenantsOf("", 20)
	c := broker(t, tenants, kfake.NumBrokers(3))
	p := publisher(t, c.ListenAddrs(), tenants, nil)
	requests := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Observe: true, Count: -1, TopLevel: false})
	var mu sync.Mutex
	seen := make(map[int32]int)
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		seen[c.CurrentNode()]++
		return nil, nil, false
	})
	var pubs []task.Publication
	for tenant := range tenants {
		pubs = append(pubs, deliveries(tenant, 40, 10)...)
	}
	publishAll(t, p, pubs)
	mu.Lock()
	defer mu.Unlock()
	for node, n := range seen {
		if n != 1 {
			t.Errorf("broker %d received %d requests for 20 topics, want 1", node, n)
		}
	}
	if len(seen) == 0 || len(seen) > 3 {
		t.Errorf("requests by broker = %v, want 1 to 3 brokers", seen)
	}
	requests.Remove()
}

func TestRecordTooLargeIsNamedAndItsNeighboursAreStored(t *testing.T) {
	tenants := tenantsOf("", 1)
	c := broker(t, tenants, kfake.BrokerConfigs(map[string]string{"message.max.bytes": "4000"}))
	p := publisher(t, c.ListenAddrs(), tenants, nil)
	pubs := deliveries(1, 50, 1000) // the records of each partition together exceed the limit
	pubs[7].Params = paramsOf(5000)
	errs := publish(t, p, pubs)
	for i, err := range errs {
		var tooLarge *TooLargeError
		switch {
		case i == 7 && (!errors.As(err, &tooLarge) || tooLarge.Topic != "t-1" || tooLarge.Bytes < 5000 || !tooLarge.Unpublishable()):
			t.Errorf("error of the large record = %v, want a TooLargeError", err)
		case i != 7 && err != nil:
			t.Errorf("record %d: %v", i, err)
		}
	}
	if got := runIDs(stored(t, c.ListenAddrs(), 49, "t-1")); len(got) != 49 {
		t.Errorf("%d runs are stored, want all others", len(got))
	}
}

func TestRecordBeyondTheRequestLimitIsNotSent(t *testing.T) {
	tenants := tenantsOf("", 1)
	c := broker(t, tenants)
	p := publisher(t, c.ListenAddrs(), tenants, func(c *Config) { c.RequestBytes = 8000; c.BatchBytes = 8000 })
	errs := publish(t, p, append(deliveries(1, 1, 9000), deliveries(1, 20, 1000)...))
	var tooLarge *TooLargeError
	if !errors.As(errs[0], &tooLarge) {
		t.Errorf("error of the large record = %v, want a TooLargeError", errs[0])
	}
	if err := errors.Join(errs[1:]...); err != nil {
		t.Error(err)
	}
}

func TestUnansweredAppendIsAnErrorAndMayBeStored(t *testing.T) {
	tenants := tenantsOf("", 1)
	c := broker(t, tenants)
	p := publisher(t, c.ListenAddrs(), tenants, nil)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: 1})
	pubs := deliveries(1, 1, 10)
	if err := publish(t, p, pubs)[0]; !errors.Is(err, kafka.RequestTimedOut) {
		t.Fatalf("error = %v, want RequestTimedOut", err)
	}
	publishAll(t, p, pubs)
	if got := runIDs(stored(t, c.ListenAddrs(), 2, "t-1")); got[pubs[0].RunID().String()] != 2 {
		t.Errorf("stored runs = %v, want the run twice", got)
	}
}

func TestFailingPartitionFailsAlone(t *testing.T) {
	tenants := tenantsOf("", 2)
	c := broker(t, tenants)
	p := publisher(t, c.ListenAddrs(), tenants, nil)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t-1", Partitions: []int32{2}, Err: kerr.NotEnoughReplicas, Count: -1})
	pubs := append(deliveries(1, 40, 10), deliveries(2, 40, 10)...)
	for i, err := range publish(t, p, pubs) {
		failing := pubs[i].Tenant == 1 && record.Partition(pubs[i].Task, 4) == 2
		if failing != errors.Is(err, kafka.NotEnoughReplicas) || !failing && err != nil {
			t.Errorf("tenant %d, partition %d: %v", pubs[i].Tenant, record.Partition(pubs[i].Task, 4), err)
		}
	}
}

func TestMissingTopicAndUnknownTenantFailAlone(t *testing.T) {
	tenants := tenantsOf("", 3)
	c := broker(t, names{1: "t-1"})
	delete(tenants, 3)
	p := publisher(t, c.ListenAddrs(), tenants, nil)
	pubs := append(append(deliveries(1, 3, 10), deliveries(2, 3, 10)...), deliveries(3, 3, 10)...)
	for i, err := range publish(t, p, pubs) {
		var topic *TopicError
		switch pubs[i].Tenant {
		case 1:
			if err != nil {
				t.Errorf("tenant 1: %v", err)
			}
		case 2:
			if !errors.As(err, &topic) || topic.Topic != "t-2" || !errors.Is(err, kafka.UnknownTopicOrPartition) {
				t.Errorf("tenant 2: %v", err)
			}
		case 3:
			if !errors.Is(err, ErrUnknownTenant) {
				t.Errorf("tenant 3: %v", err)
			}
		}
	}
}

func TestRecordsOfADeletedTenantAreObsoleteWithAndWithoutItsName(t *testing.T) {
	tenants := tenantsOf("", 1)
	c := broker(t, tenants)
	tenants[deletedTenant] = "t-deleted" // its name is still cached, its topic is gone
	p := publisher(t, c.ListenAddrs(), tenants, nil)
	pubs := append(append(deliveries(1, 3, 10), deliveries(deletedTenant, 3, 10)...), deliveries(deletedTenant+1, 3, 10)...)
	for i, err := range publish(t, p, pubs) {
		var deleted *DeletedTenantError
		if got := errors.As(err, &deleted) && deleted.Obsolete(); got != (pubs[i].Tenant >= deletedTenant) {
			t.Errorf("tenant %d: %v", pubs[i].Tenant, err)
		}
	}
}

func TestLeaderThatMovesIsFollowed(t *testing.T) {
	tenants := tenantsOf("", 1)
	c := broker(t, tenants, kfake.NumBrokers(2))
	p := publisher(t, c.ListenAddrs(), tenants, func(c *Config) { c.MetadataTTL = time.Hour })
	pubs := deliveries(1, 40, 10)
	publishAll(t, p, pubs)
	for part := range int32(4) {
		if err := c.MoveTopicPartition("t-1", part, 1-c.LeaderFor("t-1", part)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, p, pubs, time.Minute)
}

// TestLeaderWhoseDiskHasFailedIsReplaced: a broker of which one of several disks has failed does not say that others lead the partitions
// which were on it.
func TestLeaderWhoseDiskHasFailedIsReplaced(t *testing.T) {
	tenants := tenantsOf("", 1)
	c := broker(t, tenants, kfake.NumBrokers(2))
	p := publisher(t, c.ListenAddrs(), tenants, nil)
	pubs := deliveries(1, 40, 10)
	publishAll(t, p, pubs)
	const broken = 0
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Nodes: []int32{broken}, Topic: "t-1", Err: kerr.KafkaStorageError, Count: -1})
	for part := range int32(4) {
		if err := c.MoveTopicPartition("t-1", part, 1-broken); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, p, pubs, layoutAge/2)
}

func TestNewTopicIsFoundBeforeTheMetadataIsOld(t *testing.T) {
	tenants := tenantsOf("", 2)
	testNewTopic(t, broker(t, names{1: "t-1"}).ListenAddrs(), tenants)
}

func TestNewTopicIsFoundBeforeTheMetadataIsOldOnARealKafka(t *testing.T) {
	testNewTopic(t, []string{testenv.Kafka(t).Addr()}, tenantsOf(testenv.TopicPrefix(t), 2))
}

func testNewTopic(t *testing.T, brokers []string, tenants names) {
	p := publisher(t, brokers, tenants, func(c *Config) { c.MetadataTTL = time.Hour })
	topics := newTestTopics(t, brokers, TopicConfig{})
	topics.cfg.Prefix = ""
	for tenant, topic := range tenants {
		if err := topics.Ensure(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
		eventually(t, p, deliveries(tenant, 10, 10), time.Minute)
	}
}

func TestBrokenConnectionsAreReplacedWithoutAnError(t *testing.T) {
	tenants := tenantsOf("", 1)
	c := broker(t, tenants)
	p := publisher(t, c.ListenAddrs(), tenants, nil)
	publishAll(t, p, deliveries(1, 1, 10))
	for range 2 {
		c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			return nil, errors.New("cut"), true
		})
	}
	publishAll(t, p, deliveries(1, 5, 10))
}

func TestBrokerThatRestartsIsFoundAgainWithAllItHad(t *testing.T) {
	tenants := tenantsOf("", 1)
	dir := t.TempDir()
	c := broker(t, tenants, kfake.DataDir(dir))
	addrs := c.ListenAddrs()
	p := publisher(t, addrs, tenants, func(c *Config) { c.Timeout = time.Second })
	pubs := deliveries(1, 20, 10)
	publishAll(t, p, pubs[:10])
	if err := p.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	c.Close()
	if p.Ping(t.Context()) == nil {
		t.Error("Ping succeeded while the broker was down")
	}
	if err := errors.Join(publish(t, p, pubs[10:])...); err == nil {
		t.Fatal("records were acknowledged while the broker was down")
	}
	again, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DataDir(dir), kfake.Ports(port(t, addrs[0])))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	eventually(t, p, pubs[10:], time.Minute)
	if err := p.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if got := runIDs(stored(t, addrs, 20, "t-1")); len(got) != 20 {
		t.Errorf("%d runs are stored, want all others", len(got))
	}
}

func TestBrokerThatDoesNotAnswerHoldsUpNobodyElse(t *testing.T) {
	tenants := tenantsOf("", 2)
	c := broker(t, tenants, kfake.NumBrokers(2))
	for part := range int32(4) {
		for topic, node := range map[string]int32{"t-1": 0, "t-2": 1} {
			if err := c.MoveTopicPartition(topic, part, node); err != nil {
				t.Fatal(err)
			}
		}
	}
	const timeout = 5 * time.Second
	p := publisher(t, c.ListenAddrs(), tenants, func(c *Config) { c.Timeout = timeout })
	publishAll(t, p, append(deliveries(1, 1, 1), deliveries(2, 1, 1)...))
	release := make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if c.CurrentNode() == 0 {
			c.SleepControl(func() { <-release })
		}
		return nil, nil, false
	})
	start := time.Now()
	var mu sync.Mutex
	acked, failed := time.Duration(0), time.Duration(0)
	p.Publish(t.Context(), append(deliveries(1, 20, 10), deliveries(2, 20, 10)...), func(index []int, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err == nil && index[0] >= 20 {
			acked = time.Since(start)
		}
		if err != nil && index[0] < 20 {
			failed = time.Since(start)
		}
	})
	close(release)
	if acked == 0 || failed < timeout || acked > failed-500*time.Millisecond {
		t.Errorf("records of the healthy broker were reported after %s, those of the other after %s", acked, failed)
	}
}

func TestNoBrokerAtAllIsAnErrorForEachRecord(t *testing.T) {
	p := publisher(t, []string{"127.0.0.1:1"}, tenantsOf("", 1), func(c *Config) { c.DialTimeout = 200 * time.Millisecond })
	for _, err := range publish(t, p, deliveries(1, 3, 1)) {
		if err == nil {
			t.Error("a record was acknowledged without a broker")
		}
	}
	if p.Ping(t.Context()) == nil {
		t.Error("Ping succeeded without a broker")
	}
}

func TestConfigurationNamesEveryFault(t *testing.T) {
	_, err := NewPublisher(Config{Brokers: []string{"nowhere"}, Compression: "rar", Timeout: 1, BatchBytes: 1, RequestBytes: 5000}, names{})
	if err == nil {
		t.Fatal("NewPublisher accepted an invalid configuration")
	}
	for _, want := range []string{`"nowhere"`, `"rar"`, "timeout: 1ns", "batch_bytes: 1 "} {
		if !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("%s is missing in the error: %v", want, err)
		}
	}
}
