package delivery

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"

	"github.com/perceptor/perceptor/internal/kafkadial"
)

// The library's transport reads the partitions of all topics of the cluster, all the time. With
// 10,000 tenants that is megabytes per second. So the transport here reads the brokers only
// (see [Config.transport]); layouts asks about the topics that records are published to, and
// two requests of our own do what the library does with its knowledge: [layoutRequest] is not
// answered from its cache, and [produceRequest] names its leader.

// layouts caches the partitions of topics and their leaders. Its methods may be called
// concurrently.
type layouts struct {
	transport *kafka.Transport
	addr      net.Addr
	timeout   time.Duration // of a question to several brokers

	mu     sync.Mutex
	topics map[string]topicLayout
}

// A topicLayout is the partitions of a topic, by index, or the error for it.
type topicLayout struct {
	partitions []metadata.ResponsePartition
	err        error
	// outdated is set when the partitions may have other leaders.
	outdated bool
	readAt   time.Time
}

const (
	// layoutAge is how long a layout is used without a sign that it is outdated. Partitions
	// that are added to a topic are used that much later.
	layoutAge = time.Minute
	// refreshEvery is the minimum interval between two requests about a topic.
	refreshEvery = 200 * time.Millisecond
	// maxLayouts bounds the cached layouts.
	maxLayouts = 100_000
)

// old reports whether to read the layout again.
func (l *topicLayout) old(now time.Time) bool {
	age := now.Sub(l.readAt)
	return age >= layoutAge || (l.outdated || l.err != nil) && age >= refreshEvery
}

// of returns the layouts of the topics. If they cannot be read it returns the cached ones, or
// an error if it has none of a topic.
func (l *layouts) of(ctx context.Context, topics []string) (map[string]topicLayout, error) {
	known, old := l.cached(time.Now(), topics)
	if len(old) == 0 {
		return known, nil
	}
	read, err := l.read(ctx, old)
	switch {
	case err != nil && len(known) == len(topics):
		return known, nil
	case err != nil:
		return nil, fmt.Errorf("find leaders: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.topics)+len(read) > maxLayouts {
		clear(l.topics)
	}
	for name, layout := range read {
		l.topics[name], known[name] = layout, layout
	}
	return known, nil
}

// cached returns what is known of the topics, and the topics to read.
func (l *layouts) cached(now time.Time, topics []string) (known map[string]topicLayout, old []string) {
	known = make(map[string]topicLayout, len(topics))
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range topics {
		layout, ok := l.topics[name]
		if ok {
			known[name] = layout
		}
		if !ok || layout.old(now) {
			old = append(old, name)
		}
	}
	return known, old
}

// outdated records that the leaders of the topic may have changed.
func (l *layouts) outdated(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if layout, ok := l.topics[topic]; ok {
		layout.outdated = true
		l.topics[topic] = layout
	}
}

// read asks a broker about the topics. A broken connection is replaced by another, and a broker that
// is silent gets company: an idle connection may lead to one that hangs, and everything
// that a call publishes would wait for it. After maxBroken tries, or the timeout, read gives up.
func (l *layouts) read(ctx context.Context, topics []string) (map[string]topicLayout, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	ask := func(ctx context.Context, _ int) ([]metadata.ResponseTopic, error) { return l.ask(ctx, topics) }
	answer, failed := kafkadial.First(ctx, maxBroken, ask, nil)
	if failed != nil {
		return nil, failed[len(failed)-1]
	}
	return layoutsOf(answer, time.Now()), nil
}

func (l *layouts) ask(ctx context.Context, topics []string) ([]metadata.ResponseTopic, error) {
	res, err := l.transport.RoundTrip(ctx, l.addr, &layoutRequest{topics: topics, clientID: l.transport.ClientID})
	if err != nil {
		return nil, err
	}
	return res.(*layoutResponse).topics, nil
}

// layoutsOf converts an answer. A topic without a leader for each partition is outdated from
// the beginning.
func layoutsOf(topics []metadata.ResponseTopic, now time.Time) map[string]topicLayout {
	read := make(map[string]topicLayout, len(topics))
	for _, t := range topics {
		layout := topicLayout{partitions: t.Partitions, readAt: now}
		if t.ErrorCode != 0 || len(t.Partitions) == 0 {
			layout.err = &TopicError{Topic: t.Name, Err: kafka.Error(cmp.Or(t.ErrorCode, int16(kafka.LeaderNotAvailable)))}
		}
		slices.SortFunc(layout.partitions, func(a, b metadata.ResponsePartition) int {
			return cmp.Compare(a.PartitionIndex, b.PartitionIndex)
		})
		layout.outdated = slices.ContainsFunc(layout.partitions, func(p metadata.ResponsePartition) bool { return p.LeaderID < 0 })
		read[t.Name] = layout
	}
	return read
}

// A layoutRequest asks for the layout of topics. The library answers a [metadata.Request] from
// its cache; it leaves the exchange of this request to its methods.
type layoutRequest struct {
	topics   []string
	clientID string
	version  int16
}

func (r *layoutRequest) ApiKey() protocol.ApiKey { return protocol.Metadata }

// Required implements [protocol.RawExchanger]. It is called before RawExchange.
func (r *layoutRequest) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[protocol.Metadata]
	return true
}

// RawExchange implements [protocol.RawExchanger].
func (r *layoutRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	res, err := protocol.RoundTrip(rw, r.version, 0, r.clientID, &metadata.Request{TopicNames: r.topics})
	if err != nil {
		return nil, err
	}
	answer, ok := res.(*metadata.Response)
	if !ok {
		return nil, errNoAnswer
	}
	return &layoutResponse{answer.Topics}, nil
}

// A layoutResponse is the answer to a layoutRequest.
type layoutResponse struct{ topics []metadata.ResponseTopic }

func (r *layoutResponse) ApiKey() protocol.ApiKey { return protocol.Metadata }

// A produceRequest goes to the given leader. It has the fields of [rawproduce.Request].
type produceRequest struct {
	TransactionalID string                    `kafka:"min=v3,max=v8,nullable"`
	Acks            int16                     `kafka:"min=v0,max=v8"`
	Timeout         int32                     `kafka:"min=v0,max=v8"`
	Topics          []rawproduce.RequestTopic `kafka:"min=v0,max=v8"`

	leader int32
}

func (r *produceRequest) ApiKey() protocol.ApiKey           { return protocol.Produce }
func (r *produceRequest) TypeKey() protocol.OverrideTypeKey { return ownRequest }

// Broker returns the leader.
func (r *produceRequest) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
	broker, ok := cluster.Brokers[r.leader]
	if !ok {
		return broker, kafka.BrokerNotAvailable
	}
	return broker, nil
}

// ownRequest distinguishes a produceRequest from the requests of the library.
const ownRequest protocol.OverrideTypeKey = 100

func init() { protocol.RegisterOverride(&produceRequest{}, &produce.Response{}, ownRequest) }
