package client

import (
	"crypto/rand"
	"encoding/hex"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Rows that lie together and are due together are cheap to claim, to report and
// to store: a transaction of a thousand rows in one shard costs a quarter of the
// same rows in a hundred. So requests of a client go to one shard for a while.
// Those that find that its database is busy already go to another one, so a fast
// client uses as many databases as it needs; other clients are elsewhere.
//
// A request's shard follows from its request_id ([task.ShardOf]), so ids are
// drawn until one hits. That is only for requests which have never been sent: a
// repeated one keeps its id.
const (
	aimLasts    = time.Second
	aimTasks    = 4000             // then the next shard's turn comes
	aimBusy     = 2                // requests under way in one database
	avoidFor    = 5 * time.Second  // a database that was unavailable
	aimChoices  = 8                // shards that are looked at
	suffixBytes = 4                // of an id, in hex: what is varied
	maxDraws    = 20 * task.Shards // all of them miss once in 10^8 requests, and then the shard is another one
)

// aim says which shards requests go to. The zero value is ready.
type aim struct {
	mu    sync.Mutex
	shard task.Shard
	until time.Time
	left  int
	out   [task.Databases]int       // requests under way
	avoid [task.Databases]time.Time // until then
}

// take returns the shard for a request of n tasks; give it back with done.
func (a *aim) take(n int, now time.Time) task.Shard {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.shard.Database()
	s := a.shard
	switch {
	case a.left <= 0 || now.After(a.until) || now.Before(a.avoid[d]):
		s = a.choose(now)
		a.shard, a.until, a.left = s, now.Add(aimLasts), aimTasks
	case a.out[d] >= aimBusy:
		s = a.choose(now)
	}
	a.left -= n
	a.out[s.Database()]++
	return s
}

// choose returns a random shard of a database that is not avoided and has
// little under way. a.mu is held.
func (a *aim) choose(now time.Time) task.Shard {
	best := task.Shard(mathrand.IntN(task.Shards))
	for range aimChoices {
		s := task.Shard(mathrand.IntN(task.Shards))
		was, is := now.Before(a.avoid[best.Database()]), now.Before(a.avoid[s.Database()])
		if was && !is || was == is && a.out[s.Database()] < a.out[best.Database()] {
			best = s
		}
	}
	return best
}

// done says that a request for s has ended.
func (a *aim) done(s task.Shard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.out[s.Database()]--
}

// missed says that the database of s did not answer.
func (a *aim) missed(s task.Shard, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.avoid[s.Database()] = now.Add(avoidFor)
}

// requestIDFor draws a request id for shard s.
func requestIDFor(s task.Shard) string {
	var random [16]byte
	rand.Read(random[:]) // never fails
	id := hex.AppendEncode(nil, random[:])
	end := id[len(id)-2*suffixBytes:]
	for range maxDraws {
		if task.ShardOf(id) == s {
			break
		}
		for i := suffixBytes - 1; i >= 0; i-- { // the next one
			random[len(random)-suffixBytes+i]++
			if random[len(random)-suffixBytes+i] != 0 {
				break
			}
		}
		hex.Encode(end, random[len(random)-suffixBytes:])
	}
	return string(id)
}
