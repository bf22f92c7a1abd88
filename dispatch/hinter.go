package dispatch

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// Owners is a source of the owners of items: of the shards, and of the databases' chores
// ([task.ChoresShard]). It may omit items without an owner.
type Owners interface {
	Owners(ctx context.Context) (map[task.Shard]task.Owner, error)
}

// Bounds of a [Hinter].
const (
	ownersEvery = time.Second            // at least, between two readings of Owners for urgent hints
	ownersWait  = time.Second            // for one reading
	hintEvery   = 5 * time.Millisecond   // between two datagrams for one database
	sendWait    = 100 * time.Millisecond // for all datagrams of one send
	// hintAhead is how far ahead hints are sent: the owner finds later rows by itself, since
	// it sleeps for less ([longestSleep]).
	hintAhead = 7 * time.Second
	// A hint of a row that is due within urgent is sent at once. Others are gathered for
	// gatherHints, which is less than urgent, and sent to owners that are up to knownFor old.
	urgent      = time.Second
	gatherHints = 250 * time.Millisecond
	knownFor    = 30 * time.Second
	// greetEvery is the interval of greetings.
	greetEvery = 10 * time.Second
)

// A Hinter tells the owners of shards about added tasks, and those of chores about started
// bulk operations, so that they need not poll for them. It greets all owners, so that they know
// that hints arrive and may sleep longer. It is best effort: no guarantee depends on a hint.
type Hinter struct {
	owners Owners
	// wake has a token if something is to be sent at once, later if something is to be sent
	// within gatherHints.
	wake, later chan struct{}

	mu   sync.Mutex
	due  map[int]dueHint
	bulk map[int]bool
	lags hint // that tells of tenants that lag

	// keys are those of the targets.
	keys []string
	// late has what dispatchers report, by sender.
	late map[reporter]reported

	// Only Run uses these.
	conn    net.PacketConn
	stamps  stamps
	targets map[int][]target
	names   hintNames
	readAt  time.Time
}

// reported is the lateness that a dispatcher has reported.
type reported struct {
	task.Pace
	tenants []int32 // with a backlog
	at      time.Time
}

// reporter is a dispatcher that reports on the foreground, or on backlogs.
type reporter struct {
	sender uint64
	kind   hintKind
}

// target is a receiver of hints.
type target struct {
	addr net.Addr
	key  string
}

// NewHinter returns a hinter. It sends hints while Run runs.
func NewHinter(owners Owners) *Hinter {
	return &Hinter{
		owners: owners, wake: make(chan struct{}, 1), later: make(chan struct{}, 1),
		due: make(map[int]dueHint), bulk: make(map[int]bool), late: make(map[reporter]reported),
	}
}

// dueHint is a hint that is to be sent: the earliest instant, and the tenants whose new runs are due; none, if any row may be.
type dueHint struct {
	at task.Instant
	of []int32
}

// join joins two hints. It owns its arguments.
func (d dueHint) join(o dueHint) dueHint {
	if o.at < d.at {
		d.at = o.at
	}
	if len(d.of) == 0 || len(o.of) == 0 {
		d.of = nil
		return d
	}
	for _, t := range o.of {
		if !slices.Contains(d.of, t) {
			d.of = append(d.of, t)
		}
	}
	if len(d.of) > mostNamed {
		d.of = nil
	}
	return d
}

// Hint queues a hint that a row in the database is due at the given instant: a new run of one of these tenants, or any row if
// there are none. It never blocks and may be called concurrently, also before and after Run. It owns its arguments.
func (h *Hinter) Hint(database int, due task.Instant, of ...int32) {
	now := time.Now()
	if database < 0 || database >= task.Databases || due > task.At(now.Add(hintAhead)) {
		return
	}
	h.mu.Lock()
	told := dueHint{due, of}
	if len(of) > mostNamed {
		told.of = nil
	}
	if old, ok := h.due[database]; ok {
		told = old.join(told)
	}
	h.due[database] = told
	h.mu.Unlock()
	if due <= task.At(now.Add(urgent)) {
		put(h.wake)
	} else {
		put(h.later)
	}
}

// BulkStarted queues a hint that a bulk operation was started in the database. It never blocks
// and may be called concurrently, also before and after Run.
func (h *Hinter) BulkStarted(database int) {
	if database < 0 || database >= task.Databases {
		return
	}
	h.mu.Lock()
	h.bulk[database] = true
	h.mu.Unlock()
	put(h.wake)
}

// Lags queues what is to be told of tenants that lag, as this one of several processes knows it. It never blocks and may be
// called concurrently, also before and after Run. It owns its argument.
func (h *Hinter) Lags(lags []task.Lag, processes int) {
	slices.SortFunc(lags, func(a, b task.Lag) int { return cmp.Compare(b.PerSecond, a.PerSecond) })
	h.mu.Lock()
	h.lags = hint{kind: hintLags, rate: int64(processes), lags: lags[:min(len(lags), mostLags)]}
	h.mu.Unlock()
	put(h.wake)
}

// put leaves a token in c.
func put(c chan struct{}) {
	select {
	case c <- struct{}{}:
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
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	go h.listen(conn)
	greetings := time.NewTimer(0)
	defer greetings.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-greetings.C:
			greetings.Reset(h.greet(ctx))
			continue
		case <-h.later:
			h.gather(ctx)
		case <-h.wake:
			h.refresh(ctx, ownersEvery)
		}
		h.send()
		if !ctxtime.Sleep(ctx, hintEvery) {
			return nil
		}
	}
}

// gather waits for more hints that are not urgent, until one is.
func (h *Hinter) gather(ctx context.Context) {
	t := time.NewTimer(gatherHints)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-h.wake:
		h.refresh(ctx, ownersEvery)
	case <-t.C:
		h.refresh(ctx, knownFor)
	}
}

