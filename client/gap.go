package client

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/internal/ctxtime"
)

// Kafka may lose records that this group has not read: they expired while no listener ran, the
// topic was deleted and created again, or a broker lost them. The service finds that out by
// itself, since no result comes, and delivers the runs again. This file tells about it and
// makes sure that the records which are there are read.
//
// The library continues silently behind deleted records, so a gap between offsets is the sign:
// topics are neither compacted nor written in transactions, and have no other gaps.

// checkGap tells of records that are missing before an offset, where next was to be read. It returns
// the one after it.
func (c *consumer) checkGap(partition int, offset, next int64) int64 {
	if next >= 0 && offset > next {
		c.outOfRange(OutOfRange{Partition: partition, Next: next, First: offset, End: offset + 1}, offset)
	}
	return offset + 1
}

// rereads is how far the clocks of those who write records may differ, with the time that records
// are on their way.
const rereads = 10 * time.Minute

// afterGap handles a partition without the offset to read, or one that was gone for a while. It sets the offset from which to
// read, and the tracker for it. If the partition ends before that offset, records were lost, or the
// topic was created again. Where the lost ones began is not known. So the records are read again
// from shortly before the newest one that was read, for those after it were not; a topic keeps
// records for days, and all others were. If none was read here, all records are read. Runs that are
// read again are recognised as duplicates. afterGap looks twice, because a new leader may not know
// the end of its partition at first.
func (f *fetcher) afterGap(feed *feed) error {
	for look := 1; ; look++ {
		o, err := f.rangeOf(feed)
		switch {
		case err != nil:
			return err
		case feed.from <= o.End && !o.anew:
			feed.from = max(feed.from, o.First) // the next record tells that some are missing
			feed.vanished = false
			return nil
		case look == 2 || o.anew:
			from, err := f.unread(o)
			if err != nil {
				return err
			}
			f.outOfRange(o, from)
			feed.tracker = f.restart(f.g, o.Partition)
			feed.next, feed.from, feed.vanished = kafka.FirstOffset, from, false
			return nil
		}
		ctxtime.Sleep(f.ctx, f.times.backoff)
	}
}

// rangeOf returns what a partition has instead of the offset to read. A topic that was created again may have that
// offset already, of another record. Then all of its records are newer than the newest one that was read.
func (f *fetcher) rangeOf(feed *feed) (OutOfRange, error) {
	partition := feed.tracker.partition
	ranges, err := f.ranges(f.ctx, partition)
	if err != nil {
		return OutOfRange{}, err
	}
	o := ranges[partition]
	o.Next = feed.from
	newest, known := f.newestRead(partition)
	if !known || o.Next <= o.First || o.Next > o.End {
		return o, nil
	}
	newer, err := f.since(partition, newest.Add(time.Millisecond))
	o.anew = newer == o.First
	return o, err
}

// hasRead remembers when the newest record of a batch was written, in ms. A writer whose clock is ahead
// must not hide the records of others.
func (c *consumer) hasRead(partition int, ms int64) {
	newest := time.UnixMilli(min(ms, time.Now().UnixMilli()))
	c.newestMu.Lock()
	defer c.newestMu.Unlock()
	if newest.After(c.newest[partition]) {
		c.newest[partition] = newest
	}
}

func (c *consumer) newestRead(partition int) (newest time.Time, known bool) {
	c.newestMu.Lock()
	defer c.newestMu.Unlock()
	newest, known = c.newest[partition]
	return newest, known
}

// unread returns the offset from which a partition has all records that were not read here, although
// offsets before it were.
func (f *fetcher) unread(o OutOfRange) (int64, error) {
	newest, known := f.newestRead(o.Partition)
	if !known {
		return o.First, nil
	}
	from, err := f.since(o.Partition, newest.Add(-rereads))
	if err == nil && from < o.First {
		from = o.End // all are older
	}
	return from, err
}

// since returns the first offset of a partition with a record that was written at an instant or later, or -1.
func (f *fetcher) since(partition int, at time.Time) (int64, error) {
	ctx, cancel := context.WithTimeout(f.ctx, silenceLimit)
	defer cancel()
	r, err := f.client().ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{f.topic: {kafka.TimeOffsetOf(partition, at)}},
	})
	if err != nil {
		return -1, err
	}
	for _, p := range r.Topics[f.topic] {
		if p.Error != nil {
			return -1, fmt.Errorf("partition %d: %w", partition, p.Error)
		}
		for offset := range p.Offsets {
			return offset, nil
		}
	}
	return -1, nil
}

// outOfRange tells of records that are lost, and where the listener continues.
func (c *consumer) outOfRange(o OutOfRange, from int64) {
	what := "Kafka has deleted records before they were read"
	switch {
	case o.anew:
		what = "the topic was created again; its records are read from their start"
	case o.Lost() < 0:
		what = "partition ends before the offset to read next; its last records are read again"
	}
	c.l.log.Error(what+"; runs without a result are delivered again after their ack_timeout", "topic", c.topic,
		"partition", o.Partition, "offset", o.Next, "records", o.Lost(), "err", fmt.Errorf("offsets begin at %d and end before %d; reading from %d", o.First, o.End, from))
	if f := c.l.cfg.Events.OutOfRange; f != nil {
		f(o)
	}
}

// ranges asks the leaders of partitions which offsets these have.
func (f *fetcher) ranges(ctx context.Context, partitions ...int) (map[int]OutOfRange, error) {
	ctx, cancel := context.WithTimeout(ctx, silenceLimit)
	defer cancel()
	var ask []kafka.OffsetRequest
	for _, p := range partitions {
		ask = append(ask, kafka.FirstOffsetOf(p), kafka.LastOffsetOf(p))
	}
	r, err := f.client().ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{f.topic: ask}})
	if err != nil {
		return nil, err
	}
	ranges := map[int]OutOfRange{}
	for _, p := range r.Topics[f.topic] {
		if p.Error != nil {
			return nil, fmt.Errorf("partition %d: %w", p.Partition, p.Error)
		}
		ranges[p.Partition] = OutOfRange{Partition: p.Partition, First: p.FirstOffset, End: p.LastOffset}
	}
	for _, p := range partitions {
		if _, known := ranges[p]; !known {
			return nil, fmt.Errorf("partition %d: %w", p, kafka.UnknownTopicOrPartition)
		}
	}
	return ranges, nil
}

// restart replaces the tracker of a partition of which records are read again.
func (c *consumer) restart(g *generation, partition int) *tracker {
	e := c.l.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	g.trackers[partition].over = true
	g.trackers[partition] = newTracker(partition, -1)
	return g.trackers[partition]
}
