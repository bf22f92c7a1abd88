package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/kafkadial"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/record/recordset"
	"github.com/perceptor/perceptor/task"
)

// consumer is the Kafka side of a listener: a member of the consumer group that
// reads its partitions with a [fetcher]. A generation is the time between two
// rebalances. Offsets are committed under the generation that read them.
type consumer struct {
	l       *Listener
	topic   string
	group   string
	brokers brokerList
	tls     *tls.Config   // nil: in the clear
	dialer  *kafka.Dialer // of the group; its DialFunc does the TLS
	times   groupTimes
	closing sync.WaitGroup // groups
	trouble logLimit

	newestMu sync.Mutex
	// newest says of each partition when the newest record that was read was written. It outlasts generations.
	newest map[int]time.Time
}

// groupTimes are the timeouts and intervals of the consumer group. Zero fields
// take their defaults.
type groupTimes struct {
	session   time.Duration // a member that sends no heartbeat for this long is removed
	heartbeat time.Duration // also the time until a member learns of a rebalance
	rebalance time.Duration // time that members have to rejoin
	backoff   time.Duration // between two tries to join; kafka-go's 5 s would delay every first record
	watch     time.Duration // interval of the search for new partitions
	commit    time.Duration // between two commits while records are many
	rest      time.Duration // and while they are few, see commitRecords
	maxWait   time.Duration // duration of a fetch without records
	settle    time.Duration // at the end of a generation: wait for outstanding results
	deaf      time.Duration // with no worker that is free or will be; then a member leaves
}

func (t *groupTimes) complete() {
	setDefault(&t.session, 6*time.Second) // the minimum of brokers by default
	setDefault(&t.heartbeat, time.Second)
	setDefault(&t.rebalance, 15*time.Second)
	setDefault(&t.backoff, 200*time.Millisecond)
	setDefault(&t.watch, 10*time.Second)
	setDefault(&t.commit, 200*time.Millisecond)
	setDefault(&t.rest, 5*time.Second)
	setDefault(&t.maxWait, 2*time.Second)
	setDefault(&t.settle, 500*time.Millisecond)
	setDefault(&t.deaf, 10*time.Second)
}

const (
	kafkaTimeout = 5 * time.Second
	leaveTimeout = 10 * time.Second
	shortLife    = time.Second
	// commitRecords is how many records are worth a commit before the rest has passed. A commit costs
	// brokers as much as a record, whatever it covers, and records that were not committed are skipped
	// when they are read again.
	commitRecords  = 100
	manyShortLives = 3
)

func newConsumer(l *Listener, d *perceptorv1.Delivery) *consumer {
	login := l.c.cfg.Kafka.SASL
	if login == nil {
		login = l.keys.mechanism()
	}
	return &consumer{
		l: l, topic: d.GetTopic(), group: d.GetGroup(), brokers: newBrokerList(d.GetBrokers()), times: l.cfg.kafka, newest: map[int]time.Time{},
		tls: l.c.cfg.Kafka.TLS,
		dialer: &kafka.Dialer{
			ClientID: "perceptor-listener", Timeout: kafkaTimeout, DualStack: true,
			SASLMechanism: login, DialFunc: kafkadial.Bounded(asking(l.c.cfg.Kafka.TLS)),
		},
	}
}

// run reads until ctx ends and stays in the group until groupCtx ends, so that
// offsets of records already read can still be committed. If a rebalance comes
// in between, run leaves the group at once and other members get the
// partitions.
func (c *consumer) run(ctx, groupCtx context.Context) error {
	defer c.closing.Wait()
	for c.l.keys.awaitTrust(ctx) && c.l.engine.awaitWorker(ctx) {
		cg, err := c.newGroup()
		if err != nil {
			return fmt.Errorf("perceptor: joining the group %q: %w", c.group, err)
		}
		c.takePart(ctx, groupCtx, cg)
		if ctx.Err() != nil {
			c.leave(cg)
			break
		}
		c.closing.Go(func() { c.leave(cg) })
		c.brokers.rotate()
		ctxtime.Sleep(ctx, c.times.backoff)
	}
	return nil
}

// newGroup returns a consumer group that has not joined yet.
func (c *consumer) newGroup() (*kafka.ConsumerGroup, error) {
	debug := kafka.LoggerFunc(func(format string, args ...any) { c.l.log.Debug("kafka: " + fmt.Sprintf(format, args...)) })
	return kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: c.group, Brokers: c.brokers.get(), Topics: []string{c.topic}, Dialer: c.dialer,
		HeartbeatInterval: c.times.heartbeat, SessionTimeout: c.times.session, RebalanceTimeout: c.times.rebalance,
		JoinGroupBackoff: c.times.backoff, StartOffset: kafka.FirstOffset, Timeout: kafkaTimeout,
		WatchPartitionChanges: true, PartitionWatchInterval: c.times.watch, ErrorLogger: debug,
	})
}

