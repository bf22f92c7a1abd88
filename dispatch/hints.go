package dispatch

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// Hints are authenticated, so that nobody else can make a dispatcher claim early and often.
//
// A receiver draws a key when it starts listening. The key is stored in Postgres beside the
// receiver's address, so whoever may read who owns a shard can send hints to the owner, and
// nothing needs to be configured. A restart changes the key.
//
// A hint is one datagram of 56 bytes, big-endian:
//
//	0  magic number          4    16  sender      8  drawn by each sender
//	4  version               1    24  sent        8  in us since 1970, by the sender's clock
//	5  kind                  1    32  rate        8  per second
//	6  database              2    40  code       16  HMAC-SHA256 of what precedes it, cut
//	8  due, ms since 1970    8
//
// The kinds are: 0, a row is due, which may be followed by tenants, 4 bytes each, between the rate and the code: it is a
// new run of one of them; 1, a greeting, which says only that hints arrive; 2, a bulk
// operation was started in the database; 5, tenants lag. due is 0 except in the first. The last has
// 12 bytes for each of these tenants between the rate and the code: its number, its wait in ms, and its
// results per second; instead of the rate it has the number of processes like the sender.
//
// Two kinds go the other way, to those who have greeted, with the same key: how late the receiver
// of hints publishes, in ms instead of due, and its rate. 3 is for the foreground, 4 for
// backlogs; the numbers of backlogged tenants, 4 bytes each, are between the rate and the code.
//
// A receiver accepts what a sender says about a database only if it was sent after all that
// it has accepted from it, and within replayWindow of its own clock. So a datagram that was
// recorded is worth nothing, and senders that are silent for longer can be forgotten. Clocks
// that differ by more than the window turn hints off, which costs lateness and no run. A sender whose
// clock was set back draws another number, as receivers have accepted what it sent by the clock of before.
const (
	hintMagic   uint32 = 0x50524348 // "PRCH"
	hintVersion byte   = 4

	hintBody = 40
	hintCode = 16
	hintSize = hintBody + hintCode
	// mostNamed is the most tenants of a hint, mostTold the most backlogged tenants of a datagram, and mostLags the
	// most that lag.
	mostNamed = 16
	mostTold  = 128
	mostLags  = 100
	// mostProcesses bounds the number that a sender says.
	mostProcesses = 10_000
	lagSize       = 12
	longestHint   = hintSize + lagSize*mostLags

	hintKeySize  = 32
	replayWindow = time.Minute
	// maxSenders bounds the senders that are remembered, each once for each database. Only
	// holders of the key are remembered at all.
	maxSenders = 4096
)

// hintKind is what a hint says.
type hintKind byte

const (
	hintDue hintKind = iota
	hintGreeting
	hintBulk
	hintForeground
	hintBacklogs
	hintLags
)

// hint is the content of a datagram.
type hint struct {
	kind     hintKind
	database int
	due      task.Instant
	sender   uint64
	sent     time.Time
	rate     int64
	tenants  []int32
	lags     []task.Lag
}

// append appends the datagram of h to b, which is empty.
func (h hint) append(b []byte, key string) []byte {
	b = binary.BigEndian.AppendUint32(b, hintMagic)
	b = append(b, hintVersion, byte(h.kind))
	b = binary.BigEndian.AppendUint16(b, uint16(h.database))
	b = binary.BigEndian.AppendUint64(b, uint64(h.due))
	b = binary.BigEndian.AppendUint64(b, h.sender)
	b = binary.BigEndian.AppendUint64(b, uint64(h.sent.UnixMicro()))
	b = binary.BigEndian.AppendUint64(b, uint64(h.rate))
	for _, t := range h.tenants {
		b = binary.BigEndian.AppendUint32(b, uint32(t))
	}
	for _, l := range h.lags {
		b = binary.BigEndian.AppendUint32(b, uint32(l.Tenant))
		b = binary.BigEndian.AppendUint32(b, uint32(l.Wait.Milliseconds()))
		b = binary.BigEndian.AppendUint32(b, uint32(l.PerSecond))
	}
	return append(b, codeOf(b, key)...)
}

func codeOf(body []byte, key string) []byte {
	code := hmac.New(sha256.New, []byte(key))
	code.Write(body)
	return code.Sum(nil)[:hintCode]
}

