package client

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// gaps collects the events of a listener.
type gaps struct {
	mu    sync.Mutex
	found []OutOfRange
}

func (g *gaps) add(o OutOfRange) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.found = append(g.found, o)
}

// want fails the test unless there was one event about lost records, with these offsets.
func (g *gaps) want(t *testing.T, next, first, lost int64) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.found) != 1 || g.found[0].Next != next || g.found[0].First != first || g.found[0].Lost() != lost {
		t.Errorf("events = %+v, want one with next offset %d, first offset %d, and %d lost records", g.found, next, first, lost)
	}
}

// expire deletes the records below the offset.
func (b *bench) expire(offset int64) {
	b.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.kafka.ListenAddrs()...))
	if err != nil {
		b.t.Fatal(err)
	}
	defer cl.Close()
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = 5000
	req.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: testTopic, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Offset: offset}}}}
	res, err := req.RequestWith(b.t.Context(), cl)
	if err != nil || res.Topics[0].Partitions[0].ErrorCode != 0 {
		b.t.Fatal(err, res)
	}
}

// commitOffset commits an offset for the group, which has no members.
func (b *bench) commitOffset(offset int64) {
	b.t.Helper()
	res, err := b.admin.OffsetCommit(b.t.Context(), &kafka.OffsetCommitRequest{
		GroupID: b.svc.topic, GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{testTopic: {{Offset: offset}}},
	})
	if err != nil || res.Topics[testTopic][0].Error != nil {
		b.t.Fatal(err, res)
	}
}

// recreate deletes the topic and creates it again.
func (b *bench) recreate() {
	b.t.Helper()
	b.deleteTopic()
	b.createTopic()
}

func (b *bench) deleteTopic() {
	b.t.Helper()
	gone, err := b.admin.DeleteTopics(b.t.Context(), &kafka.DeleteTopicsRequest{Topics: []string{testTopic}})
	if err != nil || gone.Errors[testTopic] != nil {
		b.t.Fatal(err, gone)
	}
}

func (b *bench) createTopic() {
	b.t.Helper()
	made, err := b.admin.CreateTopics(b.t.Context(), &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: testTopic, NumPartitions: 1, ReplicationFactor: 1}},
	})
	if err != nil || made.Errors[testTopic] != nil {
		b.t.Fatal(err, made)
	}
}

// A cutter cuts the listener off from the records and their offsets.
type cutter struct {
	b    *bench
	off  atomic.Bool
	cuts atomic.Int64
}

func (b *bench) cutter() *cutter {
	c := &cutter{b: b}
	for _, key := range []kmsg.Key{kmsg.Fetch, kmsg.ListOffsets} {
		b.kafka.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			b.kafka.KeepControl()
			if c.off.Load() {
				c.cuts.Add(1)
				return nil, errors.New("cut"), true
			}
			return nil, nil, false
		})
	}
	return c
}

func (c *cutter) cut()  { c.off.Store(true) }
func (c *cutter) heal() { c.off.Store(false) }

// await waits until no fetch is under way that began before the cut.
func (c *cutter) await() {
	c.b.t.Helper()
	c.b.eventually("no fetch is under way", func() bool { return c.cuts.Load() > 0 })
}

func (b *bench) awaitHandled(c *counter, n int) {
	b.t.Helper()
	b.eventually("the runs are handled", func() bool { return c.len() == n })
}

func TestRecordsThatExpiredUnreadAreToldAndTheNextAreHandled(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	var c counter
	var g gaps
	cfg := ListenerConfig{Events: Events{OutOfRange: g.add}}
	first := b.listen(cfg, map[string]Handler{"count": c.handle})
	pubs := manyRuns(20, "count")
	b.publish(pubs[:5]...)
	b.awaitHandled(&c, 5)
	b.awaitCommitted()
	first.stop(t)
	b.publish(pubs[5:]...)
	b.expire(12)
	b.listen(cfg, map[string]Handler{"count": c.handle})
	b.awaitHandled(&c, 5+8)
	b.awaitCommitted()
	g.want(t, 5, 12, 7)
}

