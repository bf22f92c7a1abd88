package client

import (
	"math"
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
	for i := range 5 {
		s := p.acquire(10, now.Add(time.Duration(i+1)*(stayFor+1)))
		p.release(s)
		turns[s] = true
	}
	if len(turns) < 5 {
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
	if len(shards) < 10 {
		t.Errorf("10 turns went to %d shards", len(shards))
	}
}

// TestAllShardsTakeTurns has a database that is away for a part of the first round.
func TestAllShardsTakeTurns(t *testing.T) {
	var p placement
	now := time.Now()
	turns := map[task.Shard]int{}
	for i := range 3 * task.Shards {
		if i == 100 {
			p.markUnavailable(5*task.ShardsPerDatabase, now)
		}
		if i == 200 {
			now = now.Add(avoidFor)
		}
		s := p.acquire(stayTasks, now)
		p.release(s)
		turns[s]++
	}
	for s := range task.Shard(task.Shards) {
		if turns[s] != 3 {
			t.Errorf("shard %d had %d turns in three rounds", s, turns[s])
		}
	}
}

// TestRoundsGoOnWithoutADatabase has one that does not come back.
func TestRoundsGoOnWithoutADatabase(t *testing.T) {
	var p placement
	now := time.Now()
	p.markUnavailable(5*task.ShardsPerDatabase, now)
	turns := map[task.Shard]int{}
	for range 3 * (task.Shards - task.ShardsPerDatabase) {
		s := p.acquire(stayTasks, now)
		p.release(s)
		turns[s]++
	}
	for s := range task.Shard(task.Shards) {
		want := 3
		if s.Database() == 5 {
			want = 0
		}
		if turns[s] != want {
			t.Errorf("shard %d had %d turns; want %d", s, turns[s], want)
		}
	}
}

// atOnce has requests of n tasks in flight together, and counts the tasks of each shard.
func (p *placement) atOnce(requests, n int, now time.Time, tasks map[task.Shard]int) {
	inFlight := make([]task.Shard, requests)
	for i := range inFlight {
		inFlight[i] = p.acquire(n, now)
		tasks[inFlight[i]] += n
	}
	for _, s := range inFlight {
		p.release(s)
	}
}

// TestRequestsThatFindADatabaseBusyStayTogether has more requests in flight than one database takes.
func TestRequestsThatFindADatabaseBusyStayTogether(t *testing.T) {
	var p placement
	now := time.Now()
	tasks := map[task.Shard]int{}
	for range 100 {
		p.atOnce(2*maxPerDatabase+1, 10, now, tasks)
	}
	if len(tasks) != 3 {
		t.Errorf("the requests went to %d shards; want 3", len(tasks))
	}
	for s, n := range tasks {
		if n > stayTasks {
			t.Errorf("shard %d got %d tasks; want at most %d", s, n, stayTasks)
		}
	}
}

// TestTurnsBesideOthersAreUsedUp has 10,000 tasks a second, and once a second three databases are busy.
func TestTurnsBesideOthersAreUsedUp(t *testing.T) {
	var p placement
	now := time.Now()
	tasks := map[task.Shard]int{}
	for i := range 300 * task.Shards {
		now = now.Add(10 * time.Millisecond)
		requests := maxPerDatabase
		if i%100 == 0 {
			requests = 3*maxPerDatabase + 1
		}
		p.atOnce(requests, 50, now, tasks)
	}
	least, most := math.MaxInt, 0
	for s := range task.Shard(task.Shards) {
		least, most = min(least, tasks[s]), max(most, tasks[s])
	}
	if most-least > stayTasks {
		t.Errorf("the shards got between %d and %d tasks; want at most a turn of %d more", least, most, stayTasks)
	}
}

// TestRequestsBeyondWhatAllDatabasesTakeOpenNoTurns has the databases busy.
func TestRequestsBeyondWhatAllDatabasesTakeOpenNoTurns(t *testing.T) {
	var p placement
	now := time.Now()
	shards := map[task.Shard]bool{}
	for range 10 * maxPerDatabase * task.Databases {
		shards[p.acquire(1, now)] = true
	}
	if len(shards) != task.Databases {
		t.Errorf("the requests went to %d shards; want %d", len(shards), task.Databases)
	}
	for d, n := range p.inFlight {
		if n != 10*maxPerDatabase {
			t.Errorf("%d requests are in flight to database %d; want %d", n, d, 10*maxPerDatabase)
		}
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
