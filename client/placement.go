package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Placement of new requests on shards.
//
// Rows that lie in one shard and are due together are cheap to claim, to report
// and to store: one transaction over 1,000 rows of one shard costs a quarter of
// the same rows in 100 shards. A client therefore sends its requests to one shard
// for a second, then to another one. While its database is busy, requests go to a
// shard of another one, whose second comes next; so a fast client uses as many databases as it needs.
// Each client has a random order of its own, in which all shards take turns. So different clients
// use different shards, and the tables of all shards grow alike: what ended in a table waits for
// its vacuum, which comes once a minute at most, and tables never shrink. With shards drawn at
// random one table in fifty had two turns within a minute, at 8,000 tasks a second.
//
// The shard of a request follows from its request_id ([task.ShardOf]); only small requests
// lie elsewhere in its database, with others of this second. The client draws ids until one
// maps to the chosen shard. A retry keeps its id, because the first
// try may have been stored. Only a request for which every answer was that the server of its
// database hangs and nothing was stored moves: it gets a new id, of another database.
const (
	stayFor        = time.Second
	stayTasks      = 4000             // after this many tasks the client moves to another shard
	maxPerDatabase = 2                // requests in flight to one database; more go elsewhere
	avoidFor       = 5 * time.Second  // how long an unavailable database is avoided
	suffixBytes    = 4                // bytes at the end of an id that are varied, written in hex
	maxDraws       = 20 * task.Shards // all draws miss once in 10^8 requests; the request then goes to another shard
)

// placement chooses the shards of new requests. The zero value is ready for
// use. It is safe for concurrent use.
type placement struct {
	mu         sync.Mutex
	turns      []*turn                   // open, the oldest first
	order      []int                     // of all shards; that whose last turn is the longest ago is first
	inFlight   [task.Databases]int       // requests in flight
	avoidUntil [task.Databases]time.Time // zero: not avoided
}

// A turn is the time of one shard.
type turn struct {
	shard task.Shard
	left  int       // tasks
	until time.Time // zero: not known, as it is not the oldest yet
}

// acquire chooses the shard for a request of n tasks. The caller must call
// release with that shard when the request has ended.
func (p *placement) acquire(n int, now time.Time) task.Shard {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.turnFor(now)
	t.left -= n
	p.inFlight[t.shard.Database()]++
	return t.shard
}

// turnFor returns the oldest open turn whose database is not busy. It opens one if there is none. If all databases
// are busy it returns the turn with the least busy one. The caller holds p.mu.
func (p *placement) turnFor(now time.Time) *turn {
	p.closeTurns(now)
	load := func(t *turn) int { return p.inFlight[t.shard.Database()] }
	if i := slices.IndexFunc(p.turns, func(t *turn) bool { return load(t) < maxPerDatabase }); i >= 0 {
		return p.turns[i]
	}
	at, least := p.choose(now)
	if least >= maxPerDatabase && len(p.turns) > 0 {
		return slices.MinFunc(p.turns, func(a, b *turn) int { return cmp.Compare(load(a), load(b)) })
	}
	shard := p.order[at]
	p.order = append(slices.Delete(p.order, at, at+1), shard)
	opened := &turn{shard: task.Shard(shard), left: stayTasks}
	p.turns = append(p.turns, opened)
	p.beginFirst(now)
	return opened
}

// closeTurns closes the turns that are over. The time of a turn begins when it is the oldest. If it began before, turns of
// which little is used would end with it, and each leaves dead rows that are too few for a vacuum.
func (p *placement) closeTurns(now time.Time) {
	p.turns = slices.DeleteFunc(p.turns, func(t *turn) bool {
		return t.left <= 0 || !t.until.IsZero() && now.After(t.until) || now.Before(p.avoidUntil[t.shard.Database()])
	})
	p.beginFirst(now)
}

func (p *placement) beginFirst(now time.Time) {
	if len(p.turns) > 0 && p.turns[0].until.IsZero() {
		p.turns[0].until = now.Add(stayFor)
	}
}

// choose returns the place in the order of the shard for the next turn, and the load of its database: the first
// of those with the least load. The caller holds p.mu.
func (p *placement) choose(now time.Time) (at, load int) {
	if p.order == nil {
		p.order = mathrand.Perm(task.Shards)
	}
	load = math.MaxInt
	for i := 0; i < len(p.order) && load > 0; i++ {
		if l := p.load(task.Shard(p.order[i]).Database(), now); l < load {
			at, load = i, l
		}
	}
	return at, load
}

// load returns how many requests are in flight to a database. One that is avoided has more than all others.
func (p *placement) load(d int, now time.Time) int {
	if now.Before(p.avoidUntil[d]) {
		return math.MaxInt / 2
	}
	return p.inFlight[d]
}

// release records that a request to s has ended.
func (p *placement) release(s task.Shard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight[s.Database()]--
}

// markUnavailable records that the database of s did not answer.
func (p *placement) markUnavailable(s task.Shard, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.avoidUntil[s.Database()] = now.Add(avoidFor)
}

// placedAdd is a request whose shard the placement chose.
type placedAdd struct {
	c     *Client
	n     int // tasks
	shard task.Shard
	id    string
	// stored is set if a try may have been stored.
	stored bool
}

// maxMoves bounds how often one try of a request moves.
const maxMoves = 4

// place chooses the shard of a request of n tasks. The caller must call release.
func (c *Client) place(n int) *placedAdd {
	p := &placedAdd{c: c, n: n}
	p.choose()
	return p
}

func (p *placedAdd) choose() {
	p.shard = p.c.placement.acquire(p.n, time.Now())
	p.id = requestIDFor(p.shard)
}

func (p *placedAdd) release() { p.c.placement.release(p.shard) }

// add makes one try.
func (p *placedAdd) add(ctx context.Context, q *perceptorv1.AddTasksRequest, opts ...grpc.CallOption) (*perceptorv1.AddTasksResponse, error) {
	for moves := 0; ; moves++ {
		q.RequestId = p.id
		a, err := p.c.tasks.AddTasks(ctx, q, opts...)
		if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
			p.c.placement.markUnavailable(p.shard, time.Now())
		}
		if !nothingDone(err) {
			p.stored = true
		}
		if p.stored || moves == maxMoves {
			return a, err
		}
		p.release()
		p.choose()
	}
}

// nothingDone reports whether err says that the server of a database hangs and that the call
// changed nothing.
func nothingDone(err error) bool {
	return err != nil && errorOf("", status.Convert(err)).Reason == string(task.ReasonDatabaseStalled)
}

// requestIDFor draws a request id that maps to shard s.
func requestIDFor(s task.Shard) string {
	var random [16]byte
	rand.Read(random[:]) // never fails
	id := hex.AppendEncode(nil, random[:])
	end := id[len(id)-2*suffixBytes:]
	for range maxDraws {
		if task.ShardOf(id) == s {
			break
		}
		for i := suffixBytes - 1; i >= 0; i-- { // increment
			random[len(random)-suffixBytes+i]++
			if random[len(random)-suffixBytes+i] != 0 {
				break
			}
		}
		hex.Encode(end, random[len(random)-suffixBytes:])
	}
	return string(id)
}
