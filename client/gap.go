package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// Kafka may lose records that this group has not read: they expired while no listener ran, the
// topic was deleted and created again, or a broker lost them. The service finds that out by
// itself, since no result comes, and delivers the runs again. This file tells about it and
// makes sure that the records which are there are read.
//
// The library continues silently behind deleted records, so a gap between offsets is the sign:
// topics are neither compacted nor written in transactions, and have no other gaps.

// checkGap tells of records that are missing before m, where next was to be read. It returns
// the offset after m.
func (c *consumer) checkGap(m kafka.Message, next int64) int64 {
	if next >= 0 && m.Offset > next {
		c.outOfRange(OutOfRange{Partition: m.Partition, Next: next, First: m.Offset, End: m.Offset + 1})
	}
	return m.Offset + 1
}

// afterGap handles a partition without the offset to read. It sets the offset from which to
// read, and the tracker for it. If the partition ends before that offset, offsets begin anew, and
// so does the tracker; runs that are read again are recognised as duplicates. afterGap looks
// twice, because a new leader may not know the end of its partition at first.
func (c *consumer) afterGap(ctx context.Context, g *generation, f *feed) {
	for look := 1; ; look++ {
		o, err := c.rangeOf(ctx, f.tracker.partition)
		o.Next = f.from
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.report(fmt.Sprintf("reading the offsets of partition %d", f.tracker.partition), err)
			return
		case f.from <= o.End:
			f.from = max(f.from, o.First) // the next record tells that some are missing
			return
		case look == 2:
			c.outOfRange(o)
			f.tracker = c.restart(g, f.tracker.partition)
			f.next, f.from = kafka.FirstOffset, o.First
			return
		}
		sleep(ctx, c.times.backoff)
	}
}

// outOfRange tells of records that are lost.
func (c *consumer) outOfRange(o OutOfRange) {
	what := "Kafka has deleted records before they were read"
	if o.Lost() < 0 {
		what = "partition ends before the offset to read next; reading it from its start"
	}
	c.l.log.Error(what+"; runs without a result are delivered again after their ack_timeout", "topic", c.topic,
		"partition", o.Partition, "offset", o.Next, "records", o.Lost(), "err", fmt.Errorf("offsets begin at %d and end before %d", o.First, o.End))
	if f := c.l.cfg.Events.OutOfRange; f != nil {
		f(o)
	}
}

// rangeOf asks the leader of a partition which offsets it has. It asks each broker for the
// leader until one answers.
func (c *consumer) rangeOf(ctx context.Context, partition int) (OutOfRange, error) {
	o := OutOfRange{Partition: partition}
	var failed []error
	for _, broker := range c.brokers.get() {
		var err error
		if o.First, o.End, err = c.offsetsBy(ctx, broker, partition); err == nil {
			return o, nil
		}
		failed = append(failed, err)
	}
	return o, errors.Join(failed...)
}

func (c *consumer) offsetsBy(ctx context.Context, broker string, partition int) (first, end int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, kafkaTimeout)
	defer cancel()
	conn, err := c.dialer.DialLeader(ctx, "tcp", broker, c.topic, partition)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(kafkaTimeout)); err != nil {
		return 0, 0, err
	}
	return conn.ReadOffsets()
}

// restart replaces the tracker of a partition that is read from its start again.
func (c *consumer) restart(g *generation, partition int) *tracker {
	e := c.l.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	g.trackers[partition].over = true
	g.trackers[partition] = newTracker(partition, -1)
	return g.trackers[partition]
}
