package delivery

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"

	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

// Tenants knows the tenants' names and topics. It should answer from memory.
type Tenants interface {
	// TenantTopic returns the name and the topic of a tenant.
	TenantTopic(ctx context.Context, tenant int32) (name, topic string, err error)
}

// A Publisher puts deliveries on Kafka. Its methods may be called concurrently.
type Publisher struct {
	cfg       Config
	tenants   Tenants
	codec     compress.Codec
	addr      net.Addr
	transport *kafka.Transport

	// stale: an answer has shown that the layout is out of date. refreshed is
	// when it was last asked for, in Unix ns.
	stale     atomic.Bool
	refreshed atomic.Int64
}

// NewPublisher returns a publisher; it connects with the first use.
func NewPublisher(cfg Config, tenants Tenants) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure publisher: %w", err)
	}
	cfg = cfg.withDefaults()
	codec, err := codecOf(cfg.Compression)
	if err != nil {
		return nil, err
	}
	return &Publisher{cfg: cfg, tenants: tenants, codec: codec, addr: kafka.TCP(cfg.Brokers...), transport: cfg.transport()}, nil
}

// Close closes the connections. No other method may be called any more.
func (p *Publisher) Close() { p.transport.CloseIdleConnections() }

// Ping asks some broker whether it is there. What is known from before does not
// count.
func (p *Publisher) Ping(ctx context.Context) error {
	for try := 1; ; try++ {
		res, err := p.transport.RoundTrip(ctx, p.addr, &apiversions.Request{})
		if err == nil {
			if code := res.(*apiversions.Response).ErrorCode; code != 0 {
				return fmt.Errorf("ask Kafka: %w", kafka.Error(code))
			}
			return nil
		}
		if try == maxBroken || !isBroken(err) {
			return fmt.Errorf("ask Kafka: %w", err)
		}
	}
}

// Publish sends each publication to its tenant's topic and tells settle what
// became of it: nil when all in-sync replicas have acknowledged it, else an
// error (see [TooLargeError], [TopicError]). settle is called exactly once for
// every index, in groups as brokers answer, possibly from several goroutines,
// and not any more when Publish has returned.
func (p *Publisher) Publish(ctx context.Context, pubs []task.Publication, settle func(index []int, err error)) {
	groups := p.byTopic(ctx, pubs, settle)
	batches := p.batches(ctx, pubs, groups, settle)
	var brokers sync.WaitGroup
	for leader, list := range batches {
		brokers.Go(func() { p.toLeader(ctx, leader, list, pubs, settle) })
	}
	brokers.Wait()
}

// topicGroup is the publications of one tenant.
type topicGroup struct {
	tenant, topic string
	index         []int
}

// byTopic groups publications by tenant, in a fixed order.
func (p *Publisher) byTopic(ctx context.Context, pubs []task.Publication, settle func([]int, error)) []*topicGroup {
	byID := make(map[int32]*topicGroup)
	for i := range pubs {
		g := byID[pubs[i].Tenant]
		if g == nil {
			g = &topicGroup{}
			byID[pubs[i].Tenant] = g
		}
		g.index = append(g.index, i)
	}
	var groups []*topicGroup
	for id, g := range byID {
		var err error
		if g.tenant, g.topic, err = p.tenants.TenantTopic(ctx, id); err == nil && g.topic == "" {
			err = ErrUnknownTenant
		}
		if err != nil {
			settle(g.index, fmt.Errorf("find topic of tenant %d: %w", id, err))
			continue
		}
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b *topicGroup) int { return cmp.Compare(a.topic, b.topic) })
	return groups
}

// layout returns what is known of the topics, from memory once there was
// contact. It asks anew, though not often, for topics that are not known.
func (p *Publisher) layout(ctx context.Context, topics []string) (*metadata.Response, error) {
	if p.stale.Load() && p.refresh(ctx) {
		p.stale.Store(false)
	}
	res, err := p.remembered(ctx, topics)
	if err == nil && slices.ContainsFunc(res.Topics, isMissing) && p.refresh(ctx) {
		res, err = p.remembered(ctx, topics)
	}
	if err != nil {
		return nil, fmt.Errorf("find leaders: %w", err)
	}
	return res, nil
}