// parseHint parses a datagram. It returns false if the datagram is not a hint of this
// version, or was not written by a holder of the key.
func parseHint(b []byte, key string) (h hint, ok bool) {
	if len(b) < hintSize || len(b) > longestHint || binary.BigEndian.Uint32(b) != hintMagic || b[4] != hintVersion {
		return hint{}, false
	}
	body, code := b[:len(b)-hintCode], b[len(b)-hintCode:]
	if !hmac.Equal(code, codeOf(body, key)) {
		return hint{}, false
	}
	h = hint{
		kind: hintKind(b[5]), database: int(binary.BigEndian.Uint16(b[6:])), due: task.Instant(binary.BigEndian.Uint64(b[8:])),
		sender: binary.BigEndian.Uint64(b[16:]), sent: time.UnixMicro(int64(binary.BigEndian.Uint64(b[24:]))),
		rate: int64(binary.BigEndian.Uint64(b[32:])),
	}
	if rest := body[hintBody:]; (h.kind == hintBacklogs || h.kind == hintDue) && len(rest)%4 == 0 {
		for ; len(rest) > 0; rest = rest[4:] {
			h.tenants = append(h.tenants, int32(binary.BigEndian.Uint32(rest)))
		}
	} else if h.kind == hintLags && len(rest)%lagSize == 0 {
		for ; len(rest) > 0; rest = rest[lagSize:] {
			h.lags = append(h.lags, task.Lag{
				Tenant: int32(binary.BigEndian.Uint32(rest)), Wait: time.Duration(binary.BigEndian.Uint32(rest[4:])) * time.Millisecond,
				PerSecond: float64(binary.BigEndian.Uint32(rest[8:])),
			})
		}
	} else if len(rest) > 0 {
		return hint{}, false
	}
	return h, h.kind <= hintLags && h.database < task.Databases && h.due >= 0 && h.rate >= 0
}

// heard remembers what was sent last, to recognise replays. It is not for concurrent use.
type heard map[heardKey]time.Time

type heardKey struct {
	sender   uint64
	database int
}

// isNew reports whether h is not a replay, and remembers it.
func (a heard) isNew(h hint, now time.Time) bool {
	if h.sent.Before(now.Add(-replayWindow)) || h.sent.After(now.Add(replayWindow)) {
		return false
	}
	key := heardKey{h.sender, h.database}
	last, known := a[key]
	if known && !h.sent.After(last) {
		return false
	}
	if !known && len(a) >= maxSenders {
		maps.DeleteFunc(a, func(_ heardKey, sent time.Time) bool { return sent.Before(now.Add(-replayWindow)) })
		if len(a) >= maxSenders {
			return false
		}
	}
	a[key] = h.sent
	return true
}

// stamps tell the datagrams of a sender apart. The zero value is a sender that has sent nothing. It is not for
// concurrent use.
type stamps struct {
	sender uint64
	sent   time.Time // of the last datagram, by the wall clock, which receivers see
}

// setBack is by how much a clock is less than the last stamp if it was set back, and not only corrected.
const setBack = time.Second

// next returns the sender and the instant of the next datagram. The instants of a sender increase strictly.
func (s *stamps) next(now time.Time) (sender uint64, sent time.Time) {
	now = now.Round(0)
	if s.sent.IsZero() || now.Before(s.sent.Add(-setBack)) {
		s.sender, s.sent = mathrand.Uint64(), now
	} else if least := s.sent.Add(time.Microsecond); now.Before(least) {
		s.sent = least
	} else {
		s.sent = now
	}
	return s.sender, s.sent
}

// Hints receives hints by UDP.
type Hints struct {
	conn    *net.UDPConn
	key     string
	heard   heard // only Run uses it
	refused atomic.Int64

	mu     sync.Mutex
	greets map[uint64]greeter // who has greeted lately, by sender
}

// greeter is where a sender of greetings is told of lateness.
type greeter struct {
	addr netip.AddrPort
	at   time.Time
}

// ListenHints opens the UDP address, host:port. Port 0 chooses a free port.
func ListenHints(address string) (*Hints, error) {
	addr, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, fmt.Errorf("resolve hint address %q: %w", address, err)
	}
	conn, err := net.ListenUDP("udp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for hints: %w", err)
	}
	key := make([]byte, hintKeySize)
	rand.Read(key) // never fails
	return &Hints{conn: conn, key: string(key), heard: heard{}, greets: map[uint64]greeter{}}, nil
}

