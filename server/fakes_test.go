package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// The identities of the fake authenticator, by secret.
var (
	acme  = Tenant{ID: 1, Name: "acme", ParamsBytes: 1000, Retention: 2 * time.Hour, Topic: "perceptor.acme"}
	rival = Tenant{ID: 2, Name: "rival", ParamsBytes: 1000, Retention: time.Hour, Topic: "perceptor.rival"}

	identities = map[string]Identity{
		"acme-secret":  {TokenID: "acme-token", Scopes: TenantScope, Tenant: acme},
		"rival-secret": {TokenID: "rival-token", Scopes: TenantScope, Tenant: rival},
		"owner-secret": {TokenID: "owner-token", Scopes: TenantAdminScope, Tenant: acme},
		"admin-secret": {TokenID: "admin-token", Scopes: AdminScope},
	}
)

// fakeAuth returns identities and counts its calls.
type fakeAuth struct {
	mu      sync.Mutex
	asked   map[string]int
	revoked map[string]bool
	err     error
	slow    time.Duration // from reading to the answer
}

func (f *fakeAuth) Authenticate(_ context.Context, secret string) (Identity, error) {
	defer time.Sleep(f.slow)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asked == nil {
		f.asked = map[string]int{}
	}
	f.asked[secret]++
	if f.err != nil {
		return Identity{}, f.err
	}
	id, ok := identities[secret]
	if !ok || f.revoked[secret] {
		return Identity{}, task.Errorf(task.ReasonTokenNotFound, "no such token")
	}
	return id, nil
}

func (f *fakeAuth) revoke(secret string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.revoked == nil {
		f.revoked = map[string]bool{}
	}
	f.revoked[secret] = true
}

func (f *fakeAuth) count(secret string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[secret]
}

// fakeNow is the fake database's clock: 2026-11-21T10:00:00Z.
const fakeNow task.Instant = 1795255200000

// fakeTasks stores tasks in memory and follows the contract of Tasks.
type fakeTasks struct {
	mu       sync.Mutex
	tasks    map[task.ID]*task.Snapshot
	requests map[string]task.AddRequest
	replies  map[string]task.AddResult
	adds     []task.AddRequest
	lists    []task.ListQuery
	err      error
	got      int // calls of Get
	panics   bool
	updates  bool          // adds report that they have updated a task
	hold     chan struct{} // if not nil, Get waits for it or for its context
	holding  chan struct{} // if not nil, Get signals that it waits
	// meanwhile, if not nil, changes a task before each update of it.
	meanwhile func(*task.Snapshot)
}

func (f *fakeTasks) Add(_ context.Context, r task.AddRequest) (task.AddResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.adds = append(f.adds, r)
	if f.err != nil {
		return task.AddResult{}, f.err
	}
	key := fmt.Sprint(r.Tenant, r.RequestID)
	if known, ok := f.requests[key]; ok && r.RequestID != "" {
		if known.Hash != r.Hash {
			return task.AddResult{}, task.Errorf(task.ReasonRequestIDReused, "request_id %q was used for another request", r.RequestID)
		}
		reply := f.replies[key]
		reply.Replayed = true
		return reply, nil
	}
	reply := task.AddResult{Updated: f.updates}
	for _, s := range r.Specs {
		if faults := s.ResolveBegin(fakeNow); len(faults) > 0 {
			reply.Items = append(reply.Items, task.AddItem{Faults: faults})
			continue
		}
		id := task.NewID(int64(len(f.tasks)+1), 7)
		f.put(&task.Snapshot{Row: *task.NewRow(r.Tenant, id, &s, fakeNow), FinishedAt: task.Never})
		reply.Items = append(reply.Items, task.AddItem{ID: id})
	}
	if f.requests == nil {
		f.requests, f.replies = map[string]task.AddRequest{}, map[string]task.AddResult{}
	}
	f.requests[key], f.replies[key] = r, reply
	return reply, nil
}

func (f *fakeTasks) Now(context.Context) (task.Instant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fakeNow, f.err
}

func (f *fakeTasks) put(s *task.Snapshot) {
	if f.tasks == nil {
		f.tasks = map[task.ID]*task.Snapshot{}
	}
	f.tasks[s.ID] = s
}