func isMissing(t metadata.ResponseTopic) bool {
	return t.ErrorCode != 0 || len(t.Partitions) == 0
}

func (p *Publisher) remembered(ctx context.Context, topics []string) (*metadata.Response, error) {
	res, err := p.transport.RoundTrip(ctx, p.addr, &metadata.Request{TopicNames: topics})
	if err != nil {
		return nil, err
	}
	return res.(*metadata.Response), nil
}

// refreshEvery bounds how often the layout is asked for out of turn.
const refreshEvery = 200 * time.Millisecond

// refresh has the transport read the layout now. The library does so after each
// request to create topics, so this asks for the creation of none. False: it was
// done a moment ago, or failed.
func (p *Publisher) refresh(ctx context.Context) bool {
	last, now := p.refreshed.Load(), time.Now().UnixNano()
	if now-last < int64(refreshEvery) || !p.refreshed.CompareAndSwap(last, now) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	_, err := p.transport.RoundTrip(ctx, p.addr, &createtopics.Request{ValidateOnly: true, TimeoutMs: 1000})
	return err == nil
}

// A batch is some records of one partition.
type batch struct {
	group     *topicGroup
	partition int32
	index     []int
	set       []byte
}

// batches builds the batches of all groups, by leader.
func (p *Publisher) batches(ctx context.Context, pubs []task.Publication, groups []*topicGroup, settle func([]int, error)) map[int32][]*batch {
	if len(groups) == 0 {
		return nil
	}
	topics := make([]string, len(groups))
	for i, g := range groups {
		topics[i] = g.topic
	}
	layout, err := p.layout(ctx, topics)
	if err != nil {
		for _, g := range groups {
			settle(g.index, err)
		}
		return nil
	}
	byLeader := make(map[int32][]*batch)
	for i, g := range groups {
		t := &layout.Topics[i]
		if isMissing(*t) {
			settle(g.index, &TopicError{Topic: g.topic, Err: kafka.Error(cmp.Or(t.ErrorCode, int16(kafka.LeaderNotAvailable)))})
			continue
		}
		parts := make([][]int, len(t.Partitions))
		for _, j := range g.index {
			n := record.Partition(pubs[j].Task, len(parts))
			parts[n] = append(parts[n], j)
		}
		for n, index := range parts {
			if len(index) == 0 {
				continue
			}
			part := &t.Partitions[n]
			if part.LeaderID < 0 {
				settle(index, fmt.Errorf("publish to topic %s, partition %d: %w", g.topic, part.PartitionIndex, kafka.LeaderNotAvailable))
				continue
			}
			list := p.encode(g, part.PartitionIndex, index, pubs, settle)
			byLeader[part.LeaderID] = append(byLeader[part.LeaderID], list...)
		}
	}
	return byLeader
}

// encode packs records of one partition into batches of up to BatchBytes.
func (p *Publisher) encode(g *topicGroup, partition int32, index []int, pubs []task.Publication, settle func([]int, error)) []*batch {
	var done []*batch
	b, now := p.begin(g, partition, index), time.Now().UnixMilli()
	seal := func() {
		set, err := sealBatch(b.set, len(b.index), now, p.codec)
		if err != nil {
			settle(b.index, err)
			return
		}
		b.set = set
		done = append(done, b)
	}
	for n, i := range index {
		key, value, headers := record.Encode(pubs[i], g.tenant)
		size := recordSize(len(b.index), key, value, headers)
		if size+batchHeader > p.cfg.RequestBytes-1024 {
			settle([]int{i}, &TooLargeError{Topic: g.topic, Bytes: size + batchHeader})
			continue
		}
		if len(b.index) > 0 && len(b.set)+size+5 > p.cfg.BatchBytes {
			seal()
			b = p.begin(g, partition, index[n:])
		}
		b.set = appendRecord(b.set, len(b.index), key, value, headers)
		b.index = append(b.index, i)
	}
	if len(b.index) > 0 {
		seal()
	}
	return done
}

