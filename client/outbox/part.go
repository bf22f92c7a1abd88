package outbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/internal/ctxtime"
)

const (
	// batchBytes is the most bytes of a batch, but for one with a single row.
	batchBytes = 3 << 20
	// smallBatch is the number of rows below which the next claim waits for the poll.
	smallBatch = 100
	// flushAfter is how long the removal of moved rows waits for the next claim.
	flushAfter = 50 * time.Millisecond
	// Rows and batches of a part that wait for a retry; with more, nothing is claimed.
	maxLater = 20_000
	maxStuck = 64
)

// cursor is what a part has claimed. The package comment explains it.
type cursor struct {
	number, low int64
	seen, upto  string
}

// noCursor is that of a part without a batch.
var noCursor = cursor{seen: "1:1:", upto: "1"}

// batch is a batch that was claimed.
type batch struct {
	number    int64
	id        string // the request_id of its tasks without keys
	positions []int64
	claimedAt time.Time // by the local clock
	// left is the number of its operations that are not finished.
	left int
	// single: its tasks without keys are sent singly, because Perceptor has refused them as a whole.
	single bool
}

// row is an operation of a batch.
type row struct {
	operation
	batch  *batch
	readAt time.Time
	// unknown is set if it may have taken effect without an answer.
	unknown bool
	// errors is how often Perceptor answered with an internal error.
	errors int
}

// outcome is what a finish stores.
type outcome struct {
	done, refused     []int64
	reasons, messages []string
}

func (o *outcome) empty() bool { return len(o.done)+len(o.refused) == 0 }

// mover moves the operations of one part. Only run uses it, but for woken and idle.
type mover struct {
	r    *Relay
	pool *pgxpool.Pool
	part int16
	ctx  context.Context // ends when the part is given up
	stop context.CancelFunc
	done chan struct{}
	// woken receives when there are new rows; idle is the cursor while the mover waits for them.
	woken chan struct{}
	idle  atomic.Pointer[cursor]

	at     cursor
	closed []int64 // numbers of finished batches whose rows are to be deleted
	out    outcome // what the next finish stores
	// later are operations with keys that wait for a retry, by position, and held counts them by key.
	later []*row
	held  map[string]int
	// stuck are the tasks without keys that wait for a retry, by batch.
	stuck    [][]*row
	retryAt  time.Time
	failures int
}

func newMover(ctx context.Context, r *Relay, pool *pgxpool.Pool, part int16) *mover {
	m := &mover{r: r, pool: pool, part: part, done: make(chan struct{}), woken: make(chan struct{}, 1), held: map[string]int{}}
	m.ctx, m.stop = context.WithCancel(ctx)
	return m
}

// run moves operations until the part is given up.
func (m *mover) run() {
	defer close(m.done)
	defer m.stop()
	for failures := 1; m.ctx.Err() == nil; failures++ {
		if err := m.load(); err != nil {
			m.r.failed(stepRead, err)
			ctxtime.Sleep(m.ctx, backoff(failures, 5*time.Second))
			continue
		}
		if failures = 0; !m.work() {
			ctxtime.Sleep(m.ctx, minBackoff)
		}
	}
	m.idle.Store(nil)
	m.flush(context.WithoutCancel(m.ctx))
}

// load reads the state of the part: its cursor, and the rows of batches that are not finished, which are
// sent again.
func (m *mover) load() error {
	m.at, m.closed, m.later, m.stuck, m.held = noCursor, nil, nil, nil, map[string]int{}
	m.retryAt, m.failures = time.Now(), 0
	open, err := query(m.ctx, m.batches)
	if err != nil {
		return fmt.Errorf("read the batches of part %d: %w", m.part, err)
	}
	for _, b := range open {
		if err := m.reopen(b); err != nil {
			return fmt.Errorf("read batch %d of part %d: %w", b.number, m.part, err)
		}
	}
	slices.SortFunc(m.later, func(x, y *row) int { return int(x.position - y.position) })
	return nil
}

func (m *mover) batches(ctx context.Context) (list []*batch, err error) {
	if err := m.r.fail(stepRead); err != nil {
		return nil, err
	}
	rows, err := m.r.sql.batches.Query(ctx, m.pool, m.part)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (*batch, error) {
		var age float64
		b := &batch{}
		err := r.Scan(&b.number, &b.id, &b.positions, &m.at.low, &m.at.seen, &m.at.upto, &age)
		m.at.number, b.claimedAt = b.number, now.Add(-seconds(age))
		return b, err
	})
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// reopen puts the operations that are left of a batch where they wait for their retry.
func (m *mover) reopen(b *batch) error {
	left, err := query(m.ctx, func(ctx context.Context) ([]*row, error) {
		rows, err := m.r.sql.keys.Query(ctx, m.pool, m.part, b.positions)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(r pgx.CollectableRow) (*row, error) {
			x := &row{batch: b, unknown: true}
			return x, r.Scan(&x.position, &x.key)
		})
	})
	if err != nil {
		return err
	}
	b.left = len(left)
	m.postpone(left)
	if b.left == 0 {
		m.closed = append(m.closed, b.number)
	}
	return nil
}

// postpone puts operations of one batch where they wait for their retry.
func (m *mover) postpone(rows []*row) {
	var free []*row
	for _, x := range rows {
		x.body = nil // it is read again
		if x.key == "" {
			free = append(free, x)
			continue
		}
		m.later = append(m.later, x)
		m.held[x.key]++
	}
	if len(free) > 0 {
		m.stuck = append(m.stuck, free)
	}
}