// takePart takes part in the group until ctx ends, until it cannot join by the first broker
// of the list, or until it can execute no run.
func (c *consumer) takePart(ctx, groupCtx context.Context, cg *kafka.ConsumerGroup) {
	short := 0
	for ctx.Err() == nil {
		gen, err := cg.Next(ctx)
		if ctx.Err() != nil {
			break // an unused generation ends with the group
		}
		if err != nil {
			if c.report("joining the consumer group", err) {
				return
			}
			continue
		}
		began := time.Now()
		if !c.stay(ctx, groupCtx, c.consume(ctx, gen)) {
			return
		}
		// If the topic does not exist, every generation ends at once.
		if short++; time.Since(began) > shortLife {
			short = 0
		}
		if short >= manyShortLives {
			ctxtime.Sleep(ctx, shortLife)
		}
	}
}

// leave ends the membership. It gives up after leaveTimeout.
func (c *consumer) leave(cg *kafka.ConsumerGroup) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		cg.Close()
	}()
	select {
	case <-done:
	case <-time.After(leaveTimeout):
		c.l.log.Warn("leaving the consumer group timed out", "group", c.group)
	}
}

// report logs an error that needs no action: at Debug if every new group has
// it, otherwise as a warning, at most once per logInterval. It reports whether the error is
// of the second kind.
func (c *consumer) report(doing string, err error) (unexpected bool) {
	level := slog.LevelWarn
	for _, passing := range []error{kafka.GroupLoadInProgress, kafka.GroupCoordinatorNotAvailable, kafka.NotCoordinatorForGroup,
		kafka.RebalanceInProgress, kafka.UnknownMemberId, kafka.IllegalGeneration} {
		if errors.Is(err, passing) {
			level = slog.LevelDebug
		}
	}
	if level == slog.LevelWarn {
		if suppressed, ok := c.trouble.allow(); ok {
			c.l.log.Warn("kafka: "+doing+"; retrying", "topic", c.topic, "suppressed", suppressed, "err", err)
		}
		return true
	}
	c.l.log.Log(context.Background(), level, "kafka: "+doing, "topic", c.topic, "err", err)
	return false
}

// generation is a generation of the group with the offsets that it has read.
type generation struct {
	*kafka.Generation
	trackers map[int]*tracker // guarded by the engine's lock
	over     chan struct{}    // closed when the generation has ended
}

// consume reads the partitions of gen until ctx ends, and commits offsets until
// gen ends.
func (c *consumer) consume(ctx context.Context, gen *kafka.Generation) *generation {
	g := &generation{Generation: gen, trackers: map[int]*tracker{}, over: make(chan struct{})}
	assigned := gen.Assignments[c.topic]
	partitions, feeds := make([]int, len(assigned)), make([]*feed, len(assigned))
	for i, a := range assigned {
		t := newTracker(a.ID, a.Offset)
		g.trackers[a.ID], partitions[i], feeds[i] = t, a.ID, &feed{tracker: t, next: a.Offset, from: a.Offset}
	}
	c.l.log.Info("partitions assigned", "topic", c.topic, "partitions", partitions, "generation", gen.ID)
	if f := c.l.cfg.Events.Assigned; f != nil {
		f(partitions)
	}
	gen.Start(func(genCtx context.Context) {
		defer close(g.over)
		c.commitUntil(genCtx, g)
	})
	gen.Start(func(genCtx context.Context) {
		if len(feeds) > 0 {
			f := c.newFetcher(ctx, g)
			unhook := context.AfterFunc(genCtx, f.stop)
			f.run(feeds)
			unhook()
		}
		<-genCtx.Done() // returning would end the generation
	})
	return g
}

// stay waits until g has ended, or the group is to be left at the end of the listener. It returns false if the group is to be
// left now, for others may execute the runs that this listener cannot.
func (c *consumer) stay(ctx, groupCtx context.Context, g *generation) bool {
	tick := time.NewTicker(c.times.heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-g.over:
			return true
		case <-groupCtx.Done():
			return true
		case now := <-tick.C:
			if ctx.Err() == nil && !c.useful(now) {
				return false
			}
		}
	}
}

