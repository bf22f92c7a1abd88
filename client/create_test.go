package client

import (
	"sync/atomic"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestAListenerDoesNotCreateItsTopic: the topic is deleted under a listener, and brokers create topics that somebody
// asks about, as they do by default.
func TestAListenerDoesNotCreateItsTopic(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.AllowAutoTopicCreation(), kfake.SeedTopics(2, testTopic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	b := setupOn(t, cluster.ListenAddrs(), testTopic)
	times := fast
	times.watch = times.heartbeat
	var c counter
	var generations atomic.Int32
	b.listen(ListenerConfig{kafka: times, Events: Events{Assigned: func([]int) { generations.Add(1) }}}, map[string]Handler{"count": c.handle})
	b.publish(manyRuns(4, "count")...)
	b.awaitHandled(&c, 4)
	gone, err := b.admin.DeleteTopics(t.Context(), &kafka.DeleteTopicsRequest{Topics: []string{testTopic}})
	if err != nil || gone.Errors[testTopic] != nil {
		t.Fatal(err, gone)
	}
	direct, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(direct.Close)
	ask := kmsg.NewPtrMetadataRequest()
	ask.Topics = []kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr(testTopic)}}
	exists := func() bool {
		answer, err := ask.RequestWith(t.Context(), direct)
		return err != nil || answer.Topics[0].ErrorCode != int16(kafka.UnknownTopicOrPartition)
	}
	was := generations.Load()
	b.eventually("the listener has looked for the topic several times", func() bool { return generations.Load() >= was+3 || exists() })
	if exists() {
		t.Error("the topic is there again")
	}
}
