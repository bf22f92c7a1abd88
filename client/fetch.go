package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/kafkadial"
	"github.com/perceptor/perceptor/record/recordset"
)

// A fetcher reads all partitions of a generation. The records of one publication are on several
// partitions, and each request costs a broker more than its records, so the partitions of a
// broker are read by common requests. A broker that hangs holds up its own partitions only.
//
// For each broker there is a loop that fetches, and one that delivers what the other one has
// fetched before. A partition that cannot be read leaves its loop. It gets another one,
// which finds its new leader, until the next generation.
type fetcher struct {
	*consumer
	g         *generation
	ctx       context.Context
	stop      context.CancelFunc
	addr      net.Addr
	transport *kafka.Transport
	open      openConns
	working   sync.WaitGroup

	mu      sync.Mutex
	renewed time.Time // when the leaders were last asked for
}

// feed is a partition that is read.
type feed struct {
	tracker *tracker
	// next is the offset after the last delivered record, and from that after the last fetched
	// one. A negative offset means the first one that the partition has.
	next, from int64
	// vanished is set when the broker did not know the partition: the topic may be another one when it is back.
	vanished bool
}

// Bounds of a fetch. A broker returns the first records even if they are larger.
const (
	fetchBytes     = 8 << 20 // of all partitions of a broker; it may be held four times
	partitionBytes = 1 << 20
	// answerBytes bounds the records of an answer when they are unpacked. Batches that are too large together are fetched again.
	answerBytes = 2 * recordset.MaxUnpacked
	// leadersTTL is how old the known leaders may be while nothing fails, and renewEvery the
	// shortest time between two questions because something failed.
	leadersTTL = time.Minute
	renewEvery = time.Second
)

func (c *consumer) newFetcher(ctx context.Context, g *generation) *fetcher {
	f := &fetcher{consumer: c, g: g, addr: kafkadial.Addr(c.brokers.get())}
	f.ctx, f.stop = context.WithCancel(ctx)
	f.transport = &kafka.Transport{
		Dial: kafkadial.NewBrokers(c.brokers.get(), f.dial).Dial, DialTimeout: kafkaTimeout, ClientID: c.dialer.ClientID, SASL: c.dialer.SASLMechanism,
		MetadataTopics: []string{c.topic}, MetadataTTL: leadersTTL, Context: f.ctx,
	}
	return f
}

// run reads until the context of f ends, or the listener stops.
func (f *fetcher) run(feeds []*feed) {
	f.working.Go(func() { f.read(feeds) })
	<-f.ctx.Done()
	f.open.close() // running fetches are not waited for
	f.transport.CloseIdleConnections()
	f.working.Wait()
}

// read reads partitions from their leaders until f ends.
func (f *fetcher) read(feeds []*feed) {
	for failures := 0; f.ctx.Err() == nil; {
		groups, err := f.byLeader(feeds)
		if err == nil {
			for _, group := range groups[1:] {
				f.working.Go(func() { f.read(group) })
			}
			var fetched bool
			if feeds, fetched, err = f.readFrom(groups[0]); len(feeds) == 0 {
				return
			}
			if fetched {
				failures = 0
			}
		}
		if f.ctx.Err() != nil {
			return
		}
		f.report("reading records", err)
		if failures++; failures > 1 && !connectionFailed(err) {
			// It may be a single partition whose records cannot be read.
			for _, one := range feeds[1:] {
				f.working.Go(func() { f.readLater([]*feed{one}) })
			}
			feeds = feeds[:1]
		}
		f.pause()
	}
}

// connectionFailed reports whether a request failed for a reason that is the same for all
// partitions of a broker.
func connectionFailed(err error) bool {
	var network net.Error
	var broker kafka.Error
	return errors.As(err, &network) || errors.As(err, &broker) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, errSilent)
}

// readLater is read for partitions that could not be read.
func (f *fetcher) readLater(feeds []*feed) {
	f.pause()
	f.read(feeds)
}

// pause waits for a moment after a failure, and makes the next question for the leaders go to a
// broker.
func (f *fetcher) pause() {
	ctxtime.Sleep(f.ctx, f.times.backoff)
	f.renew()
}

