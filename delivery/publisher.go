package delivery

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"

	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/record/recordset"
	"github.com/perceptor/perceptor/task"
)

// Tenant is what the records of a tenant need.
type Tenant struct {
	// Name is for headers that people read.
	Name  string
	Topic string
	// Key signs the records.
	Key *record.Key
	// PayloadRecords selects the form of the records of tasks with a payload.
	PayloadRecords bool
}

// encoder returns what encodes the records of the tenant. The results of a call are valid until the next one.
func (t *Tenant) encoder() func(*task.Publication, string) (key, value []byte, headers []record.Header) {
	var e record.Encoder
	if t.PayloadRecords {
		return e.EncodePayload
	}
	return e.Encode
}

// Tenants is a source of what the records of tenants need. It should answer from memory.
type Tenants interface {
	// Tenant returns the tenant with a number, with its present key.
	Tenant(ctx context.Context, id int32) (Tenant, error)
	// Deleted reports whether the tenant is known to be deleted. It is asked about tenants
	// that are not found or have no topic, and may ask a database.
	Deleted(ctx context.Context, tenant int32) (bool, error)
}

// A Publisher publishes deliveries to Kafka. Its methods may be called
// concurrently.
type Publisher struct {
	cfg       Config
	tenants   Tenants
	codec     compress.Codec
	addr      net.Addr
	transport *kafka.Transport
	layouts   *layouts
	throttles throttles
}

// NewPublisher returns a publisher, which connects on first use.
func NewPublisher(cfg Config, tenants Tenants) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure publisher: %w", err)
	}
	cfg = cfg.withDefaults()
	codec, err := codecOf(cfg.Compression)
	if err != nil {
		return nil, err
	}
	p := &Publisher{cfg: cfg, tenants: tenants, codec: codec, addr: cfg.addr(), transport: cfg.transport(nil)}
	p.layouts = &layouts{transport: p.transport, addr: p.addr, timeout: cfg.DialTimeout, topics: map[string]topicLayout{}}
	return p, nil
}

// Close closes the connections. No method may be called afterwards.
func (p *Publisher) Close() { p.transport.CloseIdleConnections() }

// Reconnect makes later requests use new connections, because the login has changed. Requests that
// are under way end on theirs.
func (p *Publisher) Reconnect() { p.transport.CloseIdleConnections() }

// Publish sends each publication to its tenant's topic. It calls report with the
// outcome: nil when all in-sync replicas have acknowledged the record,
// otherwise an error (see [TooLargeError], [TopicError], [DeletedTenantError]). It calls report exactly
// once for every index, for groups of indexes as brokers answer, possibly from
// several goroutines, and never after Publish has returned.
func (p *Publisher) Publish(ctx context.Context, pubs []task.Publication, report func(index []int, err error)) {
	groups := p.byTopic(ctx, pubs, report)
	batches := p.batches(ctx, pubs, groups, report)
	var brokers sync.WaitGroup
	for leader, list := range batches {
		brokers.Go(func() { p.toLeader(ctx, leader, list, pubs, report) })
	}
	brokers.Wait()
}

// topicGroup holds the publications of one tenant.
type topicGroup struct {
	Tenant
	id    int32
	index []int
}

// byTopic groups publications by tenant, in a fixed order.
func (p *Publisher) byTopic(ctx context.Context, pubs []task.Publication, report func([]int, error)) []*topicGroup {
	byID := make(map[int32]*topicGroup)
	for i := range pubs {
		g := byID[pubs[i].Tenant]
		if g == nil {
			g = &topicGroup{id: pubs[i].Tenant}
			byID[pubs[i].Tenant] = g
		}
		g.index = append(g.index, i)
	}
	var groups []*topicGroup
	for id, g := range byID {
		var err error
		if g.Tenant, err = p.tenants.Tenant(ctx, id); err == nil {
			err = g.Tenant.check()
		}
		if err != nil {
			report(g.index, p.orDeleted(ctx, id, fmt.Errorf("find topic of tenant %d: %w", id, err)))
			continue
		}
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b *topicGroup) int { return cmp.Compare(a.Topic, b.Topic) })
	return groups
}