// work claims, sends and finishes until the part is given up, or until a statement has failed: then it
// returns false, and the state must be loaded again.
func (m *mover) work() bool {
	for m.await() {
		rows, err := m.step()
		if err != nil {
			m.r.failed(stepClaim, err)
			m.flush(m.ctx)
			return false
		}
		m.send(rows)
		if len(rows) >= smallBatch {
			m.wakeSelf()
		}
	}
	return true
}

// step sends what is due for a retry, and claims the next rows. What was sent before is finished first.
func (m *mover) step() ([]*row, error) {
	if m.waits() && !time.Now().Before(m.retryAt) {
		if err := m.finish(m.ctx); err != nil {
			return nil, err
		}
		m.retry()
	}
	return m.advance()
}

func (m *mover) wakeSelf() {
	select {
	case m.woken <- struct{}{}:
	default:
	}
}

// await waits until there is something to do: new rows, moved rows to remove, or a retry. While
// Perceptor is away it waits until it answers. It returns false when the part is given up.
func (m *mover) await() bool {
	wait := time.Hour
	if !m.out.empty() {
		wait = flushAfter
	}
	if m.waits() {
		wait = min(wait, time.Until(m.retryAt))
	}
	woken := m.woken
	if m.full() {
		woken = nil
	} else {
		at := m.at
		m.idle.Store(&at)
		m.r.look() // rows may have been announced before
		defer m.idle.Store(nil)
	}
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	select {
	case <-m.ctx.Done():
		return false
	case <-woken:
	case <-timer.C:
	}
	return (!m.out.empty() || m.r.gate.pass(m.ctx)) && m.ctx.Err() == nil
}

// waits reports whether operations wait for a retry.
func (m *mover) waits() bool { return len(m.later)+len(m.stuck) > 0 }

// full reports whether so many operations wait for a retry that nothing is claimed.
func (m *mover) full() bool { return len(m.later) > maxLater || len(m.stuck) > maxStuck }

// errNotHeld means that the lease of the part has ended.
var errNotHeld = errors.New("the lease of the part has ended")

// advance finishes what was sent and claims the next batch in one transaction. It returns the rows of
// the batch; none if there are none, or if too many wait for a retry, or if Perceptor is away.
func (m *mover) advance() ([]*row, error) {
	if m.full() || !m.r.gate.open() {
		return nil, m.finish(m.ctx)
	}
	if err := m.r.fail(stepClaim); err != nil {
		return nil, err
	}
	if !m.out.empty() {
		if err := m.r.fail(stepFinish); err != nil {
			return nil, err
		}
	}
	b, err := query(m.ctx, m.finishAndClaim)
	if err != nil || b == nil {
		return nil, err
	}
	if err := m.r.fail(stepRead); err != nil {
		return nil, err
	}
	return m.read(b, b.positions)
}

// finishAndClaim returns the claimed batch, or nil if there are no rows. The claim comes first: it must see no
// snapshot that is younger than the id of its transaction, which any change before it would draw, because the
// cursor's upto bounds the ids of the transactions that were open in that snapshot.
func (m *mover) finishAndClaim(ctx context.Context) (*batch, error) {
	b := &batch{number: m.at.number + 1, id: rand.Text(), claimedAt: time.Now()}
	both := &pgx.Batch{}
	var held bool
	var low *int64
	var seen, upto *string
	m.r.sql.claim.Queue(both, m.part, m.r.id, b.number, b.id, m.at.low, m.at.seen, m.at.upto, m.closed, m.r.cfg.BatchRows, int64(batchBytes)).
		QueryRow(func(r pgx.Row) error { return r.Scan(&held, &b.positions, &low, &seen, &upto) })
	if !m.out.empty() {
		m.r.sql.finish.Queue(both, m.finishArgs()...)
	}
	if err := m.pool.SendBatch(ctx, both).Close(); err != nil {
		return nil, err
	}
	m.out = outcome{}
	if !held {
		return nil, errNotHeld
	}
	if low == nil {
		return nil, nil
	}
	b.left = len(b.positions)
	m.at, m.closed = cursor{number: b.number, low: *low, seen: *seen, upto: *upto}, nil
	return b, nil
}

func (m *mover) finishArgs() []any {
	o := &m.out
	return []any{m.part, append([]int64{}, o.done...), append([]int64{}, o.refused...), append([]string{}, o.reasons...), append([]string{}, o.messages...)}
}

// finish stores what was sent.
func (m *mover) finish(ctx context.Context) error {
	if m.out.empty() {
		return nil
	}
	if err := m.r.fail(stepFinish); err != nil {
		return err
	}
	_, err := query(ctx, func(ctx context.Context) (int, error) {
		_, err := m.r.sql.finish.Exec(ctx, m.pool, m.finishArgs()...)
		return 0, err
	})
	if err == nil {
		m.out = outcome{}
	}
	return err
}

// flush finishes what was sent, even after failures. What remains unfinished is sent again later, which
// changes nothing.
func (m *mover) flush(ctx context.Context) {
	for tries := 1; tries <= 3; tries++ {
		err := m.finish(ctx)
		if err == nil {
			return
		}
		m.r.failed(stepFinish, err)
		if !ctxtime.Sleep(ctx, backoff(tries, time.Second)) {
			return
		}
	}
	m.out = outcome{}
}

// read reads operations of a batch.
func (m *mover) read(b *batch, positions []int64) ([]*row, error) {
	return query(m.ctx, func(ctx context.Context) ([]*row, error) {
		rows, err := m.r.sql.read.Query(ctx, m.pool, m.part, positions)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		return pgx.CollectRows(rows, func(r pgx.CollectableRow) (*row, error) {
			x := &row{batch: b, readAt: now}
			return x, r.Scan(&x.position, &x.op, &x.form, &x.key, &x.body, &x.age)
		})
	})
}
