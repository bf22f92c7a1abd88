package app

import (
	"errors"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/store/control"
)

// TestADispatcherRefusesATopicThatMayLoseAcknowledgedRecords checks one safe and one unsafe
// topic on three brokers.
func TestADispatcherRefusesATopicThatMayLoseAcknowledgedRecords(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	topics, err := delivery.NewTopics(delivery.Config{Brokers: c.ListenAddrs()}, delivery.TopicConfig{Replication: 3})
	if err != nil {
		t.Fatal(err)
	}
	d := &Dispatcher{o: DispatcherOptions{Options: Options{Log: quiet}}, kafka: &tenancy{topics: topics}}
	if err := topics.Ensure(t.Context(), topics.Name(1, "safe")); err != nil {
		t.Fatal(err)
	}
	if err := d.checkPage(t.Context(), []control.Tenant{{ID: 1, Name: "safe"}}); err != nil {
		t.Errorf("a new topic is refused: %v", err)
	}
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(c.ListenAddrs()...), Transport: transport}
	unsafe := topics.Name(2, "unsafe")
	res, err := client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: unsafe, NumPartitions: 1, ReplicationFactor: 3, ConfigEntries: []kafka.ConfigEntry{{ConfigName: "min.insync.replicas", ConfigValue: "1"}},
	}}})
	if err != nil || res.Errors[unsafe] != nil {
		t.Fatal(err, res)
	}
	err = d.checkPage(t.Context(), []control.Tenant{{ID: 1, Name: "safe"}, {ID: 2, Name: "unsafe"}})
	if !errors.Is(err, errUnsafe) || !strings.Contains(err.Error(), unsafe+": min.insync.replicas 1 with 3 replicas") {
		t.Errorf("error = %v, want one that names the topic and the setting", err)
	}
}
