package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/task"
)

// fakeStore is a store in memory with epochs, an outbox that the shards of a claim share,
// and commits whose answer is lost. Transactions of one database exclude each other, so an
// acquisition waits for those of former owners.
type fakeStore struct {
	// fault, if set, returns the fault of each claim's commit.
	fault func(task.ClaimRequest) commitFault
	// delay, if set, returns how long each claim takes before and after its clock is read.
	delay func() (before, after time.Duration)
	// beforeTokens, if set, is called when tokens are requested.
	beforeTokens func()
	// params are those of the tasks of each tenant.
	params map[int32][]byte
	// refuseAcknowledge makes AcknowledgeOutbox and Release fail.
	refuseAcknowledge atomic.Bool
	// unreadable is the number of readings of the outbox that are still to fail.
	unreadable atomic.Int32

	dbs [task.Databases]chan struct{} // each database's lock

	mu     sync.Mutex
	skew   atomic.Int64 // a time.Duration
	epochs map[task.Shard]task.Ownership
	rows   map[task.ID]*fakeRow
	// open are the rows of each database that may be due again.
	open    [task.Databases]map[task.ID]*fakeRow
	outbox  map[int64]*fakeOutbox
	nextRow int64
	nonce   int64
	claimed map[task.RunID]bool // every run whose claim has committed
	closed  map[task.RunID]bool
	dead    map[task.RunID]string
	claims  []task.ClaimRequest // the committed claims
	peeks   int
	// noted counts by tenant how often its topic was noted to fail. deferred counts rows that
	// claims have deferred.
	noted    map[int32]int
	deferred int
	// version and rates are the settings of tenants. tokens are their buckets.
	version int64
	rates   map[int32]task.Rates
	tokens  map[int32]*fakeTokens
	// caps have the cap leases of tenants with a capped kind.
	caps map[int32]*fakeCap
}

// fakeCap is the cap lease of the only capped kind of a tenant.
type fakeCap struct {
	// taken is set while a dispatcher has the lease. epoch is the epoch of the last lease,
	// and shared is what it has reported.
	taken  bool
	epoch  int64
	shared bool
	// parts are the parts of the cap that databases have.
	parts [task.Databases]int
}

// capOf returns the cap lease of a tenant. s.mu is held.
func (s *fakeStore) capOf(tenant int32) *fakeCap {
	if s.caps == nil {
		s.caps = map[int32]*fakeCap{}
	}
	if s.caps[tenant] == nil {
		s.caps[tenant] = &fakeCap{}
	}
	return s.caps[tenant]
}

// AcquireCapLease counts the runs of a tenant that are claimed and not closed. It assumes
// that all are of one kind.
func (s *fakeStore) AcquireCapLease(_ context.Context, of task.TenantKind, limit int) (task.CapLease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.capOf(of.Tenant)
	if c.taken {
		return task.CapLease{}, nil
	}
	c.taken = true
	c.epoch++
	lease := task.CapLease{Epoch: c.epoch, Shared: c.shared}
	for d := range lease.Open {
		lease.Open[d] = s.openIn(d, of.Tenant)
		switch {
		case !lease.Shared:
			c.parts[d] = -1
		case c.parts[d] < 0:
			c.parts[d] = task.CapPart(limit, d)
		}
		lease.Parts[d] = max(c.parts[d], 0)
	}
	c.shared = false
	return lease, nil
}

// openIn counts the open runs of a tenant in one database. s.mu is held.
func (s *fakeStore) openIn(database int, tenant int32) (open int) {
	for r := range s.claimed {
		if s.rows[r.Task].tenant == tenant && !s.closed[r] && r.Task.Shard().Database() == database {
			open++
		}
	}
	return open
}

func (s *fakeStore) ReleaseCapLease(_ context.Context, of task.TenantKind, _ int64, share bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.capOf(of.Tenant)
	c.taken, c.shared = false, share
	return nil
}

// capRoom returns how many runs a claim with a limit may take. s.mu is held.
func (s *fakeStore) capRoom(req *task.ClaimRequest) (room, open int) {
	limit, part := req.CapLimit, max(s.capOf(req.Flows[0].Tenant).parts[req.Database], 0)
	if req.CapLease == 0 || part < req.CapPart {
		limit = min(limit, part)
	}
	open = s.openIn(req.Database, req.Flows[0].Tenant)
	return max(limit-open, 0), open
}

