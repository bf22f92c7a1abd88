package floor

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/record/recordset"
	"github.com/perceptor/perceptor/task"
)

const (
	// partitions is how many a tenant's topic has by default.
	partitions   = 8
	brokerWithin = 10 * time.Second
	// fetchBytes bounds an answer, and fetchWait how long the broker waits with it.
	fetchBytes = 16 << 20
	fetchWait  = 500 * time.Millisecond
)

// broker sends records to a topic of its own with acks=all, and fetches them.
type broker struct {
	topic     string
	addr      net.Addr
	transport *kafka.Transport // of produce requests
	fetches   *kafka.Transport
	next      int // partition of the next record
	mu        sync.Mutex

	key, value []byte
	headers    []record.Header

	fetched atomic.Int64
	sent    atomic.Int64
	stop    context.CancelFunc
	ended   chan error
}

// newBroker creates the topic and begins to fetch.
func newBroker(ctx context.Context, addr string, paramsBytes int) (*broker, error) {
	b := &broker{topic: "perceptor-floor-" + strconv.FormatUint(rand.Uint64(), 36), addr: kafka.TCP(addr), ended: make(chan error, 1)}
	b.transport, b.fetches = b.newTransport(), b.newTransport()
	b.key, b.value, b.headers = bareRecord(paramsBytes)
	within, cancel := context.WithTimeout(ctx, brokerWithin)
	defer cancel()
	client := kafka.Client{Addr: b.addr, Transport: b.transport}
	res, err := client.CreateTopics(within, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: b.topic, NumPartitions: partitions, ReplicationFactor: 1}}})
	if err == nil {
		err = res.Errors[b.topic]
	}
	if err != nil {
		return nil, fmt.Errorf("create topic: %w", err)
	}
	if err := b.awaitLeaders(within, &client); err != nil {
		return nil, err
	}
	fetching, stop := context.WithCancel(context.WithoutCancel(ctx))
	b.stop = stop
	go func() { b.ended <- b.fetchAll(fetching) }()
	return b, nil
}

func (b *broker) newTransport() *kafka.Transport {
	return &kafka.Transport{ClientID: "loadtest floor", MetadataTopics: []string{b.topic}, MetadataTTL: time.Minute}
}

// awaitLeaders waits until the library knows the leader of each partition.
func (b *broker) awaitLeaders(ctx context.Context, client *kafka.Client) error {
	for {
		m, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{b.topic}})
		if err == nil && len(m.Topics) == 1 && m.Topics[0].Error == nil && len(m.Topics[0].Partitions) == partitions {
			b.transport.CloseIdleConnections() // it asks again at once
			return nil
		}
		if err := harness.Sleep(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("the partitions of topic %s have no leaders: %w", b.topic, err)
		}
	}
}

// bareRecord returns a record as the dispatcher publishes it, signed.
func bareRecord(paramsBytes int) (key, value []byte, headers []record.Header) {
	params := bytes.Repeat([]byte("x"), max(0, paramsBytes-6))
	entry := append([]byte{0x0a, 1, 'p', 0x12}, binary.AppendUvarint(nil, uint64(len(params)))...)
	entry = append(entry, params...)
	wire := append(append([]byte{0x0a}, binary.AppendUvarint(nil, uint64(len(entry)))...), entry...)
	now := task.At(time.Now())
	key, value, headers = record.Encode(task.Publication{
		Tenant: 1, Task: 1 << 40, Kind: "load", Type: task.OneShot, Params: wire, Seq: 1, Attempt: 1, ScheduledAt: now, ClaimedAt: now, PublishedAt: now,
		Dispatcher: "dispatcher-1", Version: 1, AckTimeout: time.Minute,
	}, "load")
	return key, value, record.NewKey(1, make([]byte, 32)).Signer().Sign(value, headers)
}

// send produces n records in one request, spread over all partitions, and returns when the broker has them.
func (b *broker) send(ctx context.Context, n int) error {
	req := &rawproduce.Request{Acks: -1, Timeout: int32(brokerWithin.Milliseconds()), Topics: []rawproduce.RequestTopic{{Topic: b.topic}}}
	now := time.Now().UnixMilli()
	for p, count := range b.spread(n) {
		if count == 0 {
			continue
		}
		set := recordset.New(512 * count)
		for i := range count {
			set = recordset.Append(set, i, b.key, b.value, b.headers)
		}
		set, err := recordset.Seal(set, count, now, nil)
		if err != nil {
			return err
		}
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, rawproduce.RequestPartition{
			Partition: int32(p), RecordSet: protocol.RawRecordSet{Reader: bytes.NewReader(set)},
		})
	}
	res, err := b.transport.RoundTrip(ctx, b.addr, req)
	if err != nil {
		return err
	}
	answer, ok := res.(*produce.Response)
	if !ok {
		return fmt.Errorf("the broker answered a produce request with %T", res)
	}
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				return kafka.Error(p.ErrorCode)
			}
		}
	}
	b.sent.Add(int64(n))
	return nil
}

// spread returns how many of n records each partition gets.
func (b *broker) spread(n int) (counts [partitions]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range n {
		counts[b.next]++
		b.next = (b.next + 1) % partitions
	}
	return counts
}

// fetchAll fetches the records of all partitions until ctx ends. It counts them, and looks at none.
func (b *broker) fetchAll(ctx context.Context) error {
	var offsets [partitions]int64
	for ctx.Err() == nil {
		req := fetch.RequestTopic{Topic: b.topic}
		for p, from := range offsets {
			req.Partitions = append(req.Partitions, fetch.RequestPartition{
				Partition: int32(p), FetchOffset: from, PartitionMaxBytes: fetchBytes, CurrentLeaderEpoch: -1, LogStartOffset: -1,
			})
		}
		res, err := b.fetches.RoundTrip(ctx, b.addr, &recordset.Fetch{ClientID: b.fetches.ClientID, Request: fetch.Request{
			ReplicaID: -1, MaxWaitTime: int32(fetchWait.Milliseconds()), MinBytes: 1, MaxBytes: fetchBytes, SessionID: -1, SessionEpoch: -1, Topics: []fetch.RequestTopic{req},
		}})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		for p, set := range res.(*recordset.Answer).Records {
			left := int64(2 * recordset.MaxUnpacked)
			_, next, err := recordset.Read(set, offsets[p], &left)
			if err != nil {
				return fmt.Errorf("fetch: %w", err)
			}
			b.fetched.Add(next - offsets[p])
			offsets[p] = next
		}
	}
	return nil
}

// settle waits until all records that were sent have been fetched.
func (b *broker) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, brokerWithin)
	defer cancel()
	for b.fetched.Load() < b.sent.Load() {
		if len(b.ended) > 0 {
			return <-b.ended
		}
		if harness.Sleep(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("%d records were sent, but %d fetched", b.sent.Load(), b.fetched.Load())
		}
	}
	if sent, fetched := b.sent.Load(), b.fetched.Load(); fetched != sent {
		return fmt.Errorf("%d records were sent, but %d fetched", sent, fetched)
	}
	return nil
}

// close ends the fetches and deletes the topic.
func (b *broker) close() {
	b.stop()
	b.fetches.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), brokerWithin)
	defer cancel()
	client := kafka.Client{Addr: b.addr, Transport: b.transport}
	_, _ = client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{b.topic}}) // the server of a floor is its own, and ends next
	b.transport.CloseIdleConnections()
}