// useful returns false, and tells why, if the listener can execute no run: no worker is free or will be, or no record can
// be verified. It may be the only one that the service does not answer, because the way is cut off or its token has ended.
func (c *consumer) useful(now time.Time) bool {
	if trusted, failed := c.l.keys.trustedAt(now); !trusted {
		c.l.log.Warn("the service has told no keys for so long that those of records may have ended; leaving the consumer group until it answers",
			"topic", c.topic, "group", c.group, "err", failed)
		return false
	}
	if c.l.engine.allDeaf(now, c.times.deaf) {
		c.l.log.Error("all workers are held by handlers that ignore the end of their contexts; leaving the consumer group until one returns",
			"topic", c.topic, "group", c.group, "runs", c.l.cfg.Workers)
		c.l.engine.hushReady()
		return false
	}
	return true
}

// deliver passes a record to the engine if the service has signed it. Nothing else of an
// unsigned record is looked at.
func (c *consumer) deliver(ctx context.Context, t *tracker, m *recordset.Record) {
	if err := c.l.keys.verify(ctx, m); err != nil {
		c.refuse(t, m.Offset, "record is not signed by the service; skipping it", c.l.cfg.Events.Forged, &c.l.forged, err)
		return
	}
	pub, err := decoded(m)
	if err != nil {
		c.refuse(t, m.Offset, "record cannot be decoded; skipping it", c.l.cfg.Events.Poison, &c.l.poison, err)
		return
	}
	if pub.TraceParent != "" {
		pub.Trace = record.Trace(&pub, m.Headers)
	}
	pub.Params = bytes.Clone(pub.Params) // a run that waits must not keep the whole answer
	c.l.engine.arrive(t, pub, m.Offset)
}

// decoded decodes a record of either form. Most have none of the headers of the second one.
func decoded(m *recordset.Record) (task.Publication, error) {
	for _, h := range m.Headers {
		if h.Key == record.HeaderRun {
			return record.Read(m.Value, m.Headers)
		}
	}
	return record.Decode(m.Value)
}

// refuse skips the record at an offset, and tells why.
func (c *consumer) refuse(t *tracker, offset int64, why string, event func(int, int64, error), limit *logLimit, err error) {
	if event != nil {
		event(t.partition, offset, err)
	}
	if suppressed, ok := limit.allow(); ok {
		c.l.log.Error(why, "topic", c.topic, "partition", t.partition, "offset", offset, "suppressed", suppressed, "err", err)
	}
	c.l.engine.skip(t, offset)
}

// commitUntil commits done offsets periodically and at the end of the
// generation.
func (c *consumer) commitUntil(genCtx context.Context, g *generation) {
	tick := time.NewTicker(c.times.commit)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case now := <-tick.C:
			least := int64(commitRecords)
			if now.Sub(last) >= c.times.rest {
				least = 1
			}
			if c.commit(g, least) {
				last = now
			}
		case <-genCtx.Done():
			c.endGeneration(g)
			c.commit(g, 1)
			return
		}
	}
}

// endGeneration releases the partitions of g. Queued records are left to the
// next owners. Records whose work has begun get a short time to be settled, so
// that the next owner need not repeat them.
func (c *consumer) endGeneration(g *generation) {
	e := c.l.engine
	e.mu.Lock()
	for _, t := range g.trackers {
		t.over = true
	}
	e.mu.Unlock()
	for deadline := time.Now().Add(c.times.settle); e.unsettled(g) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
}

// unsettled reports whether a record of g is being worked on and its offset is
// not done.
func (g *engine) unsettled(gen *generation) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.table.active {
		if t := e.rec.at.tracker; e.phase != queued && !e.rec.done && gen.trackers[t.partition] == t {
			return true
		}
	}
	return false
}

// commit commits the contiguous prefix of each partition where it has moved, if that is by at least so many
// records in all. It reports whether it has committed.
func (c *consumer) commit(g *generation, least int64) bool {
	offsets, moved := c.l.engine.prefixes(g)
	if moved < least {
		return false
	}
	if err := g.CommitOffsets(map[string]map[int]int64{c.topic: offsets}); err != nil {
		c.report("committing offsets", err)
		return false
	}
	c.l.engine.committed(g, offsets)
	if f := c.l.cfg.Events.Committed; f != nil {
		f(offsets)
	}
	return true
}

// prefixes returns the offsets to commit, and by how many offsets they have moved in all.
func (g *engine) prefixes(gen *generation) (offsets map[int]int64, moved int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	offsets = map[int]int64{}
	for p, t := range gen.trackers {
		if o, ok := t.prefix(); ok {
			offsets[p] = o
			moved += o - t.committed
		}
	}
	return offsets, moved
}

func (g *engine) committed(gen *generation, offsets map[int]int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, o := range offsets {
		if t := gen.trackers[p]; o > t.committed {
			t.committed = o
		}
	}
}