func (f *fakeTasks) TaskOfKey(_ context.Context, tenant int32, key string) (task.ID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, s := range f.tasks {
		if s.Tenant == tenant && s.Key == key {
			return id, f.err
		}
	}
	return 0, task.Errorf(task.ReasonTaskNotFound, "no row has the key")
}

func (f *fakeTasks) find(tenant int32, id task.ID) (*task.Snapshot, error) {
	if f.panics {
		panic("secret detail of the store")
	}
	if f.err != nil {
		return nil, f.err
	}
	s, ok := f.tasks[id]
	switch {
	case !ok:
		return nil, task.Errorf(task.ReasonTaskNotFound, "task %d: no such row", id)
	case s.Tenant != tenant:
		return nil, task.Errorf(task.ReasonTaskNotFound, "task %d belongs to %d", id, s.Tenant)
	}
	return s, nil
}

func (f *fakeTasks) Get(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	if f.hold != nil {
		close(f.holding)
		select {
		case <-f.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got++
	return f.find(tenant, id)
}

// gets returns how often Get was called.
func (f *fakeTasks) gets() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.got
}

func (f *fakeTasks) Cancel(_ context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(tenant, id)
	if err == nil && !s.State.Final() {
		s.State, s.FinishedAt = task.Cancelled, fakeNow
	}
	return s, err
}

func (f *fakeTasks) Pause(_ context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	return f.flag(tenant, id, true)
}

func (f *fakeTasks) Resume(_ context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	return f.flag(tenant, id, false)
}

func (f *fakeTasks) Update(_ context.Context, tenant int32, id task.ID, e task.Edit) (*task.Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(tenant, id)
	if err != nil {
		return nil, err
	}
	if f.meanwhile != nil {
		f.meanwhile(s)
	}
	k := &task.Machine{Task: &s.Row, Was: s.State, Runs: map[int64]*task.Row{}}
	return s, k.Edit(&e, fakeNow)
}

func (f *fakeTasks) Explain(_ context.Context, tenant int32, id task.ID, n int) (task.Explanation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(tenant, id)
	if err != nil {
		return task.Explanation{Now: fakeNow, Reasons: []task.Reason{{Why: task.WhyUnknown, Text: "there is none"}}}, nil
	}
	c := &task.Circumstances{Now: fakeNow, OldestDue: task.Never, Owner: "d1"}
	k := &task.Machine{Task: &s.Row, Was: s.State}
	return task.Explanation{Task: s, Now: fakeNow, Reasons: k.Explain(c), Next: s.NextInstants(fakeNow, n)}, nil
}

func (f *fakeTasks) Trigger(_ context.Context, tenant int32, id task.ID, _ string) (int64, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(tenant, id)
	if err != nil {
		return 0, false, err
	}
	seq, err := (&task.Machine{Task: &s.Row, Was: s.State}).Trigger(fakeNow)
	return seq, false, err
}

func (f *fakeTasks) flag(tenant int32, id task.ID, paused bool) (*task.Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(tenant, id)
	if err != nil {
		return nil, err
	}
	if s.State.Final() {
		return nil, task.Errorf(task.ReasonTaskFinished, "the task is %s", s.State)
	}
	s.Paused = paused
	return s, nil
}

func (f *fakeTasks) List(_ context.Context, q task.ListQuery) (task.ListPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists = append(f.lists, q)
	if f.err != nil {
		return task.ListPage{}, f.err
	}
	after := task.ListCursor{Stage: task.ListRows}
	if q.After != nil {
		after = *q.After
	}
	var ids []task.ID
	for id, s := range f.tasks {
		if s.Tenant == q.Tenant && id > after.Task && (q.Kind == "" || s.Kind == q.Kind) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	page := task.ListPage{}
	for i, id := range ids {
		if i == q.Limit {
			page.Next = &task.ListCursor{Database: ids[i-1].Shard().Database(), Stage: task.ListRows, Task: ids[i-1]}
			break
		}
		page.Tasks = append(page.Tasks, f.tasks[id])
	}
	return page, nil
}

// ListCost returns one task for a range of less than a day, all tasks for less
// than a month, and twenty times as many for other ranges.
func (f *fakeTasks) ListCost(_ context.Context, q *task.ListQuery, living int64) (int64, error) {
	if q.DueUntil > 0 && q.DueUntil.Sub(q.DueFrom) < 24*time.Hour {
		return 1, f.err
	}
	if q.DueUntil > 0 && q.DueUntil.Sub(q.DueFrom) < 30*24*time.Hour {
		return living, f.err
	}
	return 20 * living, f.err
}

// fakeRuns accepts and records everything.
type fakeRuns struct {
	timelines []*task.Timeline // of the last call of HandBack
	mu        sync.Mutex
	tenant    int32
	holder    task.Holder
	attempts  []task.Attempt
	results   []task.Report
	err       error
	short     bool
}

func (f *fakeRuns) step(tenant int32, h task.Holder, as []task.Attempt) ([]task.Reply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tenant, f.holder, f.attempts = tenant, h, append(f.attempts, as...)
	if f.err != nil || f.short {
		return nil, f.err
	}
	replies := make([]task.Reply, len(as))
	for i, a := range as {
		replies[i] = task.Reply{Code: task.Accepted, Lease: time.Duration(a.Seq) * time.Second}
	}
	return replies, nil
}

func (f *fakeRuns) Start(_ context.Context, tenant int32, h task.Holder, as []task.Seen) ([]task.Reply, error) {
	return f.step(tenant, h, attemptsOf(as))
}

func (f *fakeRuns) Check(_ context.Context, tenant int32, as []task.Seen) ([]task.Reply, error) {
	return f.step(tenant, 1, attemptsOf(as))
}

func attemptsOf(as []task.Seen) []task.Attempt {
	var out []task.Attempt
	for _, a := range as {
		out = append(out, a.Attempt)
	}
	return out
}

func (f *fakeRuns) Heartbeat(_ context.Context, tenant int32, h task.Holder, as []task.Attempt) ([]task.Reply, error) {
	return f.step(tenant, h, as)
}

func (f *fakeRuns) HandBack(_ context.Context, tenant int32, h task.Holder, as []task.Attempt, timelines []*task.Timeline) ([]task.Reply, error) {
	f.mu.Lock()
	f.timelines = timelines
	f.mu.Unlock()
	return f.step(tenant, h, as)
}

func (f *fakeRuns) Report(_ context.Context, tenant int32, _ int, rs []task.Report) ([]task.Reply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tenant, f.results = tenant, append(f.results, rs...)
	if f.err != nil {
		return nil, f.err
	}
	replies := make([]task.Reply, len(rs))
	for i, r := range rs {
		replies[i].Code = task.Accepted
		if r.Task%2 == 1 {
			replies[i].Code = task.Unknown
		}
	}
	return replies, nil
}

// fakeAdmin stores tenants and tokens in memory.
type fakeAdmin struct {
	mu      sync.Mutex
	tenants map[string]Tenant
	tokens  map[string]Token
	err     error
	read    int // calls of Tenant
}

func newFakeAdmin() *fakeAdmin {
	return &fakeAdmin{tenants: map[string]Tenant{}, tokens: map[string]Token{}}
}

func (f *fakeAdmin) CreateTenant(_ context.Context, t Tenant) (Tenant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return Tenant{}, f.err
	}
	if _, ok := f.tenants[t.Name]; ok {
		return Tenant{}, task.Errorf(task.ReasonTenantExists, "tenant %q exists", t.Name)
	}
	t.ID, t.Topic, t.CreatedAt = int32(len(f.tenants)+1), "perceptor."+t.Name, fakeNow
	f.tenants[t.Name] = t
	return t, nil
}

func (f *fakeAdmin) Tenant(_ context.Context, name string) (Tenant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read++
	t, ok := f.tenants[name]
	if !ok {
		return Tenant{}, task.Errorf(task.ReasonTenantNotFound, "no tenant %q", name)
	}
	return t, nil
}

// reads returns how often Tenant was called.
func (f *fakeAdmin) reads() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read
}

