package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"
)

// Group is the state of a consumer group.
type Group struct {
	// Members is the number of listeners.
	Members int
	// Lag is the number of records that they have not read. It is -1 if it is unknown.
	Lag int64
}

// Groups reads the state of the consumer groups of tenants, which have the names of their topics.
// Its methods may be called concurrently.
type Groups struct{ conn Config }

// NewGroups returns a Groups, which connects for each call.
func NewGroups(conn Config) (*Groups, error) {
	if err := conn.Validate(); err != nil {
		return nil, fmt.Errorf("configure groups: %w", err)
	}
	return &Groups{conn: conn.withDefaults()}, nil
}

const (
	// groupsAtOnce is how many groups are read over the connections of one client.
	groupsAtOnce = 50
	// groupsTogether is how many of these are read concurrently.
	groupsTogether = 8
)

// Read returns the state of the groups of topics, by topic. Those that Kafka does not tell before
// ctx ends are missing. A group that nobody has ever joined has no members. The members take one
// request, the lag three: it is read where withLag returns true.
func (g *Groups) Read(ctx context.Context, topics []string, withLag func(topic string) bool) map[string]Group {
	var mu sync.Mutex
	all := make(map[string]Group, len(topics))
	for part := range slices.Chunk(topics, groupsAtOnce) {
		transport := g.conn.transport(part)
		client := &kafka.Client{Addr: g.conn.addr(), Timeout: g.conn.Timeout, Transport: transport}
		var reading errgroup.Group
		reading.SetLimit(groupsTogether)
		for _, topic := range part {
			reading.Go(func() error {
				if one, err := readGroup(ctx, client, topic, withLag(topic)); err == nil {
					mu.Lock()
					defer mu.Unlock()
					all[topic] = one
				}
				return nil
			})
		}
		_ = reading.Wait() // no error is returned
		transport.CloseIdleConnections()
		if ctx.Err() != nil {
			break
		}
	}
	return all
}

func readGroup(ctx context.Context, client *kafka.Client, topic string, withLag bool) (Group, error) {
	described, err := client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{topic}})
	if err != nil {
		return Group{}, err
	}
	out := Group{Lag: -1}
	for _, d := range described.Groups {
		if d.Error != nil && !errors.Is(d.Error, kafka.GroupIdNotFound) {
			return Group{}, d.Error
		}
		out.Members += len(d.Members)
	}
	if !withLag {
		return out, nil
	}
	if lag, err := lagOf(ctx, client, topic); err == nil {
		out.Lag = lag
	}
	return out, nil
}

// lagOf returns the number of records after the committed offsets. A partition without a committed
// offset counts from its first record.
func lagOf(ctx context.Context, client *kafka.Client, topic string) (lag int64, err error) {
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return 0, err
	}
	var numbers []int
	var wanted []kafka.OffsetRequest
	for _, t := range meta.Topics {
		for _, p := range t.Partitions {
			numbers = append(numbers, p.ID)
			wanted = append(wanted, kafka.FirstOffsetOf(p.ID), kafka.LastOffsetOf(p.ID))
		}
	}
	if len(numbers) == 0 {
		return 0, kafka.UnknownTopicOrPartition
	}
	ends, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: wanted}})
	if err != nil {
		return 0, err
	}
	committed, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: topic, Topics: map[string][]int{topic: numbers}})
	if err != nil {
		return 0, err
	}
	at := map[int]int64{}
	for _, p := range committed.Topics[topic] {
		at[p.Partition] = p.CommittedOffset
	}
	for _, p := range ends.Topics[topic] {
		if p.Error != nil {
			return 0, p.Error
		}
		from, known := at[p.Partition]
		if !known || from < p.FirstOffset {
			from = p.FirstOffset
		}
		lag += max(0, p.LastOffset-from)
	}
	return lag, nil
}