// Addr returns the address that was opened.
func (h *Hints) Addr() string { return h.conn.LocalAddr().String() }

// Key returns the key that senders need. It is secret.
func (h *Hints) Key() string { return h.key }

// Refused returns the number of datagrams that were not hints, were not authentic, or were
// replays.
func (h *Hints) Refused() int64 { return h.refused.Load() }

// A Receiver is told what hints say. Its methods must not block.
type Receiver interface {
	// Hint says that a row in the database is due at the instant: a new run of one of these tenants, or any
	// row if there are none.
	Hint(database int, due task.Instant, of ...int32)
	// Greeted says that hints arrive.
	Greeted()
	// BulkStarted says that a bulk operation was started in the database.
	BulkStarted(database int)
	// Lagging says which tenants lag, as the sender knows it, which is one of so many processes.
	Lagging(sender uint64, processes int, lags []task.Lag)
}

// Run tells to what each hint says until ctx ends. Then it closes the socket and returns nil.
func (h *Hints) Run(ctx context.Context, to Receiver) error {
	stop := context.AfterFunc(ctx, func() { _ = h.conn.Close() })
	defer stop()
	defer h.conn.Close()
	buf := make([]byte, longestHint+1)
	for {
		n, from, err := h.conn.ReadFromUDPAddrPort(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read hint: %w", err)
		case err != nil: // such as an ICMP answer that a port is closed
			if !ctxtime.Sleep(ctx, 10*time.Millisecond) {
				return nil
			}
			continue
		}
		hint, ok := parseHint(buf[:n], h.key)
		if !ok || !h.heard.isNew(hint, time.Now()) {
			h.refused.Add(1)
			continue
		}
		if hint.kind == hintGreeting {
			h.greeted(hint.sender, from)
		}
		hint.tell(to)
	}
}

// greeted remembers who has greeted. isNew has bounded the number of senders.
func (h *Hints) greeted(sender uint64, from netip.AddrPort) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if len(h.greets) >= maxSenders {
		maps.DeleteFunc(h.greets, func(_ uint64, g greeter) bool { return now.Sub(g.at) > hearFor })
	}
	h.greets[sender] = greeter{from, now}
}

// greeters returns the addresses from which greetings came lately.
func (h *Hints) greeters(now time.Time) (addrs []netip.AddrPort) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.greets {
		if now.Sub(g.at) <= hearFor {
			addrs = append(addrs, g.addr)
		}
	}
	return addrs
}

// Report tells all who have greeted how late records are published, while they are late by
// more than tellLate, until ctx ends. Then it returns nil.
func (h *Hints) Report(ctx context.Context, of func() task.Lateness) error {
	var s stamps
	for wait := latenessWindow; ctxtime.Sleep(ctx, ctxtime.Beat(time.Now(), wait)); {
		l := of()
		if wait = latenessWindow; l.Foreground.PerSecond+l.Backlogs.PerSecond == 0 {
			wait = latenessHolds // nothing is published, and a process that sleeps costs less
		}
		tell := func(kind hintKind, p task.Pace, tenants []int32) {
			if p.Late < tellLate {
				return
			}
			now := time.Now()
			sender, sent := s.next(now)
			h.tell(now, hint{kind: kind, due: task.Instant(p.Late.Milliseconds()), rate: int64(p.PerSecond), tenants: tenants, sender: sender, sent: sent})
		}
		tell(hintForeground, l.Foreground, nil)
		tell(hintBacklogs, l.Backlogs, l.Backlogged[:min(len(l.Backlogged), mostTold)])
	}
	return nil
}

// tell sends a hint to all who have greeted lately.
func (h *Hints) tell(now time.Time, of hint) {
	b := of.append(make([]byte, 0, longestHint), h.key)
	_ = h.conn.SetWriteDeadline(now.Add(sendWait))
	for _, addr := range h.greeters(now) {
		_, _ = h.conn.WriteToUDPAddrPort(b, addr)
	}
}

// tellLate is the lateness from which on others are told.
const tellLate = 100 * time.Millisecond

func (h hint) tell(to Receiver) {
	switch h.kind {
	case hintDue:
		to.Hint(h.database, h.due, h.tenants...)
	case hintGreeting:
		to.Greeted()
	case hintBulk:
		to.BulkStarted(h.database)
	case hintLags:
		to.Lagging(h.sender, int(min(h.rate, mostProcesses)), h.lags)
	}
}
