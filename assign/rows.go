package assign

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// exchangesPerSession is how many exchanges fit into a session: each has that part
// of it as its deadline, and a member makes at least one in that time.
const exchangesPerSession = 4

// A rowLink is a [link] over a [Session], and its [environment].
type rowLink struct {
	s    Session
	cfg  Config
	self string

	mu      sync.Mutex
	stale   bool
	expired bool
	contact time.Time
}

var (
	_ link        = (*rowLink)(nil)
	_ environment = (*rowLink)(nil)
)

func newRowLink(r Registry, cfg Config, id string, signal func()) *rowLink {
	l := &rowLink{cfg: cfg, self: id}
	l.s = r.Join(SessionConfig{
		Environment: cfg.Environment, ID: id, Timeout: cfg.SessionTimeout, Log: cfg.Log,
		Changed: func() {
			l.mu.Lock()
			l.stale = true
			l.mu.Unlock()
			signal()
		},
	})
	return l
}

func (l *rowLink) isExpired() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expired
}

// unusableAt is zero: whether this member is still listed is known as soon as the
// registry answers again.
func (l *rowLink) unusableAt() time.Time { return time.Time{} }

func (l *rowLink) takeStale() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	stale := l.stale
	l.stale = false
	return stale
}

func (l *rowLink) lastContact() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.contact
}

func (l *rowLink) timeout() time.Duration { return l.cfg.SessionTimeout }

// readEvery makes up for notices that are lost.
func (l *rowLink) readEvery() time.Duration { return l.cfg.SessionTimeout / exchangesPerSession }

func (l *rowLink) of(bool) environment { return l }

func (l *rowLink) close() { l.s.Close() }

func (l *rowLink) abandon() { l.s.Abandon() }

// exchange makes one exchange, with a deadline. It notes the contact if it
// succeeds, and the end of the session.
func (l *rowLink) exchange(ctx context.Context, what string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.SessionTimeout/exchangesPerSession)
	defer cancel()
	sent := time.Now()
	err := f(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil || errors.Is(err, ErrChanged):
		l.contact = sent
	case errors.Is(err, ErrExpired):
		l.expired = true
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (l *rowLink) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.SessionTimeout/exchangesPerSession)
	defer cancel()
	if err := l.s.Create(ctx); err != nil {
		return fmt.Errorf("create environment %s: %w", l.cfg.Environment, err)
	}
	return nil
}

func (l *rowLink) maintain(context.Context, *view) ([]string, error) { return nil, nil }

func (l *rowLink) register(ctx context.Context, id string, data []byte) (node string, version int64, err error) {
	err = l.exchange(ctx, "register", func(ctx context.Context) error {
		var seq int64
		seq, version, err = l.s.Register(ctx, data)
		node = rowName(id, seq)
		return err
	})
	return node, version, err
}

// rowName returns the name of a registration, as that of a znode.
func rowName(id string, seq int64) string { return fmt.Sprintf("%s%010d", memberName(id), seq) }

func (l *rowLink) read(ctx context.Context, r reading) (v *view, err error) {
	began := time.Now()
	err = l.exchange(ctx, "read", func(ctx context.Context) error {
		rows, err := l.s.Read(ctx)
		if err == nil {
			v = viewOf(rows, r.last)
			v.at = began
			if rows.Next > 0 {
				v.next = time.Now().Add(rows.Next)
			}
		}
		return err
	})
	return v, err
}

// viewOf decodes rows. last is an earlier view, from which a strategy is taken that
// cannot be read any more.
func viewOf(rows Rows, last *view) *view {
	v := &view{nodesRead: true, leaving: map[string]bool{}}
	v.setPlan(rows.Plan.Data, rows.Plan.Version)
	v.setStrategy(rows.Strategy.Data, rows.Strategy.Version, last)
	for _, row := range rows.Members {
		m := registration{id: row.ID, seq: row.Seq, node: rowName(row.ID, row.Seq)}
		if row.Leaving {
			v.leaving[row.ID] = true
		}
		if old := last.registration(row.ID); old != nil {
			m.info, m.heartbeat, m.figures = old.info, old.heartbeat, old.figures
		}
		if found, err := decodeMember(row.Data); err == nil {
			m.read, m.info, m.current, m.heartbeat, m.figures = true, found.info, found.current, found.heartbeat, found.figures
		}
		v.members = append(v.members, m)
	}
	return v
}

func (l *rowLink) writeMember(ctx context.Context, _ string, w memberWrite) (version int64, err error) {
	err = l.exchange(ctx, "write member", func(ctx context.Context) error {
		version, err = l.s.WriteMember(ctx, w.data, w.version, w.plan, w.withdraws)
		return err
	})
	return version, err
}

func (l *rowLink) writePlan(ctx context.Context, p plan, version int64) error {
	return l.exchange(ctx, "write plan", func(ctx context.Context) error { return l.s.WritePlan(ctx, encodePlan(p), version) })
}

func (l *rowLink) writeStrategy(ctx context.Context, s *Strategy, version int64) error {
	return l.exchange(ctx, "write strategy", func(ctx context.Context) error { return l.s.WriteStrategy(ctx, encodeStrategy(s), version) })
}

func (l *rowLink) announceLeaving(ctx context.Context, _ string) error {
	return l.exchange(ctx, "announce leave", l.s.Leave)
}

func (l *rowLink) prove(ctx context.Context) error { return l.exchange(ctx, "renew", l.s.Renew) }

func (l *rowLink) sweep(ctx context.Context, staleAfter time.Duration, _ *slog.Logger) (cleared []string, err error) {
	err = l.exchange(ctx, "sweep", func(ctx context.Context) error {
		cleared, err = l.s.Sweep(ctx, staleAfter)
		return err
	})
	return cleared, err
}

// rowsOutside is an environment of a [Registry] as an [Admin] sees it.
type rowsOutside struct {
	r    Registry
	name string
}

var _ outside = rowsOutside{}

func (o rowsOutside) check(ctx context.Context) error {
	_, err := o.r.Read(ctx, o.name)
	return err
}

func (o rowsOutside) prepare(ctx context.Context) error { return o.r.Create(ctx, o.name) }

func (o rowsOutside) read(ctx context.Context, _ reading) (*view, error) {
	rows, err := o.r.Read(ctx, o.name)
	if err != nil {
		return nil, err
	}
	return viewOf(rows, nil), nil
}

func (o rowsOutside) strategyNow(ctx context.Context) ([]byte, int64, error) {
	rows, err := o.r.Read(ctx, o.name)
	return rows.Strategy.Data, rows.Strategy.Version, err
}

func (o rowsOutside) writeStrategy(ctx context.Context, s *Strategy, version int64) error {
	return o.r.WriteStrategy(ctx, o.name, encodeStrategy(s), version)
}

func (o rowsOutside) environments(ctx context.Context) ([]EnvironmentState, error) {
	return o.r.Environments(ctx)
}

// open is empty: whoever may connect to the database and use its tables may read
// and change them.
func (o rowsOutside) open(ctx context.Context) ([]string, error) { return nil, o.check(ctx) }