// check returns an error if records for the tenant cannot be made.
func (t *Tenant) check() error {
	switch {
	case t.Topic == "":
		return ErrUnknownTenant
	case t.Key == nil:
		return ErrNoKey
	}
	return nil
}

// orDeleted returns err, or a [DeletedTenantError] if err has its cause in the deletion of the
// tenant.
func (p *Publisher) orDeleted(ctx context.Context, tenant int32, err error) error {
	if deleted, failed := p.tenants.Deleted(ctx, tenant); failed != nil || !deleted {
		return err
	}
	return &DeletedTenantError{Tenant: tenant}
}

// A batch holds records of one partition.
type batch struct {
	group     *topicGroup
	partition int32
	index     []int
	set       []byte
}

// batches builds the batches of all groups, by leader.
func (p *Publisher) batches(ctx context.Context, pubs []task.Publication, groups []*topicGroup, report func([]int, error)) map[int32][]*batch {
	if len(groups) == 0 {
		return nil
	}
	topics := make([]string, len(groups))
	for i, g := range groups {
		topics[i] = g.Topic
	}
	layouts, err := p.layouts.of(ctx, topics)
	if err != nil {
		for _, g := range groups {
			report(g.index, err)
		}
		return nil
	}
	byLeader := make(map[int32][]*batch)
	for _, g := range groups {
		t, known := layouts[g.Topic]
		if !known {
			t.err = errNoAnswer
		}
		if t.err != nil {
			report(g.index, p.orDeleted(ctx, g.id, t.err))
			continue
		}
		parts := make([][]int, len(t.partitions))
		for _, j := range g.index {
			n := record.Partition(pubs[j].Task, len(parts))
			parts[n] = append(parts[n], j)
		}
		for n, index := range parts {
			if len(index) == 0 {
				continue
			}
			part := &t.partitions[n]
			if part.LeaderID < 0 {
				report(index, fmt.Errorf("publish to topic %s, partition %d: %w", g.Topic, part.PartitionIndex, kafka.LeaderNotAvailable))
				continue
			}
			list := p.encode(g, part.PartitionIndex, index, pubs, report)
			byLeader[part.LeaderID] = append(byLeader[part.LeaderID], list...)
		}
	}
	return byLeader
}

// encode encodes records of one partition into batches of up to BatchBytes.
func (p *Publisher) encode(g *topicGroup, partition int32, index []int, pubs []task.Publication, report func([]int, error)) []*batch {
	var done []*batch
	b, now, signer, encode := p.begin(g, partition, index), time.Now().UnixMilli(), g.Key.Signer(), g.encoder()
	seal := func() {
		set, err := recordset.Seal(b.set, len(b.index), now, p.codec)
		if err != nil {
			report(b.index, err)
			return
		}
		b.set = set
		done = append(done, b)
	}
	for n, i := range index {
		key, value, headers := encode(&pubs[i], g.Name)
		headers = signer.Sign(value, headers)
		size := recordset.RecordSize(len(b.index), key, value, headers)
		if size+recordset.HeaderBytes > p.cfg.RequestBytes-1024 {
			report([]int{i}, &TooLargeError{Topic: g.Topic, Bytes: size + recordset.HeaderBytes})
			continue
		}
		if len(b.index) > 0 && len(b.set)+size+5 > p.cfg.BatchBytes {
			seal()
			b = p.begin(g, partition, index[n:])
		}
		b.set = recordset.Append(b.set, len(b.index), key, value, headers)
		b.index = append(b.index, i)
	}
	if len(b.index) > 0 {
		seal()
	}
	return done
}

func (p *Publisher) begin(g *topicGroup, partition int32, index []int) *batch {
	return &batch{group: g, partition: partition, set: recordset.New(min(512*len(index), p.cfg.BatchBytes)), index: make([]int, 0, len(index))}
}

