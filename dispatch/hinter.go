package dispatch

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Owners is a source of the shards' owners. It may omit shards without an owner.
type Owners interface {
	Owners(ctx context.Context) (map[task.Shard]task.Owner, error)
}

// Bounds of a [Hinter].
const (
	ownersEvery = time.Second            // at least, between two readings of Owners
	ownersWait  = time.Second            // for one reading
	hintEvery   = 5 * time.Millisecond   // between two datagrams for one database
	sendWait    = 100 * time.Millisecond // for all datagrams of one send
	// hintAhead is how far ahead hints are sent: the owner finds later rows by itself.
	hintAhead = 2 * time.Second
)

// A Hinter tells the owners of shards about added tasks, so that they need not poll for
// them. It is best effort: no guarantee depends on a hint.
type Hinter struct {
	owners Owners
	wake   chan struct{}

	mu  sync.Mutex
	due map[int]task.Instant

	// Only Run uses these.
	conn    net.PacketConn
	sender  uint64
	sent    time.Time // of the last send; strictly increasing
	targets map[int][]target
	readAt  time.Time
}

// target is a receiver of hints.
type target struct {
	addr net.Addr
	key  string
}

// NewHinter returns a hinter. It sends hints while Run runs.
func NewHinter(owners Owners) *Hinter {
	return &Hinter{owners: owners, sender: rand.Uint64(), wake: make(chan struct{}, 1), due: make(map[int]task.Instant)}
}

// Hint queues a hint that a row in the database is due at the given instant. It never blocks
// and may be called concurrently, also before and after Run.
func (h *Hinter) Hint(database int, due task.Instant) {
	if database < 0 || database >= task.Databases || due > task.At(time.Now().Add(hintAhead)) {
		return
	}
	h.mu.Lock()
	if old, ok := h.due[database]; !ok || due < old {
		h.due[database] = due
	}
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Run sends hints until ctx ends, and then returns nil. It returns an error if it cannot
// open a UDP socket.
func (h *Hinter) Run(ctx context.Context) error {
	var lc net.ListenConfig
	conn, err := lc.ListenPacket(ctx, "udp", ":0")
	if err != nil {
		return err
	}
	defer conn.Close()
	h.conn = conn
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.wake:
		}
		h.send(ctx)
		if !pause(ctx, hintEvery) {
			return nil
		}
	}
}

func (h *Hinter) send(ctx context.Context) {
	h.mu.Lock()
	due := h.due
	h.due = make(map[int]task.Instant, len(due))
	h.mu.Unlock()
	h.refresh(ctx)
	// A send to a local network does not block; the deadline is for the rare case of a full
	// buffer.
	_ = h.conn.SetWriteDeadline(time.Now().Add(sendWait))
	h.sent = later(time.Now(), h.sent)
	for database, instant := range due {
		hint := hint{database: database, due: instant, sender: h.sender, sent: h.sent}
		for _, t := range h.targets[database] {
			_, _ = h.conn.WriteTo(hint.append(make([]byte, 0, hintSize), t.key), t.addr)
		}
	}
}

// later returns now, or the microsecond after last if now is not later, since the clock may
// have been set back.
func later(now, last time.Time) time.Time {
	if least := last.Add(time.Microsecond); now.Before(least) {
		return least
	}
	return now
}

// refresh reads the owners if the last reading is older than ownersEvery. After an error it
// keeps the previous addresses.
func (h *Hinter) refresh(ctx context.Context) {
	now := time.Now()
	if !h.readAt.IsZero() && now.Sub(h.readAt) < ownersEvery {
		return
	}
	h.readAt = now
	ctx, cancel := context.WithTimeout(ctx, ownersWait)
	defer cancel()
	owners, err := h.owners.Owners(ctx)
	if err != nil {
		return
	}
	h.targets = targetsOf(owners)
}

// targetsOf returns the distinct receivers among the owners in each database. An owner
// without a key receives no hints.
func targetsOf(owners map[task.Shard]task.Owner) map[int][]target {
	type place struct {
		database     int
		address, key string
	}
	seen := make(map[place]bool)
	resolved := make(map[string]net.Addr)
	targets := make(map[int][]target)
	for s, o := range owners {
		p := place{s.Database(), o.HintAddr, o.HintKey}
		if o.HintAddr == "" || o.HintKey == "" || seen[p] {
			continue
		}
		seen[p] = true
		addr, ok := resolved[o.HintAddr]
		if !ok {
			if udp, err := net.ResolveUDPAddr("udp", o.HintAddr); err == nil {
				addr = udp
			}
			resolved[o.HintAddr] = addr
		}
		if addr != nil {
			targets[p.database] = append(targets[p.database], target{addr, o.HintKey})
		}
	}
	return targets
}