// hasDue reports whether the only flow of a claim has due rows. s.mu is held.
func (s *fakeStore) hasDue(req *task.ClaimRequest, now task.Instant) bool {
	shards := make(map[task.Shard]bool)
	for _, o := range req.Owned {
		shards[o.Shard] = true
	}
	for _, due := range s.dueRows(req.Database, shards, req.Low, now, req.Ahead) {
		if s.flowOf(req, due.row) == 0 {
			return true
		}
	}
	return false
}

// LendCapPart assumes that no lease begins between its two steps.
func (s *fakeStore) LendCapPart(_ context.Context, of task.TenantKind, from, to int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.capOf(of.Tenant)
	n := max(c.parts[from]-s.openIn(from, of.Tenant)+1, 0) / 2
	if c.parts[to] < 0 {
		n = 0
	}
	c.parts[from] -= n
	c.parts[to] += n
	return n, nil
}

// fakeTokens is the bucket of a tenant. paid is the instant at which all tokens granted so
// far are refilled.
type fakeTokens struct{ paid time.Time }

// setRates changes the settings of a tenant.
func (s *fakeStore) setRates(tenant int32, r task.Rates) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.rates = maps.Clone(s.rates)
	s.rates[tenant] = r
}

func (s *fakeStore) Settings(context.Context, int) (task.Settings, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return task.Settings{Version: s.version, Rates: s.rates}, nil
}

