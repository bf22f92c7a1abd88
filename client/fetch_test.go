package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/record/recordset"
)

// setupLeaders is setup with n brokers, of which broker i leads partition i.
func setupLeaders(t *testing.T, n int32) *bench {
	t.Helper()
	b := setupBrokers(t, int(n), n)
	for i := range n {
		if err := b.kafka.MoveTopicPartition(testTopic, i, i); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// onFetch calls f with each fetch and the broker that it came to.
func (b *bench) onFetch(f func(broker int32, r *kmsg.FetchRequest)) {
	b.kafka.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.kafka.KeepControl()
		f(b.kafka.CurrentNode(), r.(*kmsg.FetchRequest)) //nolint:forcetypeassert // by the key
		return nil, nil, false
	})
}

func TestThePartitionsOfABrokerAreReadByCommonRequests(t *testing.T) {
	t.Parallel()
	b := setup(t, 6)
	var mu sync.Mutex
	var asked []int // partitions of each fetch
	b.onFetch(func(_ int32, r *kmsg.FetchRequest) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, len(r.Topics[0].Partitions))
	})
	var c counter
	b.listen(ListenerConfig{}, map[string]Handler{"count": c.handle})
	b.publish(manyRuns(30, "count")...)
	b.awaitHandled(&c, 30)
	b.awaitCommitted()
	mu.Lock()
	defer mu.Unlock()
	if slices.Min(asked) != 6 || slices.Max(asked) != 6 {
		t.Errorf("fetches asked for %v partitions, want all six in each", asked)
	}
}

// TestABrokerThatHangsHoldsUpItsOwnPartitions lets one of two brokers answer no fetch. The other
// one takes over its partition later.
func TestABrokerThatHangsHoldsUpItsOwnPartitions(t *testing.T) {
	t.Parallel()
	b := setupLeaders(t, 2)
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	b.onFetch(func(broker int32, _ *kmsg.FetchRequest) {
		if broker == 0 {
			b.kafka.SleepControl(func() { <-end })
		}
	})
	var c counter
	b.listen(ListenerConfig{}, map[string]Handler{"count": c.handle})
	pubs := manyRuns(20, "count")
	b.publish(pubs...)
	reachable := 0
	for _, p := range pubs {
		reachable += record.Partition(p.Task, 12) % 2
	}
	if reachable == 0 || reachable == len(pubs) {
		t.Fatalf("%d of %d runs are on the partition of the other broker", reachable, len(pubs))
	}
	began := time.Now()
	b.awaitHandled(&c, reachable)
	if took := time.Since(began); took > silenceLimit {
		t.Errorf("the partition of the other broker was read after %v", took)
	}
	if err := b.kafka.MoveTopicPartition(testTopic, 0, 1); err != nil {
		t.Fatal(err)
	}
	b.awaitHandled(&c, len(pubs))
}

// TestAPartitionFollowsItsLeader moves partitions while records arrive.
func TestAPartitionFollowsItsLeader(t *testing.T) {
	t.Parallel()
	b := setupLeaders(t, 3)
	var c counter
	b.listen(ListenerConfig{}, map[string]Handler{"count": c.handle})
	total := 0
	for round := range int32(4) {
		pubs := manyRuns(total+12, "count")[total:]
		total += len(pubs)
		b.publish(pubs...)
		b.awaitHandled(&c, total)
		for p := range int32(3) {
			if err := b.kafka.MoveTopicPartition(testTopic, p, (p+round+1)%3); err != nil {
				t.Fatal(err)
			}
		}
	}
	for id, n := range c.runs {
		if n != 1 {
			t.Errorf("run %s was handled %d times, want once", id, n)
		}
	}
}

// recordSet returns a record set of one batch, with records from an offset on.
func recordSet(tb testing.TB, first int64, values ...string) []byte {
	tb.Helper()
	set := recordset.New(0)
	for i, v := range values {
		set = recordset.Append(set, i, nil, []byte(v), nil)
	}
	set, err := recordset.Seal(set, len(values), 0, nil)
	if err != nil {
		tb.Fatal(err)
	}
	set = set[4:] // its length, which is a field of the answer
	binary.BigEndian.PutUint64(set, uint64(first))
	return set
}

// readAll returns the values of the records of a part with their offsets.
func readAll(tb testing.TB, p *part) (got []string) {
	tb.Helper()
	for i := range p.batches {
		for r, err := range p.batches[i].Records(p.at) {
			if err != nil {
				tb.Error(err)
				continue
			}
			got = append(got, fmt.Sprintf("%s@%d", r.Value, r.Offset))
		}
	}
	return got
}

// TestABatchThatCannotBeReadHidesNoOther has one partition with a damaged batch behind a whole one.
func TestABatchThatCannotBeReadHidesNoOther(t *testing.T) {
	damaged := recordSet(t, 9, "c")
	damaged[len(damaged)-1]++
	r, feeds := &recordset.Answer{Response: &fetch.Response{Topics: []fetch.ResponseTopic{{}}}, Records: map[int32][]byte{
		0: recordSet(t, 7, "a", "b"), 1: slices.Concat(recordSet(t, 5, "1", "2", "a", "b"), damaged), 3: recordSet(t, 7, "a"),
	}}, []*feed{}
	for p := range 4 {
		feeds = append(feeds, &feed{tracker: newTracker(p, 7), next: 7, from: 7})
		r.Topics[0].Partitions = append(r.Topics[0].Partitions, fetch.ResponsePartition{Partition: int32(p)})
	}
	parts := partsOf(r, feeds)
	if len(parts) != 3 || parts[0].err != nil || !errors.Is(parts[1].err, recordset.ErrChecksum) || parts[2].err != nil {
		t.Fatalf("parts = %+v, want those of three partitions, and an error of the second", parts)
	}
	for i, want := range []string{"a@7 b@8", "a@7 b@8", "a@7"} {
		if got := readAll(t, &parts[i]); strings.Join(got, " ") != want {
			t.Errorf("part %d has %q, want %q", i, got, want)
		}
	}
	for i, want := range []int64{9, 9, 7, 8} {
		if feeds[i].from != want || feeds[i].next != 7 {
			t.Errorf("partition %d is read from %d on, delivered up to %d, want %d and 7", i, feeds[i].from, feeds[i].next, want)
		}
	}
}
