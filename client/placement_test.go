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
	var p placement
	now := time.Now()
	first := p.acquire(10, now)
	p.release(first)
	for range 10 {
		s := p.acquire(10, now.Add(stayFor))
		p.release(s)
		if s != first {
			t.Fatalf("a request went to shard %d; want %d like the one before", s, first)
		}
	}
	turns := map[task.Shard]bool{}
	for i := range 5 { // the same shard may be drawn again
		s := p.acquire(10, now.Add(time.Duration(i+1)*(stayFor+1)))
		p.release(s)
		turns[s] = true
	}
	if len(turns) < 3 {
		t.Errorf("five turns went to %d shards", len(turns))
	}
}

func TestAShardsTurnEndsWithItsShareOfTasks(t *testing.T) {
	var p placement
	now := time.Now()
	shards := map[task.Shard]bool{}
	for range 10 {
		s := p.acquire(stayTasks, now)
		p.release(s)
		shards[s] = true
	}
	if len(shards) < 5 {
		t.Errorf("10 turns went to %d shards", len(shards))
	}
}

func TestABusyDatabaseGetsNoFurtherRequests(t *testing.T) {
	var p placement
	now := time.Now()
	n := map[int]int{}
	for range maxPerDatabase * task.Databases / 4 {
		n[p.acquire(1, now).Database()]++
	}
	for d, k := range n {
		if k > maxPerDatabase {
			t.Errorf("%d requests are in flight to database %d; want at most %d", k, d, maxPerDatabase)
		}
	}
}

func TestADatabaseThatIsAwayIsAvoided(t *testing.T) {
	var p placement
	now := time.Now()
	away := p.acquire(1, now)
	p.release(away)
	p.markUnavailable(away, now)
	for range 50 {
		s := p.acquire(stayTasks, now)
		p.release(s)
		if s.Database() == away.Database() {
			t.Fatalf("a request went to database %d, which is unavailable", s.Database())
		}
	}
	back := 0
	for range 500 {
		s := p.acquire(stayTasks, now.Add(avoidFor))
		p.release(s)
		if s.Database() == away.Database() {
			back++
		}
	}
	if back == 0 {
		t.Errorf("no request went to database %d after it had recovered", away.Database())
	}
}

func BenchmarkRequestID(b *testing.B) {
	for i := range b.N {
		requestIDFor(task.Shard(i % task.Shards))
	}
}

func TestClientsMeetInTheShardsOfASecond(t *testing.T) {
	second := time.Unix(1_000_000, 0)
	var a, b placement
	for _, p := range []*placement{&a, &b} {
		p.told(1, second)
		if got, want := p.acquire(10, second.Add(100*time.Millisecond)), task.PlacementShard(second.Unix(), 0); got != want {
			t.Errorf("shard %d, want %d", got, want)
		} else {
			p.release(got)
		}
	}
	next := second.Add(time.Second)
	if got, want := a.acquire(10, next), task.PlacementShard(next.Unix(), 0); got != want {
		t.Errorf("in the next second shard %d, want %d", got, want)
	}
	b.told(3, next)
	met := map[task.Shard]bool{}
	for range 100 {
		s := b.acquire(stayTasks, next)
		b.release(s)
		met[s] = true
	}
	for i := range 3 {
		delete(met, task.PlacementShard(next.Unix(), i))
	}
	if len(met) > 0 {
		t.Errorf("told of three shards, requests also went to %v", met)
	}
}

func TestClientsThatMeetAvoidDatabasesLikeOthers(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var p placement
	p.told(1, now)
	s := p.acquire(1, now)
	p.acquire(1, now)
	if third := p.acquire(1, now); third.Database() == s.Database() {
		t.Errorf("a third request in flight goes to database %d, too", s.Database())
	}
	p.markUnavailable(s, now)
	for range 20 {
		if other := p.acquire(1, now); other.Database() == s.Database() {
			t.Fatalf("a request goes to database %d, which does not answer", s.Database())
		}
	}
}

func TestWhereClientsMeetIsBelievedForAMinute(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var p placement
	p.told(1, now)
	p.told(0, now.Add(time.Second)) // of a server that does not know
	shards := map[task.Shard]bool{}
	for i := range 20 {
		at := now.Add(believeFor + time.Duration(i)*(stayFor+1))
		s := p.acquire(1, at)
		p.release(s)
		if s != task.PlacementShard(at.Unix(), 0) {
			shards[s] = true
		}
	}
	if len(shards) < 10 {
		t.Errorf("after a minute, 20 turns go to %d other shards", len(shards))
	}
	p.told(task.Shards+1, now)
	if p.among != task.Shards {
		t.Errorf("%d shards are believed", p.among)
	}
}