// byLeader groups partitions by the broker to read them from. Those without a leader are looked
// for again later.
func (f *fetcher) byLeader(feeds []*feed) ([][]*feed, error) {
	ctx, cancel := context.WithTimeout(f.ctx, silenceLimit)
	defer cancel()
	m, err := f.client().Metadata(ctx, &kafka.MetadataRequest{Topics: []string{f.topic}})
	if err != nil {
		return nil, err
	}
	leaders := map[int]int{} // by partition
	for _, t := range m.Topics {
		for _, feed := range feeds {
			feed.vanished = feed.vanished || errors.Is(t.Error, kafka.UnknownTopicOrPartition)
		}
		for _, p := range t.Partitions {
			if p.Error == nil {
				leaders[p.ID] = p.Leader.ID
			}
		}
	}
	groups, of := [][]*feed(nil), map[int]int{}
	var leaderless []*feed
	for _, feed := range feeds {
		leader, known := leaders[feed.tracker.partition]
		if !known {
			leaderless = append(leaderless, feed)
			continue
		}
		i, known := of[leader]
		if !known {
			i = len(groups)
			of[leader], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], feed)
	}
	switch {
	case len(groups) == 0:
		return nil, kafka.LeaderNotAvailable
	case len(leaderless) > 0:
		f.working.Go(func() { f.readLater(leaderless) })
	}
	return groups, nil
}

func (f *fetcher) client() *kafka.Client { return &kafka.Client{Addr: f.addr, Transport: f.transport} }

// begin finds the first offsets of partitions of one leader that are read from there, and looks whether those that
// had vanished are the same.
func (f *fetcher) begin(feeds []*feed) error {
	var unknown []int
	for _, feed := range feeds {
		if feed.vanished && feed.from >= 0 {
			if err := f.afterGap(feed); err != nil {
				return err
			}
		}
		if feed.from < 0 {
			unknown = append(unknown, feed.tracker.partition)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	ranges, err := f.ranges(f.ctx, unknown...)
	if err != nil {
		return err
	}
	for _, feed := range feeds {
		if feed.from < 0 {
			feed.from = ranges[feed.tracker.partition].First
		}
	}
	return nil
}

// renew makes the next question for the leaders go to a broker.
func (f *fetcher) renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.renewed) >= renewEvery {
		f.renewed = time.Now()
		f.transport.CloseIdleConnections()
	}
}

// A part is what a fetch found of a partition: batches with records from an offset on, and an error for which
// the partition leaves the loop after them.
type part struct {
	*feed
	at      int64
	batches []recordset.Batch
	err     error
}

// readFrom reads partitions of one leader until a request fails. It returns those that are to
// be read again, and whether a request succeeded.
func (f *fetcher) readFrom(feeds []*feed) (rest []*feed, fetched bool, err error) {
	batches := make(chan []part)
	var delivering sync.WaitGroup
	delivering.Go(func() {
		for parts := range batches {
			f.deliverAll(parts)
		}
	})
	defer delivering.Wait()
	defer close(batches)
	if err := f.begin(feeds); err != nil {
		return feeds, false, err
	}
	for len(feeds) > 0 {
		res, err := f.fetch(feeds)
		if err != nil {
			return feeds, fetched, err
		}
		parts := partsOf(res, feeds)
		fetched = true
		feeds = slices.DeleteFunc(slices.Clone(feeds), func(one *feed) bool {
			return slices.ContainsFunc(parts, func(p part) bool { return p.feed == one && p.err != nil })
		})
		if len(parts) > 0 {
			select {
			case batches <- parts:
			case <-f.ctx.Done():
				return feeds, fetched, f.ctx.Err()
			}
			if len(feeds) > 1 { // another one has its turn if not all of them fit
				feeds = append(feeds[1:], feeds[0])
			}
		}
		// A broker answers nothing for as long as the tenant is above its quota.
		if wait := time.Duration(res.ThrottleTimeMs) * time.Millisecond; wait > 0 {
			ctxtime.Sleep(f.ctx, min(wait, silenceLimit))
		}
	}
	return nil, fetched, nil
}

// fetch asks the leader of partitions for records and waits until there are some, or for the
// longest duration of a fetch.
func (f *fetcher) fetch(feeds []*feed) (*recordset.Answer, error) {
	ctx, cancel := context.WithTimeout(f.ctx, silenceLimit)
	defer cancel()
	from := make([]fetch.RequestPartition, len(feeds))
	for i, feed := range feeds {
		from[i] = fetch.RequestPartition{
			Partition: int32(feed.tracker.partition), FetchOffset: feed.from, PartitionMaxBytes: partitionBytes, CurrentLeaderEpoch: -1, LogStartOffset: -1,
		}
	}
	res, err := f.transport.RoundTrip(ctx, f.addr, &recordset.Fetch{ClientID: f.transport.ClientID, Request: fetch.Request{
		ReplicaID: -1, MaxWaitTime: int32(f.times.maxWait.Milliseconds()), MinBytes: 1, MaxBytes: fetchBytes, SessionID: -1, SessionEpoch: -1,
		Topics: []fetch.RequestTopic{{Topic: f.topic, Partitions: from}},
	}})
	if err != nil {
		return nil, err
	}
	r, ok := res.(*recordset.Answer)
	switch {
	case !ok:
		return nil, fmt.Errorf("the broker answered a fetch with %T", res)
	case r.ErrorCode != 0:
		return nil, kafka.Error(r.ErrorCode)
	}
	return r, nil
}