// toLeader sends batches to the leader of their partitions in as few requests
// as possible. A request may have one batch per partition.
func (p *Publisher) toLeader(ctx context.Context, leader int32, batches []*batch, pubs []task.Publication, report func([]int, error)) {
	for len(batches) > 0 {
		var now, later []*batch
		taken := make(map[partitionKey]bool)
		bytes := 0
		for _, b := range batches {
			k := partitionKey{b.group.Topic, b.partition}
			if taken[k] || (len(now) > 0 && bytes+len(b.set) > p.cfg.RequestBytes) {
				later = append(later, b)
				continue
			}
			taken[k] = true
			bytes += len(b.set)
			now = append(now, b)
		}
		later = append(later, p.request(ctx, leader, now, pubs, report)...)
		batches = later
	}
}

type partitionKey struct {
	topic     string
	partition int32
}

// request sends one produce request and reports the outcome of its records. It
// returns batches to send again because they were split.
func (p *Publisher) request(ctx context.Context, leader int32, batches []*batch, pubs []task.Publication, report func([]int, error)) []*batch {
	res, err := p.produce(ctx, leader, batches)
	if err != nil {
		err = fmt.Errorf("publish to broker %d: %w", leader, err)
		for _, b := range batches {
			p.layouts.outdated(b.group.Topic)
			report(b.index, err)
		}
		return nil
	}
	codes := make(map[partitionKey]int16)
	for _, t := range res.Topics {
		for _, part := range t.Partitions {
			codes[partitionKey{t.Topic, part.Partition}] = part.ErrorCode
		}
	}
	var smaller []*batch
	for _, b := range batches {
		code, ok := codes[partitionKey{b.group.Topic, b.partition}]
		switch {
		case !ok:
			report(b.index, errNoAnswer)
		case isTooLarge(code) && len(b.index) > 1:
			half := len(b.index) / 2
			smaller = append(smaller, p.encode(b.group, b.partition, b.index[:half], pubs, report)...)
			smaller = append(smaller, p.encode(b.group, b.partition, b.index[half:], pubs, report)...)
		case isTooLarge(code):
			report(b.index, &TooLargeError{Topic: b.group.Topic, Bytes: len(b.set)})
		default:
			if isMoved(code) {
				p.layouts.outdated(b.group.Topic)
			}
			report(b.index, partitionError(b.group.Topic, code))
		}
	}
	return smaller
}

// maxBroken bounds the broken connections that one request may encounter.
const maxBroken = 4

// produce sends the batches to their leader. It replaces broken connections immediately.
func (p *Publisher) produce(ctx context.Context, leader int32, batches []*batch) (*produce.Response, error) {
	if wait := p.throttles.wait(leader, time.Now()); wait > p.cfg.Timeout {
		return nil, &QuotaError{Wait: wait}
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout+time.Second)
	defer cancel()
	for try := 1; ; try++ {
		res, err := p.transport.RoundTrip(ctx, p.addr, newProduceRequest(leader, batches, p.cfg.Timeout))
		if err == nil {
			answer, ok := res.(*produce.Response)
			if !ok {
				return nil, errNoAnswer
			}
			p.throttles.answered(leader, time.Now(), time.Duration(answer.ThrottleTimeMs)*time.Millisecond)
			return answer, nil
		}
		if try == maxBroken || !isBroken(err) || ctx.Err() != nil {
			return nil, err
		}
	}
}

// newProduceRequest builds the request. Batches of a topic are adjacent.
func newProduceRequest(leader int32, batches []*batch, timeout time.Duration) *produceRequest {
	req := &produceRequest{Acks: int16(kafka.RequireAll), Timeout: int32(timeout.Milliseconds()), leader: leader}
	at := make(map[string]int)
	for _, b := range batches {
		i, ok := at[b.group.Topic]
		if !ok {
			i = len(req.Topics)
			at[b.group.Topic] = i
			req.Topics = append(req.Topics, rawproduce.RequestTopic{Topic: b.group.Topic})
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rawproduce.RequestPartition{
			Partition: b.partition, RecordSet: protocol.RawRecordSet{Reader: bytes.NewReader(b.set)},
		})
	}
	return req
}