// TestRecordsThatExpireWhileOthersWaitLoseNoWaitingRun lets records expire behind those that a
// listener has read and not begun.
func TestRecordsThatExpireWhileOthersWaitLoseNoWaitingRun(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	link := b.cutter()
	var c counter
	var g gaps
	open, begun := make(chan struct{}), make(chan struct{}, 100)
	l := b.listen(ListenerConfig{Workers: 1, Events: Events{OutOfRange: g.add}}, map[string]Handler{"count": func(ctx context.Context, r *Run) error {
		begun <- struct{}{}
		<-open
		return c.handle(ctx, r)
	}})
	pubs := manyRuns(30, "count")
	b.publish(pubs[:20]...)
	<-begun
	b.eventually("all records wait", func() bool {
		l.engine.mu.Lock()
		defer l.engine.mu.Unlock()
		return l.engine.table.pending == 20
	})
	link.cut()
	link.await()
	b.publish(pubs[20:]...)
	b.expire(25)
	link.heal()
	b.eventually("the gap is told", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.found) > 0 })
	close(open)
	b.awaitHandled(&c, 20+5)
	b.awaitCommitted()
	g.want(t, 20, 25, 5)
}

// TestPartitionThatBeginsAnewIsReadFromItsStart covers a topic that was created again before the
// listener starts, and while it reads.
func TestPartitionThatBeginsAnewIsReadFromItsStart(t *testing.T) {
	t.Parallel()
	t.Run("before the start", func(t *testing.T) {
		t.Parallel()
		b := setup(t, 1)
		var c counter
		var g gaps
		b.publish(manyRuns(3, "count")...)
		b.commitOffset(100)
		b.listen(ListenerConfig{Events: Events{OutOfRange: g.add}}, map[string]Handler{"count": c.handle})
		b.awaitHandled(&c, 3)
		b.awaitCommitted()
		g.want(t, 100, 0, -1)
	})
	t.Run("while it reads", func(t *testing.T) {
		t.Parallel()
		b := setup(t, 1)
		var c counter
		var g gaps
		b.listen(ListenerConfig{Events: Events{OutOfRange: g.add}}, map[string]Handler{"count": c.handle})
		pubs := manyRuns(13, "count")
		b.publish(pubs[:10]...)
		b.awaitHandled(&c, 10)
		b.awaitCommitted()
		b.recreate()
		b.publish(pubs[10:]...)
		b.awaitHandled(&c, 13)
		g.want(t, 10, 0, -1)
	})
}

// TestATopicThatIsCreatedAgainIsReadFromItsStartAlthoughItHasMoreRecords has a backlog that is published before the
// listener looks for the topic again.
func TestATopicThatIsCreatedAgainIsReadFromItsStartAlthoughItHasMoreRecords(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	link := b.cutter()
	var c counter
	var g gaps
	b.listen(ListenerConfig{Events: Events{OutOfRange: g.add}}, map[string]Handler{"count": c.handle})
	pubs := manyRuns(23, "count")
	b.publish(pubs[:10]...)
	b.awaitHandled(&c, 10)
	b.awaitCommitted()
	b.deleteTopic()
	b.eventually("the listener has missed the topic", func() bool { return strings.Contains(b.logs.String(), "Unknown Topic") })
	link.cut()
	b.createTopic()
	b.publish(pubs[10:]...)
	link.heal()
	b.awaitHandled(&c, 23) // not: b.awaitCommitted, as offsets of NON_BLOCKING runs are committed before these are handled
	g.want(t, 10, 0, -1)
}

// TestOldRecordsAreNotReadAgainWhenAPartitionHasLostItsEnd has a partition as brokers leave it that elect a leader
// without the last records: the old records are there, and the new ones begin at offsets that were read before.
func TestOldRecordsAreNotReadAgainWhenAPartitionHasLostItsEnd(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	link := b.cutter()
	var c counter
	var g gaps
	var again atomic.Int64
	b.listen(ListenerConfig{Events: Events{OutOfRange: g.add, Skipped: func(Delivery) { again.Add(1) }}}, map[string]Handler{"count": c.handle})
	pubs := manyRuns(22, "count")
	old, lost, later := pubs[:10], pubs[10:20], pubs[20:]
	b.publishAt(time.Now().Add(-time.Hour), old...)
	b.publish(lost...)
	b.awaitHandled(&c, 20)
	b.awaitCommitted()
	link.cut() // an empty topic would be read from its start
	link.await()
	b.recreate()
	b.publishAt(time.Now().Add(-time.Hour), old...)
	b.publish(later...)
	link.heal()
	b.awaitHandled(&c, 22)
	g.want(t, 20, 0, -1)
	if n := again.Load(); n != 0 {
		t.Errorf("%d old records were read again", n)
	}
	b.awaitCommitted()
}
