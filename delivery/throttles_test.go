package delivery

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestNothingIsSentToABrokerThatHoldsRequestsBack: a request that is given up while the broker does not read it is stored later, and its
// records once more when they are sent again.
func TestNothingIsSentToABrokerThatHoldsRequestsBack(t *testing.T) {
	t.Parallel()
	tenants := tenantsOf("", 1)
	c := broker(t, tenants)
	var requests atomic.Int32
	var throttled atomic.Int64 // ms
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		requests.Add(1)
		return accepted(r.(*kmsg.ProduceRequest), int32(throttled.Load())), nil, true
	})
	p := publisher(t, c.ListenAddrs(), tenants, nil)
	throttled.Store(3000) // less than the limit of a request
	publishAll(t, p, deliveries(1, 1, 10))
	throttled.Store((4 * time.Hour).Milliseconds())
	publishAll(t, p, deliveries(1, 1, 10))
	var quota *QuotaError
	err := errors.Join(publish(t, p, deliveries(1, 3, 10))...)
	if !errors.As(err, &quota) || quota.Wait > longestThrottle || requests.Load() != 2 {
		t.Errorf("after %d requests: %v, want a QuotaError after 2", requests.Load(), err)
	}
	t.Log(err)
}

func TestAThrottleEnds(t *testing.T) {
	t.Parallel()
	var throttles throttles
	now := time.Now()
	throttles.answered(1, now, 20*time.Second)
	throttles.answered(1, now.Add(time.Second), 0) // the answer to a request over another connection
	throttles.answered(1, now.Add(time.Second), 5*time.Second)
	for after, want := range map[time.Duration]time.Duration{0: 20 * time.Second, 15 * time.Second: 5 * time.Second, 21 * time.Second: 0} {
		if got := throttles.wait(1, now.Add(after)); got != want {
			t.Errorf("after %s the wait is %s, want %s", after, got, want)
		}
	}
	if got := throttles.wait(2, now); got != 0 {
		t.Errorf("the wait for another broker is %s, want none", got)
	}
}

// accepted returns the answer that all batches are stored.
func accepted(r *kmsg.ProduceRequest, throttleMillis int32) *kmsg.ProduceResponse {
	res := r.ResponseKind().(*kmsg.ProduceResponse)
	res.ThrottleMillis = throttleMillis
	for _, t := range r.Topics {
		topic := kmsg.NewProduceResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			partition := kmsg.NewProduceResponseTopicPartition()
			partition.Partition = p.Partition
			topic.Partitions = append(topic.Partitions, partition)
		}
		res.Topics = append(res.Topics, topic)
	}
	return res
}