// send sends what is queued.
func (h *Hinter) send() {
	h.mu.Lock()
	due, bulk, lags := h.due, h.bulk, h.lags
	h.lags = hint{}
	h.due, h.bulk = make(map[int]dueHint, len(due)), make(map[int]bool)
	h.mu.Unlock()
	h.sendSoon()
	for database, d := range due {
		h.sendTo(h.targets[database], hint{database: database, due: d.at, tenants: d.of})
	}
	for database := range bulk {
		h.sendTo(h.targets[database], hint{kind: hintBulk, database: database})
	}
	if len(lags.lags) > 0 {
		h.sendAll(lags)
	}
}

// sendAll sends a hint to each receiver once, and returns their number.
func (h *Hinter) sendAll(of hint) int {
	sent := make(map[string]bool)
	for _, targets := range h.targets {
		for _, t := range targets {
			if !sent[t.key] {
				sent[t.key] = true
				h.sendTo([]target{t}, of)
			}
		}
	}
	return len(sent)
}

// greet sends a greeting to each receiver once. It returns when to greet again: soon if no
// receiver is known.
func (h *Hinter) greet(ctx context.Context) (again time.Duration) {
	if len(h.targets) == 0 {
		h.refresh(ctx, ownersEvery/2)
	} else {
		h.refresh(ctx, knownFor)
	}
	h.sendSoon()
	if h.sendAll(hint{kind: hintGreeting}) == 0 {
		return ownersEvery
	}
	return ctxtime.Beat(time.Now(), greetEvery)
}

// sendSoon sets the deadline of what is sent next. A send to a local network does not block;
// the deadline is for the rare case of a full buffer.
func (h *Hinter) sendSoon() { _ = h.conn.SetWriteDeadline(time.Now().Add(sendWait)) }

// sendTo sends a hint to the targets.
func (h *Hinter) sendTo(targets []target, of hint) {
	of.sender, of.sent = h.stamps.next(time.Now())
	for _, t := range targets {
		_, _ = h.conn.WriteTo(of.append(make([]byte, 0, hintSize), t.key), t.addr)
	}
}

// refresh reads the owners if the last reading is older than age. After an error it keeps the
// previous addresses.
func (h *Hinter) refresh(ctx context.Context, age time.Duration) {
	now := time.Now()
	if !h.readAt.IsZero() && now.Sub(h.readAt) < age {
		return
	}
	h.readAt = now
	limited, cancel := context.WithTimeout(ctx, ownersWait)
	defer cancel()
	owners, err := h.owners.Owners(limited)
	if err != nil {
		return
	}
	h.targets = targetsOf(owners, h.names.resolve(ctx, owners))
	keys := make(map[string]bool)
	for _, targets := range h.targets {
		for _, t := range targets {
			keys[t.key] = true
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys = slices.Collect(maps.Keys(keys))
}

// listen receives reports of lateness until conn is closed.
func (h *Hinter) listen(conn net.PacketConn) {
	buf, heard := make([]byte, longestHint+1), heard{}
	for {
		n, _, err := conn.ReadFrom(buf)
		switch now := time.Now(); {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // such as an ICMP answer that a port is closed
			time.Sleep(hintEvery)
		default:
			if hint, ok := h.parse(buf[:n]); ok && (hint.kind == hintForeground || hint.kind == hintBacklogs) && heard.isNew(hint, now) {
				h.reported(hint, now)
			}
		}
	}
}

// parse parses a datagram of a holder of any target's key.
func (h *Hinter) parse(b []byte) (of hint, ok bool) {
	h.mu.Lock()
	keys := h.keys
	h.mu.Unlock()
	for _, key := range keys {
		if of, ok = parseHint(b, key); ok {
			return of, true
		}
	}
	return hint{}, false
}

func (h *Hinter) reported(of hint, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.late, func(_ reporter, r reported) bool { return now.Sub(r.at) >= latenessHolds })
	h.late[reporter{of.sender, of.kind}] = reported{task.Pace{Late: time.Duration(of.due) * time.Millisecond, PerSecond: float64(of.rate)}, of.tenants, now}
}

// Lateness returns the greatest lateness that dispatchers have reported lately, the sum of
// their rates, and the tenants that have a backlog at any of them. Dispatchers that are not late
// do not report.
func (h *Hinter) Lateness() (all task.Lateness) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for of, r := range h.late {
		switch {
		case now.Sub(r.at) >= latenessHolds:
		case of.kind == hintBacklogs:
			all.Backlogs = all.Backlogs.Join(r.Pace)
			all.Backlogged = append(all.Backlogged, r.tenants...)
		default:
			all.Foreground = all.Foreground.Join(r.Pace)
		}
	}
	slices.Sort(all.Backlogged)
	all.Backlogged = slices.Compact(all.Backlogged)
	return all
}

// databaseOf returns the database of a shard, or of the item that stands for its chores.
func databaseOf(s task.Shard) int {
	if s >= task.Shards {
		return int(s) - task.Shards
	}
	return s.Database()
}

// targetsOf returns the distinct receivers among the owners in each database, whose addresses are known. An owner
// without a key receives no hints.
func targetsOf(owners map[task.Shard]task.Owner, addresses map[string]net.Addr) map[int][]target {
	type place struct {
		database     int
		address, key string
	}
	seen := make(map[place]bool)
	targets := make(map[int][]target)
	for s, o := range owners {
		p := place{databaseOf(s), o.HintAddr, o.HintKey}
		if o.HintAddr == "" || o.HintKey == "" || seen[p] {
			continue
		}
		seen[p] = true
		if addr := addresses[o.HintAddr]; addr != nil {
			targets[p.database] = append(targets[p.database], target{addr, o.HintKey})
		}
	}
	return targets
}
