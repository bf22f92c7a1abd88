package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/store/control"
)

// tenantList is a list of tenants in the order of their names.
type tenantList []control.Tenant

func (l tenantList) Tenants(_ context.Context, after string, limit int) ([]control.Tenant, error) {
	i, found := slices.BinarySearchFunc(l, after, func(t control.Tenant, name string) int { return strings.Compare(t.Name, name) })
	if found {
		i++
	}
	return l[i:min(len(l), i+limit)], nil
}

// TestATopicThatMayLoseRecordsIsNamedWheneverItsSettingsChange has a safe and an unsafe topic on three brokers.
func TestATopicThatMayLoseRecordsIsNamedWheneverItsSettingsChange(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	topics, err := delivery.NewTopics(delivery.Config{Brokers: c.ListenAddrs()}, delivery.TopicConfig{Replication: 3})
	if err != nil {
		t.Fatal(err)
	}
	for id, name := range []string{"safe", "unsafe"} {
		if err := topics.Ensure(t.Context(), topics.Name(int32(id), name)); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	faulty := -1
	w := &topicWatch{
		tenants: tenantList{{ID: 0, Name: "safe"}, {ID: 1, Name: "unsafe"}}, topics: topics,
		log: slog.New(slog.NewTextHandler(&log, nil)), faulty: func(n int) { faulty = n },
	}
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(c.ListenAddrs()...), Transport: transport}
	const told = "topic perceptor.1.unsafe: min.insync.replicas 1 with 3 replicas"
	for i, step := range []struct {
		inSync       string
		faulty, told int
	}{{"2", 0, 0}, {"1", 1, 1}, {"1", 1, 1}, {"2", 0, 1}, {"1", 1, 2}} {
		res, err := client.AlterConfigs(t.Context(), &kafka.AlterConfigsRequest{Resources: []kafka.AlterConfigRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topics.Name(1, "unsafe"),
			Configs: []kafka.AlterConfigRequestConfig{{Name: "min.insync.replicas", Value: step.inSync}, {Name: "retention.ms", Value: "259200000"}},
		}}})
		if err != nil {
			t.Fatal(err, res)
		}
		if !w.look(t.Context()) || faulty != step.faulty || strings.Count(log.String(), told) != step.told {
			t.Errorf("look %d with min.insync.replicas=%s: %d faulty topics, want %d; the log, where %q is expected %d times:\n%s",
				i, step.inSync, faulty, step.faulty, told, step.told, log.String())
		}
	}
	if strings.Contains(log.String(), ".safe") {
		t.Errorf("the log names the safe topic:\n%s", log.String())
	}
}

func TestTheTopicsOfAllTenantsAreChecked(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	topics, err := delivery.NewTopics(delivery.Config{Brokers: c.ListenAddrs()}, delivery.TopicConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var tenants tenantList
	for id := range topicsPage + 1 {
		tenants = append(tenants, control.Tenant{ID: int32(id), Name: fmt.Sprintf("t%04d", id)})
	}
	names, err := topicNames(t.Context(), tenants, topics)
	if err != nil || len(names) != len(tenants) {
		t.Fatalf("%d topics, %v; want %d", len(names), err, len(tenants))
	}
	found, err := checkTopics(t.Context(), topics, names)
	if err != nil || len(found) != len(tenants) || found[topicsPage].Topic != names[topicsPage] {
		t.Errorf("%d findings, %v; want that each of %d topics is missing", len(found), err, len(tenants))
	}
}
