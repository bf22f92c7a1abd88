package dispatch

import (
	"context"
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
	conn      net.PacketConn
	addresses map[int][]net.Addr
	readAt    time.Time
}

// NewHinter returns a hinter. It sends hints while Run runs.
func NewHinter(owners Owners) *Hinter {
	return &Hinter{owners: owners, wake: make(chan struct{}, 1), due: make(map[int]task.Instant)}
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
	for database, instant := range due {
		datagram := appendHint(make([]byte, 0, hintSize), database, instant)
		for _, a := range h.addresses[database] {
			_, _ = h.conn.WriteTo(datagram, a)
		}
	}
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
	h.addresses = addressesOf(owners)
}

// addressesOf returns the distinct addresses of the owners in each database.
func addressesOf(owners map[task.Shard]task.Owner) map[int][]net.Addr {
	type place struct {
		database int
		address  string
	}
	seen := make(map[place]bool)
	resolved := make(map[string]net.Addr)
	addresses := make(map[int][]net.Addr)
	for s, o := range owners {
		p := place{s.Database(), o.HintAddr}
		if o.HintAddr == "" || seen[p] {
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
			addresses[p.database] = append(addresses[p.database], addr)
		}
	}
	return addresses
}
