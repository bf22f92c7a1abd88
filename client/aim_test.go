package client

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestARequestIDIsDrawnForItsShard(t *testing.T) {
	seen := map[string]bool{}
	for s := range task.Shard(task.Shards) {
		id := requestIDFor(s)
		if got := task.ShardOf(id); got != s {
			t.Errorf("the id %s is of shard %d; want %d", id, got, s)
		}
		if len(id) != 32 || seen[id] {
			t.Errorf("the id %q is not a new one of 32 characters", id)
		}
		seen[id] = true
	}
}

func TestRequestsStayInOneShardForAWhile(t *testing.T) {
	var a aim
	now := time.Now()
	first := a.take(10, now)
	a.done(first)
	for range 10 {
		s := a.take(10, now.Add(aimLasts))
		a.done(s)
		if s != first {
			t.Fatalf("a request went to shard %d; want %d like the one before", s, first)
		}
	}
	turns := map[task.Shard]bool{}
	for i := range 5 { // by chance one may be of the same shard again
		s := a.take(10, now.Add(time.Duration(i+1)*(aimLasts+1)))
		a.done(s)
		turns[s] = true
	}
	if len(turns) < 3 {
		t.Errorf("five turns went to %d shards", len(turns))
	}
}

func TestAShardsTurnEndsWithItsShareOfTasks(t *testing.T) {
	var a aim
	now := time.Now()
	shards := map[task.Shard]bool{}
	for range 10 {
		s := a.take(aimTasks, now)
		a.done(s)
		shards[s] = true
	}
	if len(shards) < 5 {
		t.Errorf("10 turns went to %d shards", len(shards))
	}
}

func TestABusyDatabaseGetsNoFurtherRequests(t *testing.T) {
	var a aim
	now := time.Now()
	n := map[int]int{}
	for range aimBusy * task.Databases / 4 {
		n[a.take(1, now).Database()]++
	}
	for d, k := range n {
		if k > aimBusy {
			t.Errorf("%d requests are under way in database %d; want at most %d", k, d, aimBusy)
		}
	}
}

func TestADatabaseThatIsAwayIsAvoided(t *testing.T) {
	var a aim
	now := time.Now()
	away := a.take(1, now)
	a.done(away)
	a.missed(away, now)
	for range 50 {
		s := a.take(aimTasks, now)
		a.done(s)
		if s.Database() == away.Database() {
			t.Fatalf("a request went to database %d, which is away", s.Database())
		}
	}
	back := 0
	for range 500 {
		s := a.take(aimTasks, now.Add(avoidFor))
		a.done(s)
		if s.Database() == away.Database() {
			back++
		}
	}
	if back == 0 {
		t.Errorf("no request went to database %d when it was back", away.Database())
	}
}

func BenchmarkRequestID(b *testing.B) {
	for i := range b.N {
		requestIDFor(task.Shard(i % task.Shards))
	}
}