// partsOf returns what a response has of the partitions that were asked for, and moves their
// offsets. It leaves out those without news.
func partsOf(r *recordset.Answer, feeds []*feed) (parts []part) {
	left := int64(answerBytes)
	for _, topic := range r.Topics {
		for i := range topic.Partitions {
			p := &topic.Partitions[i]
			at := slices.IndexFunc(feeds, func(f *feed) bool { return f.tracker.partition == int(p.Partition) })
			if at < 0 {
				continue
			}
			f := feeds[at]
			if p.ErrorCode != 0 {
				parts = append(parts, part{feed: f, err: kafka.Error(p.ErrorCode)})
				continue
			}
			news := part{feed: f, at: f.from}
			news.batches, f.from, news.err = recordset.Read(r.Records[p.Partition], f.from, &left)
			var unreadable *recordset.UnreadableError
			if errors.As(news.err, &unreadable) {
				f.from = unreadable.Next
			}
			if len(news.batches) > 0 || news.err != nil {
				parts = append(parts, news)
			}
		}
	}
	return parts
}

// deliverAll passes records to the engine, and lets partitions that cannot be read be read
// again.
func (f *fetcher) deliverAll(parts []part) {
	var again []*feed
	for _, p := range parts {
		if !f.deliverPart(&p) {
			return
		}
		var unreadable *recordset.UnreadableError
		switch {
		case f.ctx.Err() != nil:
			return
		case p.err == nil:
			continue
		case errors.As(p.err, &unreadable):
			f.skipBatch(p.feed, unreadable)
		case errors.Is(p.err, kafka.OffsetOutOfRange):
			if err := f.afterGap(p.feed); err != nil && f.ctx.Err() == nil {
				f.report(fmt.Sprintf("reading the offsets of partition %d", p.tracker.partition), err)
			}
		default:
			p.vanished = p.vanished || errors.Is(p.err, kafka.UnknownTopicOrPartition)
			f.report(fmt.Sprintf("reading partition %d", p.tracker.partition), p.err)
		}
		again = append(again, p.feed)
	}
	if len(again) > 0 {
		f.working.Go(func() { f.readLater(again) })
	}
}

// deliverPart passes the records of a partition to the engine. It returns false if the listener
// stops.
func (f *fetcher) deliverPart(p *part) bool {
	for i := range p.batches {
		for r, err := range p.batches[i].Records(p.at) {
			var unreadable *recordset.UnreadableError
			if errors.As(err, &unreadable) {
				f.skipBatch(p.feed, unreadable)
				break
			}
			if !f.l.engine.admit(f.ctx) || !f.l.keys.awaitTrust(f.ctx) {
				f.stop()
				return false
			}
			p.next = f.checkGap(p.tracker.partition, r.Offset, p.next)
			f.deliver(f.ctx, p.tracker, &r)
		}
		f.hasRead(p.tracker.partition, p.batches[i].Newest())
	}
	return true
}

// skipBatch skips a batch of records as one.
func (f *fetcher) skipBatch(p *feed, batch *recordset.UnreadableError) {
	f.refuse(p.tracker, batch.Next-1, "records cannot be read; skipping their batch", f.l.cfg.Events.Poison, &f.l.poison, batch)
	p.next = batch.Next
}

// dial opens a connection that ends with f and does not wait for a silent broker.
func (f *fetcher) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if !f.open.add(conn) {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	return withTLS(ctx, f.tls, &impatientConn{Conn: conn, closed: func() { f.open.remove(conn) }}, address)
}

// withTLS returns a connection with TLS to the host of an address, unless the configuration is nil.
func withTLS(ctx context.Context, conf *tls.Config, conn net.Conn, address string) (net.Conn, error) {
	if conf == nil {
		return conn, nil
	}
	if conf.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		conf = conf.Clone()
		conf.ServerName = host
	}
	secure := tls.Client(conn, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the handshake's error says why
		return nil, fmt.Errorf("TLS with %s: %w", address, err)
	}
	return secure, nil
}

// openConns are connections that are closed together. The methods may be called concurrently.
type openConns struct {
	mu    sync.Mutex
	all   map[net.Conn]bool
	ended bool
}

// add returns false if the connections were closed.
func (o *openConns) add(c net.Conn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[net.Conn]bool{}
	}
	o.all[c] = true
	return !o.ended
}

func (o *openConns) remove(c net.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, c)
}

func (o *openConns) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	for c := range o.all {
		c.Close() //nolint:errcheck // nothing is written
	}
}