func (f *fakeAdmin) Tenants(_ context.Context, after string, limit int) ([]Tenant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var page []Tenant
	for _, t := range f.tenants {
		if t.Name > after {
			page = append(page, t)
		}
	}
	slices.SortFunc(page, func(a, b Tenant) int { return strings.Compare(a.Name, b.Name) })
	return page[:min(limit, len(page))], nil
}

func (f *fakeAdmin) CreateToken(_ context.Context, t Token) (Token, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.ExpiresAt <= fakeNow {
		return Token{}, "", &task.Error{Code: task.InvalidArgument, Faults: []task.Fault{{Field: "token.expire_time", Message: "has passed"}}}
	}
	t.ID, t.CreatedAt = fmt.Sprintf("pt_%d", len(f.tokens)+1), fakeNow
	f.tokens[t.ID] = t
	return t, t.ID + "_secret", nil
}

func (f *fakeAdmin) Tokens(_ context.Context, tenant, after string, limit int) ([]Token, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var page []Token
	for _, t := range f.tokens {
		if t.ID > after && (tenant == "" || t.Tenant == tenant) {
			page = append(page, t)
		}
	}
	slices.SortFunc(page, func(a, b Token) int { return strings.Compare(a.ID, b.ID) })
	return page[:min(limit, len(page))], nil
}

