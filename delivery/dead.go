package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// A deadRecord is the record of a dead run.
type deadRecord struct {
	kafka.Message
	index int // of the run
	run   *task.DeadLetter
	of    Tenant
}

func newDeadRecord(index int, run *task.DeadLetter, of Tenant) *deadRecord {
	r := &deadRecord{index: index, run: run, of: of}
	r.encode()
	return r
}

func (r *deadRecord) encode() {
	encode := record.EncodeDead
	if r.of.PayloadRecords {
		encode = record.EncodeDeadPayload
	}
	key, value, headers := encode(r.run, r.of.Name)
	r.Message = kafka.Message{Topic: r.of.Topic + DeadSuffix, Key: key, Value: value}
	for _, h := range r.of.Key.Signer().Sign(value, headers) {
		r.Headers = append(r.Headers, kafka.Header{Key: h.Key, Value: h.Value})
	}
}

// paramsOmitted ends the error of a dead run whose record has no params because it would be too large.
const paramsOmitted = " (params omitted: the record would be too large)"

// omitParams makes the record smaller. A run that was unpublishable has no other record that its topic accepts.
func (r *deadRecord) omitParams() {
	small := *r.run
	text := small.Error[:min(len(small.Error), task.MaxErrorBytes-len(paramsOmitted))]
	small.Params, small.Error = nil, strings.ToValidUTF8(text, "")+paramsOmitted
	r.run = &small
	r.encode()
}

// writer returns a writer for the topics, with batches of at most so many records, and a function that closes it.
func (d *DeadLetters) writer(topics []string, batch int) (*kafka.Writer, func()) {
	transport := d.conn.transport(topics)
	w := &kafka.Writer{
		Addr: d.conn.addr(), Transport: transport, RequiredAcks: kafka.RequireAll, MaxAttempts: 3,
		BatchSize: batch, BatchTimeout: 10 * time.Millisecond, WriteTimeout: d.conn.Timeout, BatchBytes: int64(max(d.conn.BatchBytes, record.MaxValueBytes+record.MaxOverheadBytes)),
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
	var records []*deadRecord
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
		records = append(records, newDeadRecord(i, r, t))
	}
	written, failed := d.writeAll(ctx, records)
	for _, r := range written {
		done = append(done, r.index)
	}
	return done, errors.Join(err, failed)
}

// deadBatch is the number of records in a batch.
const deadBatch = 100

// writeAll publishes records and returns those that were acknowledged. A broker refuses a whole batch because of one record
// that is too large, so such a batch is sent again one by one, and what is too large then without its params.
func (d *DeadLetters) writeAll(ctx context.Context, records []*deadRecord) (written []*deadRecord, err error) {
	done, large, err := d.write(ctx, records, deadBatch)
	if len(large) == 0 {
		return done, err
	}
	one, large, err2 := d.write(ctx, large, 1)
	for _, r := range large {
		r.omitParams()
	}
	small, large, err3 := d.write(ctx, large, 1)
	if len(large) > 0 {
		err3 = errors.Join(err3, fmt.Errorf("%d records without params: %w", len(large), kafka.MessageSizeTooLarge))
	}
	return slices.Concat(done, one, small), errors.Join(err, err2, err3)
}

// deleted reports whether the tenant is known to be deleted.
func (d *DeadLetters) deleted(ctx context.Context, tenant int32) bool {
	deleted, err := d.tenants.Deleted(ctx, tenant)
	return err == nil && deleted
}

// write publishes records in batches of at most so many. It returns those that were acknowledged, those of batches that
// are too large, and the error of the others.
func (d *DeadLetters) write(ctx context.Context, records []*deadRecord, batch int) (written, large []*deadRecord, err error) {
	if len(records) == 0 {
		return nil, nil, nil
	}
	topics, messages := make([]string, len(records)), make([]kafka.Message, len(records))
	for i, r := range records {
		topics[i], messages[i] = r.Topic, r.Message
	}
	slices.Sort(topics)
	writer, closeWriter := d.writer(slices.Compact(topics), batch)
	defer closeWriter()
	failed := writer.WriteMessages(ctx, messages...)
	var each kafka.WriteErrors
	switch {
	case failed == nil:
		return records, nil, nil
	case !errors.As(failed, &each):
		return nil, nil, failed
	}
	for n, e := range each {
		switch {
		case e == nil:
			written = append(written, records[n])
		case errors.Is(e, kafka.MessageSizeTooLarge), errors.Is(e, kafka.RecordListTooLarge):
			large = append(large, records[n])
		default:
			err = failed
			d.forget(records[n].Topic)
		}
	}
	return written, large, err
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
