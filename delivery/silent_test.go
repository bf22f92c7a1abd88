package delivery

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// silent returns the address of a broker that hangs: its connections are accepted, and nothing is answered.
func silent(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func TestSilentBrokersOfTheListDelayNothingForLong(t *testing.T) {
	tenants := tenantsOf("", 1)
	c := broker(t, tenants)
	brokers := append([]string{silent(t), silent(t), silent(t)}, c.ListenAddrs()...)
	for range 5 {
		p := publisher(t, brokers, tenants, nil)
		began := time.Now()
		publishAll(t, p, deliveries(1, 1, 10))
		if took := time.Since(began); took > 2500*time.Millisecond {
			t.Fatalf("the first call took %v", took)
		}
		p.Close()
	}
}

func TestATopicOfManyReplicasIsSafeAlthoughABrokerOfTheListIsSilent(t *testing.T) {
	c := broker(t, names{}, kfake.NumBrokers(3), kfake.BrokerConfigs(map[string]string{"default.replication.factor": "3", "min.insync.replicas": "1"}))
	topics := newTestTopics(t, []string{silent(t), silent(t), silent(t), c.ListenAddrs()[0]}, TopicConfig{})
	for i := range 5 {
		topic := "topic-" + strconv.Itoa(i)
		if err := topics.Ensure(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
		found, err := topics.Check(t.Context(), []string{topic})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if f.Fatal {
				t.Fatal(f)
			}
		}
	}
}

// The answer about the settings of brokers says whether a topic has many replicas.
func TestATopicIsNotCreatedWhileItsReplicasAreUnknown(t *testing.T) {
	c := broker(t, names{}, kfake.NumBrokers(3), kfake.BrokerConfigs(map[string]string{"default.replication.factor": "3", "min.insync.replicas": "1"}))
	topics := newTestTopics(t, c.ListenAddrs(), TopicConfig{})
	c.ControlKey(int16(kmsg.DescribeConfigs), func(kmsg.Request) (kmsg.Response, error, bool) {
		return nil, errors.New("cut"), true
	})
	if err := topics.Ensure(t.Context(), "topic"); err == nil {
		t.Error("a topic was created")
	}
	if found, err := topics.Check(t.Context(), []string{"topic"}); err != nil || len(found) != 1 || !strings.Contains(found[0].Message, "does not exist") {
		t.Errorf("the topic: %v, %v; want that it is missing", found, err)
	}
}

func TestABrokerThatFallsSilentDuringTheLoginHoldsUpNobodyForGood(t *testing.T) {
	tenants := tenantsOf("", 1)
	c := broker(t, tenants, kfake.EnableSASL(), kfake.Superuser("PLAIN", "user", "password"))
	release := make(chan struct{})
	defer close(release)
	var logins atomic.Int32
	c.ControlKey(int16(kmsg.SASLHandshake), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if logins.Add(1) == 1 {
			c.SleepControl(func() { <-release })
		}
		return nil, nil, false
	})
	p := publisher(t, c.ListenAddrs(), tenants, func(c *Config) {
		c.SASL, c.DialTimeout = plain.Mechanism{Username: "user", Password: "password"}, 500*time.Millisecond
	})
	eventually(t, p, deliveries(1, 1, 10), 10*time.Second)
}

// An idle connection leads to a broker that has hung since it was opened, or through a proxy that has.
func TestAConnectionThatHangsDelaysNoCallForLong(t *testing.T) {
	tenants := tenantsOf("", 2)
	c := broker(t, tenants)
	release := make(chan struct{})
	defer close(release)
	var hangs, hung atomic.Bool
	c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if len(r.(*kmsg.MetadataRequest).Topics) > 0 && hangs.Load() && !hung.Swap(true) {
			c.SleepControl(func() { <-release })
		}
		return nil, nil, false
	})
	p := publisher(t, c.ListenAddrs(), tenants, nil)
	publishAll(t, p, deliveries(1, 1, 10))
	hangs.Store(true)
	began := time.Now()
	publishAll(t, p, append(deliveries(1, 1, 10), deliveries(2, 1, 10)...)) // the topic of the second one is not known yet
	if took := time.Since(began); took > 2*time.Second || !hung.Load() {
		t.Errorf("the call took %v; a connection hung: %v", took, hung.Load())
	}
}
