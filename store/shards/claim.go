package shards

import (
	"cmp"
	"context"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/shards/transition"
	"github.com/perceptor/perceptor/task"
)

// Claim claims the due rows of some shards of one database, in one transaction: it
// asserts the ownership, acknowledges published outbox parts, claims rows, and writes the
// claimed runs into the outbox.
//
// If a range claim waits for a lock longer than lock_timeout, Claim repeats it in the
// capped form, which skips locked rows. So it does for a flow if more rows than it may
// claim are due at the instant of the first one. If it fails because of damaged rows, Claim
// quarantines them and repeats the claim.
func (s *Store) Claim(ctx context.Context, req task.ClaimRequest) (task.Claim, error) {
	claim, err := s.claimForm(ctx, req)
	if damagedRows(err) && s.quarantineRows(ctx, req) {
		claim, err = s.claimForm(ctx, req)
	}
	return claim, err
}

func (s *Store) claimForm(ctx context.Context, req task.ClaimRequest) (task.Claim, error) {
	claim, err := s.claim(ctx, req)
	if err != nil && req.Form == task.RangeForm && kernel.LockConflict(err) {
		req.Form = task.CappedForm
		return s.claim(ctx, req)
	}
	return claim, err
}

func (s *Store) claim(ctx context.Context, req task.ClaimRequest) (task.Claim, error) {
	c := newClaiming(s, req)
	err := s.db.InTx(ctx, req.Database, "claim", func(tx pgx.Tx) error {
		c.Claim, c.undecided, c.unreadable, c.effects = task.Claim{Next: task.Never}, nil, nil, s.machines.NewEffects()
		if err := c.claimRows(ctx, tx); err != nil {
			return err
		}
		if len(c.Lost) > 0 || c.Settings != 0 || (c.Rows == 0 && len(req.Acknowledged) == 0) {
			return kernel.ErrNothing
		}
		b := &pgx.Batch{}
		if err := c.decide(ctx, tx, b); err != nil {
			return err
		}
		c.note(b)
		if b.Len() == 0 {
			return nil
		}
		return kernel.SendLast(ctx, tx, b)
	})
	if err != nil {
		return task.Claim{}, err
	}
	c.Form = c.req.Form
	if c.Settings != 0 {
		return task.Claim{Now: c.Now, Settings: c.Settings, Form: c.Form}, nil
	}
	s.machines.TellMissed(c.effects.Missed)
	return c.Claim, nil
}

func newClaiming(s *Store, req task.ClaimRequest) *claiming {
	c := &claiming{store: s, req: req, tenants: map[int32]bool{}}
	for _, t := range req.Blocked {
		c.tenants[t] = true
	}
	return c
}

// claiming is one claim under way.
type claiming struct {
	task.Claim
	store     *Store
	req       task.ClaimRequest
	tenants   map[int32]bool          // blocked tenants
	flows     map[task.TenantKind]int // the indexes of the flows; see flowOf
	only      []kernel.Key            // if not nil, the rows to claim
	read      int                     // rows that the last statement has read, if it does not claim all of them
	undecided []kernel.Key            // rows that need the state machine
	// unreadable are the rows that the state machine defers because it cannot read their
	// terms.
	unreadable []faultyRow
	effects    *transition.Effects
}

