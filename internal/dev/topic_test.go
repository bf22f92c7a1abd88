package dev

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/client"
)

// admin makes a call of the API with the admin token and decodes the answer.
func admin(t *testing.T, at Info, path, body string) map[string]any {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at.HTTP+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+at.Admin)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v, %v", path, res.Status, answer, err)
	}
	return answer
}

// TestAMissingTopicHoldsUpNoTenantWithARate deletes the topic of a tenant in an otherwise quiet
// installation, and creates it again.
func TestAMissingTopicHoldsUpNoTenantWithARate(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	o := ephemeral(t, &output{})
	at, _ := running(t, o)
	admin(t, at, "/v1/admin/tenants/demo:update", `{"tenant": {"dispatchRate": 1000}, "updateMask": "dispatchRate"}`)
	topic := fmt.Sprint(admin(t, at, "/v1/admin/tenants", `{"name": "broken"}`)["topic"])
	broken := at
	broken.Token = fmt.Sprint(admin(t, at, "/v1/admin/tokens", `{"token": {"scope": "TENANT", "tenant": "broken"}}`)["secret"])
	deleteTopic(t, at, topic)
	called := callsOf(t, at)
	add(t, at)
	await(t, called, time.Minute) // the listener joins its group
	add(t, broken)
	time.Sleep(8 * time.Second) // nothing is acknowledged meanwhile
	add(t, at)
	await(t, called, 30*time.Second) // the topic is not there before
	createTopic(t, at, topic)
	await(t, callsOf(t, broken), time.Minute)
}

func add(t *testing.T, at Info) {
	t.Helper()
	if _, err := dial(t, at).AddTask(t.Context(), client.Task{Kind: "k", Type: client.OneShot}); err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, called <-chan int64, limit time.Duration) {
	t.Helper()
	select {
	case <-called:
	case <-time.After(limit):
		t.Fatalf("no task was called within %s", limit)
	}
}

// callsOf starts a listener of the tenant, which stops with the test, and returns its calls.
func callsOf(t *testing.T, at Info) <-chan int64 {
	t.Helper()
	called := make(chan int64, 10)
	l, err := dial(t, at).NewListener(client.ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	l.Handle("k", func(_ context.Context, r *client.Run) error { called <- r.TaskID; return nil })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return called
}

func brokerOf(t *testing.T, at Info) *kafka.Client {
	transport := &kafka.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &kafka.Client{Addr: kafka.TCP(at.Kafka), Transport: transport}
}

func deleteTopic(t *testing.T, at Info, topic string) {
	t.Helper()
	res, err := brokerOf(t, at).DeleteTopics(t.Context(), &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil || res.Errors[topic] != nil {
		t.Fatal(err, res)
	}
}

func createTopic(t *testing.T, at Info, topic string) {
	t.Helper()
	res, err := brokerOf(t, at).CreateTopics(t.Context(), &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 4, ReplicationFactor: 1}},
	})
	if err != nil || res.Errors[topic] != nil {
		t.Fatal(err, res)
	}
}
