package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

// DeadSuffix is appended to the name of a tenant's topic to form the name of
// its dead-letter topic.
const DeadSuffix = ".dead"

// DeadLetters publishes dead runs to the dead-letter topics of their tenants,
// which it creates on first use. Its methods may be called concurrently.
type DeadLetters struct {
	conn    Config
	topics  *Topics
	tenants Tenants

	mu   sync.Mutex
	made map[string]bool
}

// NewDeadLetters returns a DeadLetters, which connects for each call of Publish: dead runs are
// rare, and an open connection would have to know the layout of all dead-letter topics.
func NewDeadLetters(conn Config, topics *Topics, tenants Tenants) (*DeadLetters, error) {
	if err := conn.Validate(); err != nil {
		return nil, fmt.Errorf("configure dead letters: %w", err)
	}
	return &DeadLetters{conn: conn.withDefaults(), topics: topics, tenants: tenants, made: map[string]bool{}}, nil
}

// writer returns a writer for the topics and a function that closes it.
func (d *DeadLetters) writer(topics []string) (*kafka.Writer, func()) {
	transport := d.conn.transport(topics)
	w := &kafka.Writer{
		Addr: kafka.TCP(d.conn.Brokers...), Transport: transport, RequiredAcks: kafka.RequireAll, MaxAttempts: 3,
		BatchTimeout: 10 * time.Millisecond, WriteTimeout: d.conn.Timeout, BatchBytes: int64(d.conn.RequestBytes),
		Balancer: kafka.BalancerFunc(func(m kafka.Message, partitions ...int) int {
			id, _ := strconv.ParseInt(string(m.Key), 10, 64) // Publish has encoded the key
			return partitions[record.Partition(task.ID(id), len(partitions))]
		}),
	}
	return w, func() {
		_ = w.Close() // no write is in progress
		transport.CloseIdleConnections()
	}
}

// Publish returns the indexes of the dead runs that all in-sync replicas have
// acknowledged, and the errors of the others. Dead runs of a deleted tenant
// count as published.
func (d *DeadLetters) Publish(ctx context.Context, runs []*task.DeadLetter) (done []int, err error) {
	var messages []kafka.Message
	var index []int
	refused := map[int32]bool{} // one attempt per tenant is enough
	for i, r := range runs {
		if refused[r.Tenant] {
			continue
		}
		t, err2 := d.tenants.Tenant(ctx, r.Tenant)
		switch {
		case err2 == nil:
			err2 = d.ensure(ctx, &t)
		case d.deleted(ctx, r.Tenant):
			done = append(done, i)
			continue
		}
		if err2 != nil {
			refused[r.Tenant] = true
			err = errors.Join(err, fmt.Errorf("dead letters of tenant %d: %w", r.Tenant, err2))
			continue
		}
		encode := record.EncodeDead
		if t.PayloadRecords {
			encode = record.EncodeDeadPayload
		}
		key, value, headers := encode(r, t.Name)
		m := kafka.Message{Topic: t.Topic + DeadSuffix, Key: key, Value: value}
		for _, h := range t.Key.Signer().Sign(value, headers) {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: h.Value})
		}
		messages, index = append(messages, m), append(index, i)
	}
	if len(messages) == 0 {
		return done, err
	}
	return d.write(ctx, messages, index, done, err)
}

// deleted reports whether the tenant is known to be deleted.
func (d *DeadLetters) deleted(ctx context.Context, tenant int32) bool {
	deleted, err := d.tenants.Deleted(ctx, tenant)
	return err == nil && deleted
}

// write publishes messages. If the error is WriteErrors, the messages whose error is nil
// were written.
func (d *DeadLetters) write(ctx context.Context, messages []kafka.Message, index, done []int, err error) ([]int, error) {
	topics := make([]string, len(messages))
	for i := range messages {
		topics[i] = messages[i].Topic
	}
	slices.Sort(topics)
	writer, closeWriter := d.writer(slices.Compact(topics))
	defer closeWriter()
	failed := writer.WriteMessages(ctx, messages...)
	var each kafka.WriteErrors
	switch {
	case failed == nil:
		return append(done, index...), err
	case !errors.As(failed, &each):
		return done, errors.Join(err, failed)
	}
	for n, e := range each {
		if e == nil {
			done = append(done, index[n])
			continue
		}
		d.forget(messages[n].Topic)
	}
	return done, errors.Join(err, failed)
}

// ensure creates the dead-letter topic of a tenant on the first call.
func (d *DeadLetters) ensure(ctx context.Context, t *Tenant) error {
	if err := t.check(); err != nil {
		return err
	}
	topic := t.Topic + DeadSuffix
	d.mu.Lock()
	known := d.made[topic]
	d.mu.Unlock()
	if known {
		return nil
	}
	if err := d.topics.Ensure(ctx, topic); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made[topic] = true
	return nil
}

// forget makes ensure create a topic again, in case it was deleted.
func (d *DeadLetters) forget(topic string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.made, topic)
}

// Remove deletes the topic of a tenant and its dead-letter topic. Missing topics are not an
// error.
func (t *Topics) Remove(ctx context.Context, topic string) error {
	names := []string{topic, topic + DeadSuffix}
	client, closeClient := t.client()
	defer closeClient()
	res, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: names})
	if err != nil {
		return fmt.Errorf("delete topics %v: %w", names, err)
	}
	for name, err := range res.Errors {
		if err != nil && !errors.Is(err, kafka.UnknownTopicOrPartition) {
			return fmt.Errorf("delete topic %s: %w", name, err)
		}
	}
	return nil
}
