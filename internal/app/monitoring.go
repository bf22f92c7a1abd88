package app

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/figures"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/server"
	figurestore "github.com/perceptor/perceptor/store/figures"
	"github.com/perceptor/perceptor/task"
)

// monitoring implements [server.Monitoring].
type monitoring struct {
	api     *API
	store   *figurestore.Store
	latest  cached[*recent]
	state   cached[*perceptorv1.ClusterFigures]
	finding cached[[]Finding]

	mu        sync.Mutex
	audiences map[int32]*cached[*task.Audience]
}

const (
	// figuresFor is the age at which the figures of all tenants are read again, stateFor that of
	// the databases and findingsFor that of the findings.
	figuresFor  = 3 * time.Second
	stateFor    = 5 * time.Second
	findingsFor = 25 * time.Second
	// examineWithin bounds an examination, and stateWithin the questions to the databases.
	examineWithin = 15 * time.Second
	stateWithin   = 3 * time.Second
	// shownFor is how far back points are shown, and recently what a reader needs to know the
	// present and the last minute.
	shownFor = time.Hour
	recently = 2 * time.Minute
)

func newMonitoring(a *API) *monitoring {
	m := &monitoring{api: a, store: figurestore.New(a.cluster), audiences: map[int32]*cached[*task.Audience]{}}
	m.latest = cached[*recent]{every: figuresFor, read: m.recent}
	m.state = cached[*perceptorv1.ClusterFigures]{every: stateFor, read: m.readState}
	m.finding = cached[[]Finding]{every: findingsFor, read: m.examine}
	return m
}

// cached keeps an answer for a while. Concurrent calls share one reading.
type cached[V any] struct {
	every time.Duration
	read  func(ctx context.Context) (V, error)

	mu    sync.Mutex
	value V
	at    time.Time
}

// get returns the answer and when it was read.
func (c *cached[V]) get(ctx context.Context) (V, time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < c.every {
		return c.value, c.at, nil
	}
	value, err := c.read(ctx)
	if err != nil {
		return value, time.Time{}, err
	}
	c.value, c.at = value, time.Now()
	return c.value, c.at, nil
}

// recent are the figures of the last two minutes.
type recent struct {
	now       task.Instant
	newest    task.Instant
	of        map[int32]*figures.Of
	processes map[int64]task.Instant
	selves    []selfAt
	missing   []int
}

// selfAt is the newest that a process has said about itself.
type selfAt struct {
	figures.Self
	at task.Instant
}

func (m *monitoring) recent(ctx context.Context) (*recent, error) {
	now := task.At(time.Now())
	rows, missing, err := m.store.Since(ctx, now.Add(-recently))
	if err != nil {
		return nil, err
	}
	return digest(rows, missing, now), nil
}

// digest collects stored figures by tenant and process. Those of the databases in missing are not among them.
func digest(rows []figures.Stored, missing []int, now task.Instant) *recent {
	r := &recent{now: now, missing: missing}
	r.processes, r.newest = figures.Newest(rows)
	for _, row := range rows {
		if row.Tenant == figures.Process && r.processes[row.Process] == row.At {
			if s, err := figures.DecodeSelf(row.Data); err == nil {
				r.selves = append(r.selves, selfAt{s, row.At})
			}
		}
	}
	r.of = figures.Collect(rows, r.processes, now)
	return r
}

// running returns what the processes that run say about themselves.
func (r *recent) running() (list []selfAt) {
	for _, s := range r.selves {
		if r.now.Sub(s.at) <= figures.SilentAfter {
			list = append(list, s)
		}
	}
	return list
}

// Figures implements [server.Monitoring].
func (m *monitoring) Figures(ctx context.Context, t server.Tenant, points bool) (*perceptorv1.TenantFigures, error) {
	r, _, err := m.latest.get(ctx)
	if err != nil {
		return nil, err
	}
	list := []*perceptorv1.TenantFigures{m.reply(r, t.ID, t.Name)}
	if err := m.complete(ctx, r, []int32{t.ID}, list, points); err != nil {
		return nil, err
	}
	return list[0], nil
}