func (p *Publisher) begin(g *topicGroup, partition int32, index []int) *batch {
	return &batch{group: g, partition: partition, set: newBatch(min(512*len(index), p.cfg.BatchBytes)), index: make([]int, 0, len(index))}
}

// toLeader sends batches to the broker that leads their partitions, in as few
// requests as possible: each may have one batch per partition.
func (p *Publisher) toLeader(ctx context.Context, leader int32, batches []*batch, pubs []task.Publication, settle func([]int, error)) {
	for len(batches) > 0 {
		var now, later []*batch
		taken := make(map[partitionKey]bool)
		bytes := 0
		for _, b := range batches {
			k := partitionKey{b.group.topic, b.partition}
			if taken[k] || (len(now) > 0 && bytes+len(b.set) > p.cfg.RequestBytes) {
				later = append(later, b)
				continue
			}
			taken[k] = true
			bytes += len(b.set)
			now = append(now, b)
		}
		later = append(later, p.request(ctx, leader, now, pubs, settle)...)
		batches = later
	}
}

type partitionKey struct {
	topic     string
	partition int32
}

// request sends one produce request and settles its records. It returns what is
// to be sent in smaller batches.
func (p *Publisher) request(ctx context.Context, leader int32, batches []*batch, pubs []task.Publication, settle func([]int, error)) []*batch {
	res, err := p.produce(ctx, batches)
	if err != nil {
		err = fmt.Errorf("publish to broker %d: %w", leader, err)
		for _, b := range batches {
			settle(b.index, err)
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
		code, ok := codes[partitionKey{b.group.topic, b.partition}]
		switch {
		case !ok:
			settle(b.index, errNoAnswer)
		case isTooLarge(code) && len(b.index) > 1:
			half := len(b.index) / 2
			smaller = append(smaller, p.encode(b.group, b.partition, b.index[:half], pubs, settle)...)
			smaller = append(smaller, p.encode(b.group, b.partition, b.index[half:], pubs, settle)...)
		case isTooLarge(code):
			settle(b.index, &TooLargeError{Topic: b.group.topic, Bytes: len(b.set)})
		default:
			if isMoved(code) {
				p.stale.Store(true)
			}
			settle(b.index, partitionError(b.group.topic, code))
		}
	}
	return smaller
}

// maxBroken bounds the broken connections that one request may come across.
const maxBroken = 4

// produce sends the batches; connections that turn out to be broken are
// replaced at once.
func (p *Publisher) produce(ctx context.Context, batches []*batch) (*produce.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout+time.Second)
	defer cancel()
	for try := 1; ; try++ {
		res, err := p.transport.RoundTrip(ctx, p.addr, produceRequest(batches, p.cfg.Timeout))
		if err == nil {
			answer, ok := res.(*produce.Response)
			if !ok {
				return nil, errNoAnswer
			}
			return answer, nil
		}
		if try == maxBroken || !isBroken(err) || ctx.Err() != nil {
			return nil, err
		}
	}
}

// produceRequest builds the request; batches of a topic follow each other.
func produceRequest(batches []*batch, timeout time.Duration) *rawproduce.Request {
	req := &rawproduce.Request{Acks: int16(kafka.RequireAll), Timeout: int32(timeout.Milliseconds())}
	at := make(map[string]int)
	for _, b := range batches {
		i, ok := at[b.group.topic]
		if !ok {
			i = len(req.Topics)
			at[b.group.topic] = i
			req.Topics = append(req.Topics, rawproduce.RequestTopic{Topic: b.group.topic})
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rawproduce.RequestPartition{
			Partition: b.partition, RecordSet: protocol.RawRecordSet{Reader: bytes.NewReader(b.set)},
		})
	}
	return req
}