func (f *fakeAdmin) RotateKey(ctx context.Context, name string, overlap time.Duration) ([]TenantKey, error) {
	if _, err := f.Tenant(ctx, name); err != nil {
		return nil, err
	}
	return []TenantKey{
		{ID: 1, Secret: []byte("first"), ExpiresAt: fakeNow.Add(overlap)},
		{ID: 2, Secret: []byte("second"), StartsAt: fakeNow.Add(overlap / 2), ExpiresAt: task.Never},
	}, nil
}

// nameOf returns the name of a tenant in identities.
func nameOf(tenant int32) string {
	for _, id := range identities {
		if id.Tenant.ID == tenant {
			return id.Tenant.Name
		}
	}
	return ""
}

// RotateToken revokes the replaced token at the end of the overlap.
func (f *fakeAdmin) RotateToken(ctx context.Context, r Rotation) (successor, replaced Token, secret string, err error) {
	f.mu.Lock()
	old, ok := f.tokens[r.ID]
	f.mu.Unlock()
	if !ok || r.Tenant != 0 && old.Tenant != nameOf(r.Tenant) {
		return Token{}, Token{}, "", task.Errorf(task.ReasonTokenNotFound, "no token %q", r.ID)
	}
	successor = old
	successor.ExpiresAt, successor.RevokedAt = r.ExpiresAt, task.Never
	successor, secret, err = f.CreateToken(ctx, successor)
	f.mu.Lock()
	defer f.mu.Unlock()
	old.RevokedAt = fakeNow.Add(r.Overlap)
	f.tokens[r.ID] = old
	return successor, old, secret, err
}

func (f *fakeAdmin) RevokeToken(_ context.Context, id string, tenant int32) (Token, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.tokens[id]
	if !ok || tenant != 0 && t.Tenant != nameOf(tenant) {
		return Token{}, task.Errorf(task.ReasonTokenNotFound, "no token %q", id)
	}
	if t.RevokedAt == task.Never {
		t.RevokedAt = fakeNow
		f.tokens[id] = t
	}
	return t, nil
}

// fakeDead has one dead run for each tenant: run 1 of task 512 * tenant.
type fakeDead struct{ queries []task.DeadQuery }

func (f *fakeDead) ListDead(ctx context.Context, q task.DeadQuery) (task.DeadPage, error) {
	f.queries = append(f.queries, q)
	d, err := f.Dead(ctx, q.Tenant, task.RunID{Task: task.NewID(int64(q.Tenant), 0), Seq: 1})
	c := d.Cursor()
	return task.DeadPage{Runs: []*task.DeadLetter{d}, Next: &c}, err
}

func (f *fakeDead) Dead(_ context.Context, tenant int32, id task.RunID) (*task.DeadLetter, error) {
	if id.Task != task.NewID(int64(tenant), 0) || id.Seq != 1 {
		return nil, task.Errorf(task.ReasonDeadRunNotFound, "there is no dead run %s", id)
	}
	return &task.DeadLetter{
		DeadRun: task.DeadRun{Tenant: tenant, Type: task.Blocking, RunID: id, Attempt: 5, Kind: "mail", ScheduledAt: fakeNow, DiedAt: fakeNow, Reason: task.OutOfAttempts, Error: "no"},
		Terms:   task.Terms{Tags: []string{"a"}},
	}, nil
}