// complete adds to the figures of some tenants what is read for them alone: counts, kinds without
// a handler and points.
func (m *monitoring) complete(ctx context.Context, r *recent, ids []int32, list []*perceptorv1.TenantFigures, points bool) error {
	if points {
		rows, missing, err := m.store.Of(ctx, ids, task.At(time.Now().Add(-shownFor)))
		if err != nil {
			return err
		}
		of := figures.Collect(rows, r.processes, r.now)
		for i, id := range ids {
			list[i].MissingDatabases = numbers(missing)
			if one := of[id]; one != nil {
				list[i].Points, list[i].UnhandledKinds = pointsReply(one), unhandledReply(one)
			}
		}
	}
	if len(ids) > maxCounted {
		return nil
	}
	counting := sync.WaitGroup{}
	for i, id := range ids {
		if id == figures.Total {
			continue
		}
		counting.Go(func() {
			if counts, err := m.api.shards.Counts(ctx, id); err == nil { // else they are missing
				list[i].Counts = server.CountsReply(counts)
			}
		})
	}
	counting.Wait()
	return nil
}

// maxCounted is the most tenants of a list whose tasks are counted.
const maxCounted = 20

// reply returns the figures of a tenant that are known without reading anything for it.
func (m *monitoring) reply(r *recent, id int32, name string) *perceptorv1.TenantFigures {
	of := r.of[id]
	if of == nil {
		of = &figures.Of{}
	}
	last := figures.Complete(r.now)
	from := last.Add(-50 * time.Second)
	sum := of.Sum(from, last.Add(figures.Every))
	out := &perceptorv1.TenantFigures{
		Tenant: name, LastMinute: pointReply(from, 60, &sum), UnhandledKinds: unhandledReply(of), MissingDatabases: numbers(r.missing),
		Backlog: &perceptorv1.Backlog{
			Tasks: of.Now.Of(figures.Due), AtLeast: of.Now.Of(figures.DueMore) > 0, OldestAge: milliseconds(of.Now.Of(figures.DueSince)),
		},
	}
	if r.newest > 0 {
		out.MeasureTime = timestamppb.New(r.newest.Add(figures.Every).Time())
	}
	if asked := of.Now.Of(figures.Asked); asked > 0 && id != figures.Total {
		out.Listeners = &perceptorv1.ListenerFigures{
			Members: int32(of.Now.Of(figures.Members)), Lag: of.Now.Of(figures.Lag), MeasureTime: timestamppb.New(task.Instant(asked).Time()),
		}
	}
	return out
}

func numbers(databases []int) (out []int32) {
	for _, d := range databases {
		out = append(out, int32(d))
	}
	return out
}

func milliseconds(ms int64) *durationpb.Duration {
	return durationpb.New(time.Duration(ms) * time.Millisecond)
}

func pointsReply(of *figures.Of) (out []*perceptorv1.FigurePoint) {
	for i := range of.Points {
		out = append(out, pointReply(of.Points[i].At, int32(figures.Every.Seconds()), &of.Points[i].Figures))
	}
	return out
}

func pointReply(at task.Instant, seconds int32, f *figures.Figures) *perceptorv1.FigurePoint {
	p := &perceptorv1.FigurePoint{
		StartTime: timestamppb.New(at.Time()), Seconds: seconds, Missed: f.Of(figures.Missed), Dead: f.Of(figures.Dead),
		Results: &perceptorv1.ResultFigures{
			Succeeded: f.Of(figures.Succeeded), Failed: f.Of(figures.Failed), Snoozed: f.Of(figures.Snoozed), HandedBack: f.Of(figures.HandedBack),
		},
		Lateness: distributionReply(f, figures.Lateness), HandlerTime: distributionReply(f, figures.Handled),
	}
	for _, t := range []task.Type{task.OneShot, task.NonBlocking, task.Blocking} {
		one := &perceptorv1.TypeFigures{
			Type: perceptorv1.Task_Type(t), Added: f.Of(figures.Added.ByType(t)), Fired: f.Of(figures.Fired.ByType(t)), Redelivered: f.Of(figures.Redelivered.ByType(t)),
		}
		if one.Added+one.Fired+one.Redelivered > 0 {
			p.Types = append(p.Types, one)
		}
	}
	return p
}

func distributionReply(f *figures.Figures, p figures.Place) *perceptorv1.Distribution {
	d := f.Distribution(p)
	return &perceptorv1.Distribution{Count: d.Count, P50: durationpb.New(d.P50), P99: durationpb.New(d.P99), Max: durationpb.New(d.Max)}
}