// claimRows sends all statements up to the claim in one round trip. A claim of a kind with a
// cap needs two, because what it may claim follows from the runs that are open.
func (c *claiming) claimRows(ctx context.Context, tx pgx.Tx) error {
	b := &pgx.Batch{}
	shards, epochs, nonces := kernel.OwnedArgs(c.req.Owned)
	if c.req.Settings != 0 {
		sql.AssertClaim.Queue(b, shards, epochs, nonces, int32(settingsLock), int32(c.req.Database))
	} else {
		sql.AssertOwned.Queue(b, shards, epochs, nonces)
	}
	sql.SettingsNow.Queue(b)
	if c.capped() {
		if ok, err := c.admitCapped(ctx, tx, b); !ok || err != nil {
			return err
		}
		b = &pgx.Batch{}
	}
	acknowledgements := queueAcknowledge(b, c.req.Acknowledged)
	statements, limit := c.queueClaims(b, shards)
	results := tx.SendBatch(ctx, b)
	defer results.Close()
	if !c.capped() {
		if ok, err := c.readAdmission(results); !ok || err != nil {
			return err
		}
	}
	for range acknowledgements {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	for range statements {
		n, err := c.scan(results.Query())
		if err != nil {
			return err
		}
		c.More = c.More || (limit > 0 && max(n, c.read) >= limit)
	}
	if err := results.Close(); err != nil {
		return err
	}
	if c.flowRange() && c.Rows == 0 {
		c.req.Form = task.CappedForm // maybe more rows than the quota are due at one instant
		if _, err := c.scan(sql.ClaimFlows.Query(ctx, tx, c.flowsArgs(shards)...)); err != nil {
			return err
		}
	}
	c.Open += c.Rows
	c.More = c.More || c.capped() && c.Rows >= c.CapRoom
	return nil
}

// readAdmission reads whether the shards are owned and the settings are those of the request.
// If ok is false, the claim does nothing.
func (c *claiming) readAdmission(results pgx.BatchResults) (ok bool, err error) {
	rows, err := results.Query()
	if err != nil {
		return false, err
	}
	if c.Lost, err = kernel.LostOf(rows, c.req.Owned); err != nil || len(c.Lost) > 0 {
		return false, err
	}
	var settings int64
	if err := results.QueryRow().Scan(&c.Now, &settings); err != nil {
		return false, err
	}
	if c.req.Settings != 0 && settings != c.req.Settings {
		c.Settings = settings
		return false, nil
	}
	return true, nil
}

// queueClaims adds the claim statements; limit is the most rows of each, or 0 for none.
func (c *claiming) queueClaims(b *pgx.Batch, shards []int16) (statements, limit int) {
	if c.only != nil {
		blocked, blockedFor := c.blockedArgs()
		sql.ClaimKeys.Queue(b, append(kernel.KeyArgs(c.only), blocked, blockedFor)...)
		return 1, 0
	}
	if len(c.req.Flows) > 0 {
		return 1, c.queueFlows(b, shards)
	}
	blocked, blockedFor := c.blockedArgs()
	low, ahead := int64(c.req.Low), c.req.Ahead.Milliseconds()
	steady, setFor := int64(cmp.Or(c.req.SteadyNow, task.Never)), c.req.SetFor.Milliseconds()
	excluded := c.req.ExcludedTenants
	if excluded == nil {
		excluded = []int32{}
	}
	if c.req.Form == task.RangeForm {
		sql.ClaimRange.Queue(b, shards, low, blocked, blockedFor, ahead, excluded, steady, setFor)
		return 1, 0
	}
	limit = max(1, c.req.MaxRows/len(shards))
	for _, shard := range shards {
		sql.ClaimCapped.Queue(b, shard, low, blocked, blockedFor, ahead, excluded, limit, steady, setFor)
	}
	return len(shards), limit
}

// queueFlows adds the statement that claims the flows, and returns how many rows it may read, or 0 if it reads all.
func (c *claiming) queueFlows(b *pgx.Batch, shards []int16) (limit int) {
	c.FlowRows = make([]int, len(c.req.Flows))
	switch {
	case c.req.Together:
		sql.ClaimTogether.Queue(b, append(c.flowsArgs(shards), int64(c.req.MaxRows), lowest(c.req.Flows))...)
		return c.req.MaxRows
	case c.flowRange():
		blocked, blockedFor := c.blockedArgs()
		f := c.req.Flows[0]
		sql.ClaimFlow.Queue(b, shards, c.req.Ahead.Milliseconds(), blocked, blockedFor, f.Tenant, int64(f.Rows), int64(f.Low), int64(f.WaitingSince))
		return f.Rows
	}
	sql.ClaimFlows.Queue(b, c.flowsArgs(shards)...)
	return 0
}

// flowRange reports whether the only flow is claimed as a range.
func (c *claiming) flowRange() bool {
	return c.req.Form == task.RangeForm && len(c.req.Flows) == 1 && c.req.Flows[0].Kind == "" && len(c.req.ExcludedKinds) == 0 && !c.req.Together
}

// flowsArgs are the arguments that statements for several flows have in common.
func (c *claiming) flowsArgs(shards []int16) []any {
	blocked, blockedFor := c.blockedArgs()
	return append([]any{shards, c.req.Ahead.Milliseconds(), blocked, blockedFor}, flowArgs(&c.req)...)
}

func (c *claiming) blockedArgs() (tenants []int32, ms []int64) {
	if tenants = c.req.Blocked; tenants == nil {
		tenants = []int32{}
	}
	ms = make([]int64, len(tenants))
	for i, d := range c.req.BlockedFor {
		ms[i] = d.Milliseconds()
	}
	return tenants, ms
}

// claimed receives the columns of the fragment claim_returning.
type claimed struct {
	now        int64
	tenant     int32
	id, run    int64
	due        int64
	typ        int16
	seq        int64
	attempt    int32
	state      int16
	scheduled  int64
	anchor     int64
	interval   *int64
	end        *int64
	version    int32
	ackTimeout int32
	undecided  bool // SQL has not changed the row; the state machine decides
	kind       string
	params     []byte
	origin     task.Origin
	misfire    task.Misfire
	// read is how many rows the statement has read, if it does not claim all of them; else 0.
	read int64
}

// scan reads the rows that one claim statement returned, and counts them.
func (c *claiming) scan(rows pgx.Rows, failed error) (n int, err error) {
	if failed != nil {
		return 0, failed
	}
	defer rows.Close()
	defer func() { c.Rows += n }()
	var r claimed
	reader := claimReader{rows: rows}
	defer func() { // not kernel.Recovered: this is the busiest loop
		if p := recover(); p != nil {
			err = &kernel.PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	for rows.Next() {
		if err := reader.read(&r); err != nil {
			return n, err
		}
		n++
		// The clock of the admission is that of an earlier statement, and in between the claim may
		// have waited for a lock.
		c.Now = max(c.Now, task.Instant(r.now))
		c.read = int(r.read)
		if c.FlowRows != nil {
			if i := c.flowOf(r.tenant, r.kind); i >= 0 {
				c.FlowRows[i]++
			}
		}
		switch {
		case c.tenants[r.tenant]:
			c.Deferred++
		case r.undecided:
			c.undecided = append(c.undecided, kernel.KeyOf(r.tenant, task.ID(r.id), r.run))
		default:
			c.Next = min(c.Next, task.Instant(r.due))
			p := r.publication()
			c.Missed += p.Missed
			c.Publications = append(c.Publications, p)
			if r.becameRunning() {
				c.effects.Move(r.tenant, p.Type, task.Cell(task.Scheduled), task.Cell(task.Running), 1)
			}
		}
	}
	return n, rows.Err()
}

// becameRunning reports whether the claim has moved a task from SCHEDULED to RUNNING. It
// returns false for run rows, redeliveries, triggered runs and tasks that have a next
// run.
func (r *claimed) becameRunning() bool {
	return r.run == 0 && task.State(r.state) == task.Running &&
		(task.Type(r.typ) == task.NonBlocking || (r.attempt == 1 && r.anchor >= 0))
}

func (r *claimed) publication() task.Publication {
	p := task.Publication{
		Tenant: r.tenant, Task: task.ID(r.id), Seq: r.seq, Attempt: r.attempt, Type: task.Type(r.typ), Kind: r.kind,
		ScheduledAt: task.Instant(r.scheduled), Version: r.version,
		AckTimeout: kernel.Millis(r.ackTimeout), Params: r.params, Origin: r.origin, Misfire: r.misfire,
	}
	switch {
	case r.run != 0:
		p.Seq = r.run
	case p.Type == task.NonBlocking:
		p.Attempt = 1
		p.ScheduledAt = task.Instant(r.anchor)
		p.Missed = (r.scheduled-r.anchor) / *r.interval - 1
		if r.end != nil {
			p.Missed = min(p.Missed, (*r.end-1-r.anchor) / *r.interval)
		}
	}
	p.ClaimedAt = claimedAt(&p, task.Instant(r.now))
	return p
}

// claimedAt returns the instant at which a run counts as claimed if it is claimed at now,
// possibly ahead of its scheduled instant.
func claimedAt(p *task.Publication, now task.Instant) task.Instant { return max(now, p.ScheduledAt) }

// decide applies the state machine to the rows that SQL left undecided. The claim has
// locked them. If a run row needs its task's row and another transaction has locked that
// row, decide skips both, and they stay due. So do the rows for which the time of a transaction does not
// suffice; the next claim follows at once.
func (c *claiming) decide(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error {
	if len(c.undecided) == 0 {
		return nil
	}
	return kernel.Recovered(func() error { return c.decideRows(ctx, tx, b) })
}

func (c *claiming) decideRows(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error {
	// A task comes before its runs, so that its own run fires even if a dead run ends the task.
	slices.SortFunc(c.undecided, kernel.CompareKeys)
	keys := slices.Clone(c.undecided)
	for _, k := range c.undecided {
		keys = append(keys, k.Task())
	}
	machines, all, err := c.store.machines.LockSome(ctx, tx, keys)
	if err != nil {
		return err
	}
	c.More = c.More || !all
	var touched transition.Touched
	began := time.Now()
	for _, k := range c.undecided {
		machine := machines[k.Task()]
		if !transition.Living(machine) || (k.Run != 0 && machine.Runs[k.Run] == nil) {
			continue
		}
		if t := machine.Task; k.Run == 0 && t.DueAt > c.Now && (t.Overlapped() || t.Unknown.Name != "") {
			c.leave(machine.Task)
			continue
		}
		if len(touched.Machines) > 0 && c.store.machines.Over(began) {
			c.leave(machine.Task)
			c.More = true
			continue
		}
		touched.Add(machine)
		machine.WaitingSince = c.waitingSince(k.Tenant, machine.Task.Kind)
		if p := machine.Due(k.Run, c.dueInstant(machine, k.Run)); p != nil {
			p.ClaimedAt = claimedAt(p, c.Now)
			c.Publications = append(c.Publications, *p)
			c.Missed += p.Missed
		}
		if reason := machine.Task.Unreadable(); reason != "" {
			c.unreadable = append(c.unreadable, faultyRow{k, reason})
		}
	}
	c.Dead = touched.Dead()
	for _, k := range touched.Machines {
		for _, skipped := range k.Skipped {
			c.Missed += skipped.N
		}
	}
	c.Next = min(c.Next, transition.QueueClaimed(b, touched.Machines, c.Now, c.effects))
	return nil
}

// leave leaves a row as it is until it is due. The planner of the dispatcher sees that a row
// is missing, and a peek tells it which.
func (c *claiming) leave(r *task.Row) {
	c.Rows--
	if i := c.flowOf(r.Tenant, r.Kind); c.FlowRows != nil && i >= 0 {
		c.FlowRows[i]--
	}
}

// dueInstant returns the instant of the step for a claimed row. A row that was claimed
// ahead moves as if it were claimed at its due instant.
func (c *claiming) dueInstant(k *task.Machine, run int64) task.Instant {
	r := k.Task
	if run != 0 {
		r = k.Runs[run]
	}
	return max(c.Now, r.DueAt)
}

// note writes the publications into the outbox, and the effects.
func (c *claiming) note(b *pgx.Batch) {
	for i := range c.Publications {
		c.effects.Publication(&c.Publications[i])
	}
	c.effects.Queue(b, c.Now)
	c.noteCapped(b)
	if len(c.unreadable) > 0 {
		keys, reasons := listFaulty(c.unreadable)
		sql.RowsNote.Queue(b, append(kernel.KeyArgs(keys)[1:], reasons)...)
	}
	if c.Deferred > 0 {
		queueTrouble(b, c.req.Blocked)
	}
	if len(c.Publications) > 0 {
		sql.OutboxInsert.Queue(b, shardsOf(c.Publications), encodeEntries(c.Publications)).
			QueryRow(func(row pgx.Row) error { return row.Scan(&c.Outbox) })
	}
}

// peekWalk is the most rows of excluded tenants that a peek walks over.
const peekWalk = 1000

// Peek counts the rows that are due soon, and lists the earliest.
func (s *Store) Peek(ctx context.Context, d int, req task.PeekRequest) (task.Peek, error) {
	if len(req.ExcludedTenants) > 0 || s.manyWait[d].Load() {
		return s.peekAndCount(ctx, d, req)
	}
	var p task.Peek
	var dues []int64
	var of []int16
	began, nothing := time.Now(), false
	row := sql.PeekFew.QueryRow(ctx, s.db.Pool(d), items(req.Shards), int64(req.Low), task.MaxSoon)
	if err := row.Scan(&p.Now, &dues, &of, &p.Settings, &nothing); err != nil {
		return task.Peek{}, err
	}
	if p.Soon = upcoming(dues, of); len(p.Soon) == task.MaxSoon { // more rows may wait
		s.manyWait[d].Store(true)
		return s.peekAndCount(ctx, d, req)
	}
	s.db.Looked(d, began, nothing && (len(p.Soon) == 0 || p.Soon[0].Due > p.Now))
	for _, u := range p.Soon {
		if p.Rows < req.Limit && u.Due > max(req.Low, req.From) && u.Due <= p.Now.Add(req.Window) {
			p.Rows++
		}
	}
	return p, nil
}

// Quiet reports whether a peek has just shown that nothing waits in database d: no row is due, no dead run is to be published, no counter to be
// folded, no bulk operation to be executed, and the outbox is empty.
func (s *Store) Quiet(d int) bool { return s.db.Quiet(d) }

// BulkStarted must be called when another process has created or changed a bulk operation in database d.
func (s *Store) BulkStarted(d int) { s.db.Changed(d) }

func (s *Store) peekAndCount(ctx context.Context, d int, req task.PeekRequest) (task.Peek, error) {
	var p task.Peek
	var dues []int64
	var of []int16
	look := sql.Peek
	args := []any{items(req.Shards), int64(req.Low), req.Window.Milliseconds(), req.Limit, task.MaxSoon, int64(max(req.Low, req.From))}
	found := []any{&p.Now, &p.Rows, &dues, &of, &p.Settings}
	var known, excluded *int64
	if len(req.ExcludedTenants) > 0 {
		look, args, found = sql.PeekExcluded, append(args, req.ExcludedTenants, peekWalk), append(found, &known, &excluded)
	}
	if err := look.QueryRow(ctx, s.db.Pool(d), args...).Scan(found...); err != nil {
		return task.Peek{}, err
	}
	if known != nil {
		p.Known = task.Instant(*known)
	}
	if excluded != nil {
		p.ExcludedDue = task.Instant(*excluded)
	}
	p.Soon = upcoming(dues, of)
	s.manyWait[d].Store(len(p.Soon) == task.MaxSoon)
	return p, nil
}

func upcoming(dues []int64, shards []int16) []task.Upcoming {
	all := make([]task.Upcoming, len(dues))
	for i, due := range dues {
		all[i] = task.Upcoming{Due: task.Instant(due), Shard: task.Shard(shards[i])}
	}
	return all
}

// GiveUp marks runs that can never be published as dead, and acknowledges parts of the
// outbox, in one transaction that asserts the ownership. If shards were lost it does
// nothing and returns them: their new owner will find the same runs.
func (s *Store) GiveUp(ctx context.Context, d int, owned []task.Ownership, pubs []task.Publication, reason task.DeadReason, message string, parts []task.OutboxPart) (lost []task.Shard, err error) {
	return s.db.InOwnedTx(ctx, d, "give up", owned, func(tx pgx.Tx) error {
		now, err := kernel.Clock(ctx, tx)
		if err != nil {
			return err
		}
		var keys []kernel.Key
		for i := range pubs {
			keys = append(keys, kernel.KeyOf(pubs[i].Tenant, pubs[i].Task, 0), kernel.KeyOf(pubs[i].Tenant, pubs[i].Task, pubs[i].Seq))
		}
		machines, err := s.machines.Lock(ctx, tx, keys)
		if err != nil {
			return err
		}
		var touched transition.Touched
		for i := range pubs {
			machine := machines[kernel.KeyOf(pubs[i].Tenant, pubs[i].Task, 0)]
			if !transition.Living(machine) {
				continue
			}
			if machine.GiveUp(task.Attempt{RunID: pubs[i].RunID(), Attempt: pubs[i].Attempt}, reason, message, now) {
				touched.Add(machine)
			}
		}
		if _, err := transition.Write(ctx, tx, touched.Machines, now, s.machines.NewEffects()); err != nil {
			return err
		}
		return acknowledgeParts(ctx, tx, parts)
	})
}