func (f *fakeDead) ReplayDead(ctx context.Context, tenant int32, id task.RunID) (task.Replayed, error) {
	_, err := f.Dead(ctx, tenant, id)
	return task.Replayed{ID: 1024}, err
}

func (f *fakeDead) PurgeDead(ctx context.Context, tenant int32, id task.RunID) error {
	_, err := f.Dead(ctx, tenant, id)
	return err
}

// PurgeTask has one finished task for each tenant, 512 * tenant, besides those of f.
func (f *fakeTasks) PurgeTask(_ context.Context, tenant int32, id task.ID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.tasks[id]
	if id != task.NewID(int64(tenant), 0) && (s == nil || s.Tenant != tenant || !s.State.Final()) {
		return task.Errorf(task.ReasonTaskNotFound, "there is no task %d", id)
	}
	return nil
}

// storeBefore is when a change for which fakeBulk moves tasks must be stored.
const storeBefore task.Instant = 4711

// fakeBulk has operation 7 of tenant 1.
type fakeBulk struct {
	action task.BulkAction
	terms  task.BulkTerms
	state  task.BulkState // of the operation; 0: running
	calls  []string
	// changed is what was recomputed, and full says that no further operation is allowed.
	changed []task.Range
	full    bool
}

func (f *fakeBulk) RecomputeCalendar(_ context.Context, _ int32, name string, changed []task.Range, _ string) (task.Instant, error) {
	if f.full {
		return 0, task.Errorf(task.ReasonTooManyOperations, "no")
	}
	f.calls, f.changed = append(f.calls, "recompute "+name), changed
	return storeBefore, nil
}

func (f *fakeBulk) CreateBulk(_ context.Context, tenant int32, action task.BulkAction, terms task.BulkTerms, _ string, _ []byte) (*task.BulkOperation, error) {
	f.action, f.terms = action, terms
	return f.GetBulk(nil, tenant, 7) //nolint:staticcheck // the context is not used
}

func (f *fakeBulk) GetBulk(_ context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	if tenant != 1 || id != 7 {
		return nil, task.Errorf(task.ReasonOperationNotFound, "there is no operation %d", id)
	}
	o := &task.BulkOperation{Tenant: tenant, ID: id, Action: f.action, Terms: f.terms, State: max(f.state, task.BulkRunning), CreatedAt: fakeNow}
	for d := range task.Databases {
		o.Parts = append(o.Parts, task.BulkPart{Database: d, State: task.BulkRunning, BulkSum: task.BulkSum{Matched: 3, Done: 2, Failed: 1}, StartedAt: fakeNow, FinishedAt: task.Never})
	}
	return o, nil
}

func (f *fakeBulk) ListBulk(ctx context.Context, tenant int32, _ task.Instant, _ int64, _ int) ([]*task.BulkOperation, error) {
	o, err := f.GetBulk(ctx, tenant, 7)
	return []*task.BulkOperation{o}, err
}

func (f *fakeBulk) AbortBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	f.calls = append(f.calls, "abort")
	return f.GetBulk(ctx, tenant, id)
}

func (f *fakeBulk) PauseBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	f.calls = append(f.calls, "pause")
	return f.GetBulk(ctx, tenant, id)
}

func (f *fakeBulk) ResumeBulk(ctx context.Context, tenant int32, id int64) (*task.BulkOperation, error) {
	f.calls = append(f.calls, "resume")
	return f.GetBulk(ctx, tenant, id)
}

// DeleteTenant is in progress for the tenant acme.
func (f *fakeAdmin) DeleteTenant(_ context.Context, name string) (*task.BulkOperation, error) {
	if name != "acme" {
		return nil, task.Errorf(task.ReasonTenantNotFound, "no such tenant: %s", name)
	}
	return (&fakeBulk{action: task.BulkDeleteTenant}).GetBulk(context.Background(), 1, 7)
}