func (s *fakeStore) TakeTokens(_ context.Context, home int, requests []task.TokenRequest) ([]task.Tokens, error) {
	if s.beforeTokens != nil {
		s.beforeTokens()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	grants := make([]task.Tokens, len(requests))
	for i, q := range requests {
		if task.HomeOf(q.Tenant) != home {
			return nil, fmt.Errorf("database %d is not the home of tenant %d", home, q.Tenant)
		}
		grants[i] = s.grantTokens(q.Tenant, q.Want, q.Unused)
	}
	return grants, nil
}

// grantTokens grants tokens of one tenant. s.mu is held.
func (s *fakeStore) grantTokens(tenant int32, want, unused int) task.Tokens {
	r := s.rates[tenant]
	if r.DispatchRate == 0 {
		return task.Tokens{Granted: want}
	}
	t := s.tokens[tenant]
	if t == nil {
		t = &fakeTokens{}
		s.tokens[tenant] = t
	}
	now, step := time.Now(), time.Second/time.Duration(r.DispatchRate)
	burst := time.Duration(r.Burst()) * step
	if t.paid.After(now.Add(burst)) {
		t.paid = now.Add(burst)
	}
	if t.paid = t.paid.Add(-time.Duration(unused) * step); t.paid.Before(now) {
		t.paid = now
	}
	n := max(min(want, int((now.Add(burst).Sub(t.paid))/step)), 0)
	t.paid = t.paid.Add(time.Duration(n) * step)
	return task.Tokens{Granted: n, Wait: max((t.paid.Add(step - burst).Sub(now)).Milliseconds(), 0)}
}

type fakeRow struct {
	tenant int32
	seq    int64
	due    task.Instant
	every  time.Duration
	begun  task.Instant
	// waits is set if the row waits for a result or a retry, so it is not claimed ahead.
	waits bool
}

type fakeOutbox struct {
	shards  []task.Shard
	entries []task.Publication
}

// commitFault is the fault of a commit.
type commitFault int

const (
	commits        commitFault = iota
	rollsBack                  // the error reports it
	answerLost                 // it commits, but its outcome is unknown
	rollsBackMute              // it does not commit, and its outcome is unknown
	landsLater                 // its outcome is unknown, and it commits some time later
	landsLaterWait = 300 * time.Millisecond
)

var errRolledBack = errors.New("rolled back")

func newFakeStore() *fakeStore {
	s := &fakeStore{
		params: map[int32][]byte{},
		epochs: map[task.Shard]task.Ownership{}, rows: map[task.ID]*fakeRow{}, outbox: map[int64]*fakeOutbox{},
		claimed: map[task.RunID]bool{}, closed: map[task.RunID]bool{}, dead: map[task.RunID]string{},
		version: 1, rates: map[int32]task.Rates{}, tokens: map[int32]*fakeTokens{}, noted: map[int32]int{},
	}
	for i := range s.dbs {
		s.dbs[i] = make(chan struct{}, 1)
		s.open[i] = map[task.ID]*fakeRow{}
	}
	return s
}

func (s *fakeStore) now() task.Instant { return task.At(time.Now().Add(time.Duration(s.skew.Load()))) }

// add adds a task that is due after in. If every is 0 it has one run, otherwise a run every
// that long.
func (s *fakeStore) add(id task.ID, tenant int32, in, every time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.now().Add(in)
	s.insert(id, &fakeRow{tenant: tenant, due: due, every: every, begun: due})
}

// insert stores a row. s.mu is held.
func (s *fakeStore) insert(id task.ID, r *fakeRow) {
	s.rows[id] = r
	s.open[id.Shard().Database()][id] = r
}

func (s *fakeStore) lock(ctx context.Context, db int) (func(), error) {
	select {
	case s.dbs[db] <- struct{}{}:
		return func() { <-s.dbs[db] }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *fakeStore) Acquire(ctx context.Context, db int, shards []task.Shard, _ task.Owner) ([]task.Ownership, error) {
	unlock, err := s.lock(ctx, db)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	var owned []task.Ownership
	for _, sh := range shards {
		s.nonce++
		o := task.Ownership{Shard: sh, Epoch: s.epochs[sh].Epoch + 1, Nonce: s.nonce}
		s.epochs[sh] = o
		owned = append(owned, o)
	}
	return owned, nil
}

func (s *fakeStore) Unpublished(ctx context.Context, db int, owned []task.Ownership, after int64, runs int) ([]task.OutboxBatch, int64, error) {
	if s.unreadable.Add(-1) >= 0 {
		return nil, 0, errRolledBack
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var batches []task.OutboxBatch
	for _, row := range slices.Sorted(maps.Keys(s.outbox)) {
		if row <= after {
			continue
		}
		if runs <= 0 {
			return batches, after, nil
		}
		o := s.outbox[row]
		b := task.OutboxBatch{Part: task.OutboxPart{Row: row}}
		for _, own := range owned {
			if slices.Contains(o.shards, own.Shard) {
				b.Part.Shards = append(b.Part.Shards, own.Shard)
			}
		}
		for _, p := range o.entries {
			if slices.Contains(b.Part.Shards, p.Task.Shard()) && !s.closed[p.RunID()] {
				b.Publications = append(b.Publications, p)
			}
		}
		if len(b.Part.Shards) > 0 {
			batches, after = append(batches, b), row
			runs -= len(b.Publications)
		}
	}
	return batches, 0, nil
}

// lost returns the shards whose current ownership differs.
func (s *fakeStore) lost(owned []task.Ownership) []task.Shard {
	var lost []task.Shard
	for _, o := range owned {
		if s.epochs[o.Shard] != o {
			lost = append(lost, o.Shard)
		}
	}
	return lost
}

func (s *fakeStore) Claim(ctx context.Context, req task.ClaimRequest) (task.Claim, error) {
	unlock, err := s.lock(ctx, req.Database)
	if err != nil {
		return task.Claim{}, err
	}
	fault := commits
	if s.fault != nil {
		fault = s.fault(req)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.delay != nil {
		before, after := s.delay()
		s.sleep(before)
		defer s.sleep(after)
	}
	if fault != landsLater {
		defer unlock()
	}
	if lost := s.lost(req.Owned); len(lost) > 0 {
		if fault == landsLater {
			unlock()
		}
		return task.Claim{Now: s.now(), Lost: lost}, nil
	}
	if req.Settings != 0 && req.Settings != s.version {
		if fault == landsLater {
			unlock()
		}
		return task.Claim{Now: s.now(), Settings: s.version}, nil
	}
	switch fault {
	case rollsBack:
		return task.Claim{}, errRolledBack
	case rollsBackMute:
		return task.Claim{}, fmt.Errorf("claim: %w", task.ErrOutcomeUnknown)
	case answerLost:
		s.commit(req)
		return task.Claim{}, fmt.Errorf("claim: %w", task.ErrOutcomeUnknown)
	case landsLater:
		go func() {
			defer unlock()
			time.Sleep(landsLaterWait)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.commit(req)
		}()
		return task.Claim{}, fmt.Errorf("claim: %w", task.ErrOutcomeUnknown)
	}
	if req.CapLease != 0 && req.CapLease != s.capOf(req.Flows[0].Tenant).epoch {
		return task.Claim{}, task.ErrCapLeaseOver
	}
	return s.commit(req), nil
}

// sleep waits without s.mu, which is held before and after.
func (s *fakeStore) sleep(d time.Duration) {
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
}

// commit executes and commits the claim. s.mu is held.
func (s *fakeStore) commit(req task.ClaimRequest) task.Claim {
	c := task.Claim{Now: s.now(), Next: task.Never}
	if req.CapLimit != 0 {
		c.CapRoom, c.Open = s.capRoom(&req)
		req.Flows = slices.Clone(req.Flows)
		req.Flows[0].Rows = min(req.Flows[0].Rows, c.CapRoom)
	}
	if req.CapLimit != 0 && c.CapRoom == 0 {
		c.FlowRows, c.More = []int{0}, s.hasDue(&req, c.Now)
		return c
	}
	s.claims = append(s.claims, req)
	s.remove(req.Acknowledged)
	if len(req.Flows) > 0 {
		c.FlowRows = make([]int, len(req.Flows))
	}
	shards := make(map[task.Shard]bool)
	for _, o := range req.Owned {
		shards[o.Shard] = true
	}
	out, read := &fakeOutbox{}, 0
	c.Form = req.Form
	dues, left := s.flowRange(&req, &c, s.dueRows(req.Database, shards, req.Low, c.Now, req.Ahead))
	for _, due := range dues {
		id, r := due.id, due.row
		switch flow := s.flowOf(&req, r); {
		case req.Together && flow >= 0 && read == req.MaxRows:
			c.More = true
		case len(req.Flows) > 0:
			if flow >= 0 {
				read++
			}
			if flow < 0 || c.FlowRows[flow] == req.Flows[flow].Rows {
				continue
			}
			c.FlowRows[flow]++
		case !r.waits && slices.Contains(req.ExcludedTenants, r.tenant):
			continue
		case req.Form == task.CappedForm && c.Rows == req.MaxRows:
			c.More = true
		}
		if c.More {
			break
		}
		now := max(c.Now, r.due) // a row that is claimed ahead counts as claimed when it is due
		c.Rows++
		if i := slices.Index(req.Blocked, r.tenant); i >= 0 {
			r.due = now.Add(min(req.BlockedFor[i], task.MaxBlock))
			c.Deferred++
			s.deferred++
			continue
		}
		r.seq++
		p := task.Publication{Tenant: r.tenant, Task: id, Seq: r.seq, Attempt: 1, Type: task.OneShot, Kind: "k", Params: s.params[r.tenant], ScheduledAt: r.begun.Add(time.Duration(r.seq-1) * r.every), ClaimedAt: now}
		r.due = task.Never
		if r.every > 0 {
			r.due = max(p.ScheduledAt.Add(r.every), now)
		} else {
			delete(s.open[req.Database], id)
		}
		c.Next = min(c.Next, r.due)
		s.claimed[p.RunID()] = true
		out.entries = append(out.entries, p)
		if !slices.Contains(out.shards, id.Shard()) {
			out.shards = append(out.shards, id.Shard())
		}
	}
	c.Open += c.Rows
	c.More = c.More || left || req.Together && read == req.MaxRows
	c.More = c.More || req.CapLimit != 0 && c.Rows >= c.CapRoom
	if len(out.entries) > 0 {
		s.nextRow++
		s.outbox[s.nextRow] = out
		c.Outbox, c.Publications = s.nextRow, slices.Clone(out.entries)
	}
	return c
}

// flowOf returns the flow of a claim that may take the row, or -1.
func (s *fakeStore) flowOf(req *task.ClaimRequest, r *fakeRow) int {
	return slices.IndexFunc(req.Flows, func(l task.Flow) bool {
		return l.Tenant == r.tenant && !r.waits && r.due > l.Low &&
			(l.Kind == "k" || l.Kind == "" && !slices.Contains(req.ExcludedKinds, task.TenantKind{Tenant: r.tenant, Kind: "k"}))
	})
}

// A fakeDue is a row that may be claimed.
type fakeDue struct {
	id  task.ID
	due task.Instant
	row *fakeRow
}

// dueRows returns the rows that may be claimed, oldest first.
func (s *fakeStore) dueRows(db int, shards map[task.Shard]bool, low, now task.Instant, ahead time.Duration) []fakeDue {
	var rows []fakeDue
	for id, r := range s.open[db] {
		until := now.Add(ahead)
		if r.waits {
			until = now
		}
		if r.due > low && r.due <= until && shards[id.Shard()] {
			rows = append(rows, fakeDue{id, r.due, r})
		}
	}
	slices.SortFunc(rows, func(a, b fakeDue) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.id, b.id)) })
	return rows
}

// flowRange returns the rows from which a claim takes those of its flows. A single flow that is
// claimed as a range ends before the instant of the first row beyond its quota; left says that
// there is one. If that leaves no row, the claim has the other form.
func (s *fakeStore) flowRange(req *task.ClaimRequest, c *task.Claim, dues []fakeDue) (rows []fakeDue, left bool) {
	if req.Form != task.RangeForm || len(req.Flows) != 1 {
		return dues, false
	}
	own := slices.DeleteFunc(slices.Clone(dues), func(d fakeDue) bool { return s.flowOf(req, d.row) < 0 })
	if len(own) <= req.Flows[0].Rows {
		return dues, false
	}
	end := own[req.Flows[0].Rows].due
	own = slices.DeleteFunc(own, func(d fakeDue) bool { return d.due >= end })
	if len(own) == 0 {
		c.Form = task.CappedForm
		return dues, false
	}
	return own, true
}

func (s *fakeStore) remove(parts []task.OutboxPart) {
	for _, p := range parts {
		o := s.outbox[p.Row]
		if o == nil {
			continue
		}
		o.shards = slices.DeleteFunc(o.shards, func(sh task.Shard) bool { return slices.Contains(p.Shards, sh) })
		if len(o.shards) == 0 {
			delete(s.outbox, p.Row)
		}
	}
}

func (s *fakeStore) AcknowledgeOutbox(ctx context.Context, db int, owned []task.Ownership, parts []task.OutboxPart) ([]task.Shard, error) {
	unlock, err := s.lock(ctx, db)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuseAcknowledge.Load() {
		return nil, errRolledBack
	}
	if lost := s.lost(owned); len(lost) > 0 {
		return lost, nil
	}
	s.remove(parts)
	return nil, nil
}

func (s *fakeStore) Peek(_ context.Context, db int, req task.PeekRequest) (task.Peek, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peeks++
	k := task.Peek{Now: s.now(), Settings: s.version}
	for id, r := range s.open[db] {
		if !slices.Contains(req.Shards, id.Shard()) || r.due <= req.Low || r.due == task.Never {
			continue
		}
		if !r.waits && slices.Contains(req.ExcludedTenants, r.tenant) {
			if k.ExcludedDue == 0 || r.due < k.ExcludedDue {
				k.ExcludedDue = r.due
			}
			continue
		}
		k.Soon = append(k.Soon, task.Upcoming{Due: r.due, Shard: id.Shard()})
		if r.due > max(req.Low, req.From) && r.due <= k.Now.Add(req.Window) && k.Rows < req.Limit {
			k.Rows++
		}
	}
	slices.SortFunc(k.Soon, func(a, b task.Upcoming) int { return cmp.Compare(a.Due, b.Due) })
	k.Soon = k.Soon[:min(len(k.Soon), task.MaxSoon)]
	return k, nil
}

func (s *fakeStore) GiveUp(ctx context.Context, db int, owned []task.Ownership, pubs []task.Publication, _ task.DeadReason, message string, parts []task.OutboxPart) ([]task.Shard, error) {
	unlock, err := s.lock(ctx, db)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if lost := s.lost(owned); len(lost) > 0 {
		return lost, nil
	}
	for _, p := range pubs {
		s.dead[p.RunID()] = message
		s.closed[p.RunID()] = true
	}
	s.remove(parts)
	return nil, nil
}

func (s *fakeStore) NoteTopicFailures(_ context.Context, _ int, tenants []int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tenants {
		s.noted[t]++
	}
	return nil
}

func (s *fakeStore) Release(context.Context, int, []task.Ownership) error {
	if s.refuseAcknowledge.Load() {
		return errRolledBack
	}
	return nil
}

// outboxRows counts the rows in the outbox.
func (s *fakeStore) outboxRows() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.outbox)
}

// claimedRuns returns the runs whose claims have committed.
func (s *fakeStore) claimedRuns() []task.RunID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.claimed))
}

// lastClaim returns the last committed claim.
func (s *fakeStore) lastClaim() task.ClaimRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims[len(s.claims)-1]
}

func (s *fakeStore) peekCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peeks
}

func (s *fakeStore) claimCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.claims)
}

func (s *fakeStore) deadRuns() map[task.RunID]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.dead)
}

func (s *fakeStore) close(r task.RunID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed[r] = true
}

func (s *fakeStore) ownership(sh task.Shard) task.Ownership {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epochs[sh]
}