// maxUnhandled bounds the kinds without a handler in an answer.
const maxUnhandled = 20

func unhandledReply(of *figures.Of) (out []*perceptorv1.UnhandledKind) {
	kinds := map[string]*perceptorv1.UnhandledKind{}
	for i := range of.Points {
		p := &of.Points[i]
		for kind, n := range p.Unhandled {
			if kinds[kind] == nil {
				kinds[kind] = &perceptorv1.UnhandledKind{Kind: kind}
			}
			kinds[kind].Runs += n
			kinds[kind].LastTime = timestamppb.New(p.At.Time())
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		out = append(out, kinds[kind])
	}
	return out[:min(len(out), maxUnhandled)]
}

// AllFigures implements [server.Monitoring].
func (m *monitoring) AllFigures(ctx context.Context, q server.FiguresQuery) (*perceptorv1.ListTenantFiguresResponse, string, error) {
	r, _, err := m.latest.get(ctx)
	if err != nil {
		return nil, "", err
	}
	out := &perceptorv1.ListTenantFiguresResponse{Total: m.reply(r, figures.Total, "")}
	if err := m.complete(ctx, r, []int32{figures.Total}, []*perceptorv1.TenantFigures{out.Total}, q.TotalPoints); err != nil {
		return nil, "", err
	}
	if q.Tenant != nil {
		one, err := m.Figures(ctx, *q.Tenant, q.Points)
		out.Tenants, out.TenantCount = []*perceptorv1.TenantFigures{one}, 1
		return out, "", err
	}
	all, err := m.tenants(ctx)
	if err != nil {
		return nil, "", err
	}
	page, next := pageOf(ranked(all, r, q.Order), q.After, q.Limit)
	ids := make([]int32, len(page))
	for i, t := range page {
		ids[i] = t.id
		out.Tenants = append(out.Tenants, m.reply(r, t.id, t.name))
	}
	out.TenantCount = int32(len(all))
	return out, next, m.complete(ctx, r, ids, out.Tenants, q.Points)
}

// ranked are tenants with the number by which they are sorted.
type rankedTenant struct {
	id   int32
	name string
	rank int64
}

// maxTenants bounds a list of tenants.
const maxTenants = 100_000

// tenants returns all tenants by name.
func (m *monitoring) tenants(ctx context.Context) (all []rankedTenant, err error) {
	for t, err := range allTenants(ctx, m.api.control, namesPage) {
		if err != nil {
			return nil, err
		}
		if all = append(all, rankedTenant{id: t.ID, name: t.Name}); len(all) == maxTenants {
			break
		}
	}
	return all, nil
}

// ranked sorts tenants: those with the highest number first, and by name.
func ranked(all []rankedTenant, r *recent, order perceptorv1.ListTenantFiguresRequest_Order) []rankedTenant {
	last := figures.Complete(r.now)
	for i := range all {
		of := r.of[all[i].id]
		if of == nil {
			continue
		}
		sum := of.Sum(last.Add(-50*time.Second), last.Add(figures.Every))
		switch order {
		case perceptorv1.ListTenantFiguresRequest_LATENESS:
			all[i].rank = sum.Distribution(figures.Lateness).P99.Microseconds()
		case perceptorv1.ListTenantFiguresRequest_BACKLOG:
			all[i].rank = of.Now.Of(figures.Due)
		case perceptorv1.ListTenantFiguresRequest_RATE:
			for _, t := range []task.Type{task.OneShot, task.NonBlocking, task.Blocking} {
				all[i].rank += sum.Of(figures.Fired.ByType(t))
			}
		}
	}
	slices.SortFunc(all, compareRanks)
	return all
}

func compareRanks(a, b rankedTenant) int {
	return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.name, b.name))
}

// pageOf returns the tenants after a cursor, which is the rank and the name of a tenant.
func pageOf(all []rankedTenant, after string, limit int) (page []rankedTenant, next string) {
	if after != "" {
		var last rankedTenant
		if _, err := fmt.Sscanf(after, "%d %s", &last.rank, &last.name); err == nil {
			from, found := slices.BinarySearchFunc(all, last, compareRanks)
			if found {
				from++
			}
			all = all[from:]
		}
	}
	if len(all) <= limit {
		return all, ""
	}
	last := all[limit-1]
	return all[:limit], strconv.FormatInt(last.rank, 10) + " " + last.name
}
