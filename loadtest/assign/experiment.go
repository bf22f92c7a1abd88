// Package assign measures the assignment of items, disturbs it and checks its rules from
// outside. The members are separate processes. Each reaches an ensemble of ZooKeepers,
// or a PostgreSQL in which members meet, through a proxy of its own and works for its items in Postgres, with epochs as
// dispatchers have them. The README of loadtest lists the rules that the checker checks.
//
//	this process: proxies, disturbances, checker, measurements
//	   |                                     |
//	   | SIGSTOP, kill -9, cut, freeze       | reads: plan, members; epochs, work
//	   v                                     v
//	member ── proxy ── ZooKeeper x 3      Postgres: item_owner (epoch, nonce)
//	   └───────────────────────────────────>        item_work (epoch of the last work)
package assign

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	core "github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/postgres"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// Report is the result of the experiment. A figure of several rounds is the worst one.
type Report struct {
	harness.Header
	harness.NoPicture
	Assignment    string        `json:"assignment"`
	SessionMS     int64         `json:"session_ms"`
	TakeoverMS    float64       `json:"takeover_ms"`
	HandoverMS    float64       `json:"handover_ms"`
	SettleMS      float64       `json:"settle_ms"`
	MovedOnJoin   int           `json:"moved_on_join"`
	AllowedOnJoin int           `json:"moved_on_join_allowed"`
	Violations    int           `json:"violations"`
	Broken        []string      `json:"broken,omitempty"`
	Measured      *Measurements `json:"measured"`
	Storm         *StormReport  `json:"storm,omitempty"`
}

// Verdict implements [harness.Report].
func (r *Report) Verdict() error { return harness.Verdict(r.Broken) }

// Table implements [harness.Report].
func (r *Report) Table(table *harness.Table) {
	t := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "assignment\t%s\t\n", r.Assignment)
	fmt.Fprintf(t, "takeover after kill -9\t%.0f ms\tworst of %d; session %d ms\n", r.TakeoverMS, len(r.Measured.Takeovers), r.SessionMS)
	fmt.Fprintf(t, "handover after SIGTERM\t%.0f ms\tworst of %d\n", r.HandoverMS, len(r.Measured.Handovers))
	fmt.Fprintf(t, "settled after a start of all\t%.0f ms\tworst of %d\n", r.SettleMS, len(r.Measured.Settles))
	fmt.Fprintf(t, "moved by one more member\t%d items\tat most %d allowed\n", r.MovedOnJoin, r.AllowedOnJoin)
	fmt.Fprintf(t, "outage of its servers\tan item idle for at most %.0f ms\t%d items moved\n", r.Measured.OutageIdle, r.Measured.OutageMoved)
	if s := r.Storm; s != nil {
		fmt.Fprintf(t, "storm, seed %d\t%d calms\tsettled again within %d ms; an item idle for at most %d ms\n", s.Seed, s.Calms, s.SettledMS, s.IdleMS)
	}
	fmt.Fprintf(t, "violations\t%d\t\n", r.Violations)
	for _, what := range r.Broken {
		fmt.Fprintf(t, "\t%s\t\n", what)
	}
	t.Flush() //nolint:errcheck // writes to a table do not fail
}

// Experiment measures the assignment of items and then disturbs it.
type Experiment struct {
	harness.Setup
	World Options
	Plan  Plan
	// Storm is the length of the storm; 0: no storm.
	Storm time.Duration
}

// DefaultExperiment returns the defaults of the flags.
func DefaultExperiment() Experiment {
	return Experiment{World: DefaultOptions(), Plan: DefaultPlan(), Storm: 30 * time.Second}
}

// About implements [harness.Experiment].
func (e *Experiment) About() harness.About { return harness.About{Name: "assign"} }

// Declare implements [harness.Experiment].
func (e *Experiment) Declare(f *harness.Flags) {
	harness.Num(f, &e.Storm, "storm", harness.Between(0, 24*time.Hour), "length of the storm; 0: no storm")
	harness.Num(f, &e.Plan.Rounds, "rounds", harness.Between(0, 1000), "number of members that are killed, and of members that are stopped")
	harness.Num(f, &e.Plan.Outage, "outage", harness.Between(0, 24*time.Hour), "how long all servers of the assignment are down; 0: no outage")
	f.Choice(&e.World.Assignment, "assignment", InZooKeeper, InPostgres)
	harness.Num(f, &e.World.Items, "items", harness.Between(1, 100_000), "items in the storm")
	harness.Num(f, &e.World.MaxMembers, "members", harness.Between(1, 1000), "the most members at a time in the storm")
	harness.Num(f, &e.World.Servers, "servers", harness.Between(1, 99), "ZooKeeper servers")
	harness.Num(f, &e.World.Session, "session", harness.Between(time.Second, 10*time.Second), "session timeout of members")
	harness.Num(f, &e.Plan.SettleItems, "settle-items", harness.Between(1, 100_000), "items that many members share")
	harness.Num(f, &e.Plan.SettleMembers, "settle-members", harness.Between(1, 1000), "members that start at once")
	f.Seed()
	f.Switch(&e.World.Keep, "keep", "keep data and logs")
}

// Measure implements [harness.Experiment].
func (e *Experiment) Measure(ctx context.Context) (*Report, error) {
	o := e.World
	o.Member, o.Progress, o.Seed = []string{e.ListenerCommand[0], MemberName}, e.Say, e.Seed
	r := &Report{Header: harness.NewHeader("assign", e.Seed, map[string]string{"zookeeper": "3.9.4"}), SessionMS: o.Session.Milliseconds(), Assignment: o.Assignment}
	var err error
	if r.Measured, r.Broken, err = Measure(ctx, o, e.Plan); err != nil {
		return nil, err
	}
	if e.Storm > 0 {
		if r.Storm, err = Storm(ctx, o, e.Storm); err != nil {
			return nil, err
		}
		r.Broken = append(r.Broken, r.Storm.Violations...)
	}
	r.sum(e.Plan)
	return r, nil
}

// sum sets the worst figures of the rounds and compares them with their bounds.
func (r *Report) sum(p Plan) {
	worst := func(ms []float64) float64 { return harness.Round(slices.Max(append(ms, 0))) }
	r.TakeoverMS, r.HandoverMS, r.SettleMS = worst(r.Measured.Takeovers), worst(r.Measured.Handovers), worst(r.Measured.Settles)
	r.MovedOnJoin = slices.Max(append(r.Measured.Joins, 0))
	r.AllowedOnJoin = (p.SettleItems + p.SettleMembers) / (p.SettleMembers + 1)
	if r.MovedOnJoin > r.AllowedOnJoin {
		r.Broken = append(r.Broken, fmt.Sprintf("one more member moved %d items, at most %d are allowed", r.MovedOnJoin, r.AllowedOnJoin))
	}
	if r.Measured.OutageMoved > 0 {
		r.Broken = append(r.Broken, fmt.Sprintf("an outage of the assignment's servers moved %d items", r.Measured.OutageMoved))
	}
	r.Violations = len(r.Broken)
}

// MemberName is the hidden command that runs a member process.
const MemberName = "assign-member"

// memberConfig is the configuration that a member process reads from its standard input.
type memberConfig struct {
	Name     string        `json:"name"`
	Servers  []string      `json:"servers"`
	Root     string        `json:"root"`
	Home     string        `json:"home"` // connection string; empty: members meet in ZooKeeper
	Postgres string        `json:"postgres"`
	Items    int           `json:"items"`
	Groups   int           `json:"groups"`
	Session  time.Duration `json:"session"`
	Takeover time.Duration `json:"takeover"`
	Settle   time.Duration `json:"settle"`
	// Pause is the longest time between the assertion and the work of a transaction.
	Pause time.Duration `json:"pause"`
}

// ServeMember runs a member until ctx ends. It reads the configuration from in and logs to log.
func ServeMember(ctx context.Context, in io.Reader, log io.Writer) error {
	var c memberConfig
	if err := json.NewDecoder(in).Decode(&c); err != nil {
		return fmt.Errorf("read the configuration of a member: %w", err)
	}
	db, err := openPostgres(ctx, c.Postgres, 4)
	if err != nil {
		return err
	}
	defer db.Close()
	logger := slog.New(slog.NewTextHandler(log, nil)).With("member", c.Name)
	f := &fence{db: db, name: c.Name, slot: make(chan struct{}, 1), owned: map[int]holding{}}
	z, leave, err := c.newMember(ctx, logger, f)
	if err != nil {
		return err
	}
	defer leave()
	f.lost = z.Lost
	beyond, stop := context.WithCancel(context.WithoutCancel(ctx))
	var working sync.WaitGroup
	working.Go(func() {
		f.work(beyond, 20*time.Millisecond, func() time.Duration { return rand.N(c.Pause + 1) }, func(err error) { logger.Warn("a round of work failed", "err", err) })
	})
	err = z.Run(ctx)
	stop()
	working.Wait()
	return err
}

// newMember returns a member that is not running, and what closes its connections.
func (c memberConfig) newMember(ctx context.Context, log *slog.Logger, w core.Worker) (core.Assigner, func(), error) {
	if c.Home == "" {
		z, err := core.NewZooKeeper(c.assignConfig(log), w)
		return z, func() {}, err
	}
	pool, err := openHome(ctx, c.Home, 2)
	if err != nil {
		return nil, nil, err
	}
	m, err := core.NewMember(c.assignConfig(log), postgres.New(pool), w)
	return m, pool.Close, err
}

func (c memberConfig) assignConfig(log *slog.Logger) core.Config {
	return core.Config{
		Servers: c.Servers, Root: c.Root, Name: c.Name, Items: itemsOf(c.Items, c.Groups), Fenced: true,
		SessionTimeout: c.Session, TakeoverAfter: c.Takeover, RebalanceDelay: c.Settle, Reconcile: 2 * time.Second, Log: log,
	}
}

// itemsOf returns n items, distributed evenly over the groups.
func itemsOf(n, groups int) []core.Item {
	items := make([]core.Item, n)
	for i := range items {
		items[i] = core.Item{ID: i, Group: i % groups}
	}
	return items
}

// openPostgres opens a pool. Postgres ends its transactions soon after their member is suspended.
func openPostgres(ctx context.Context, dsn string, conns int32) (*pgxpool.Pool, error) {
	conf, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("read the connection string: %w", err)
	}
	conf.MaxConns = conns
	conf.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(idleInTransaction.Milliseconds())
	conf.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	db, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return nil, fmt.Errorf("open Postgres: %w", err)
	}
	return db, nil
}

// idleInTransaction is the time after which Postgres ends the transaction of a suspended
// member, so that its locks do not delay other members for longer.
const idleInTransaction = 2500 * time.Millisecond

const tables = `
CREATE TABLE item_owner (
	item int4 PRIMARY KEY, epoch int8 NOT NULL DEFAULT 0, nonce int8 NOT NULL DEFAULT 0,
	name text NOT NULL DEFAULT '', acquired_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE item_work (
	item int4 PRIMARY KEY, epoch int8 NOT NULL DEFAULT 0, name text NOT NULL DEFAULT '', n int8 NOT NULL DEFAULT 0,
	overtaken int8 NOT NULL DEFAULT 0, worked_at timestamptz NOT NULL DEFAULT clock_timestamp());
`

func makeTables(ctx context.Context, db *pgxpool.Pool, n int) error {
	if _, err := db.Exec(ctx, tables); err != nil {
		return fmt.Errorf("make tables: %w", err)
	}
	for _, table := range []string{"item_owner", "item_work"} {
		if _, err := db.Exec(ctx, "INSERT INTO "+table+" (item) SELECT generate_series(0, $1 - 1)", n); err != nil {
			return fmt.Errorf("fill %s: %w", table, err)
		}
	}
	return nil
}

// A fence is the worker of a member. It acquires items by raising their epochs and works
// for them in transactions that assert these epochs.
type fence struct {
	db   *pgxpool.Pool
	name string
	lost func(ids ...int)
	slot chan struct{} // full during a round of work and during Release

	mu    sync.Mutex
	owned map[int]holding
}

type holding struct{ epoch, nonce int64 }

func idsOf(items []core.Item) []int32 {
	ids := make([]int32, len(items))
	for i, it := range items {
		ids[i] = int32(it.ID)
	}
	slices.Sort(ids)
	return ids
}

// Acquire implements [core.Worker].
func (f *fence) Acquire(ctx context.Context, items []core.Item) error {
	nonce := rand.Int64()
	ids, taken := idsOf(items), map[int]holding{}
	err := pgx.BeginFunc(ctx, f.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = 4000"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT FROM item_owner WHERE item = ANY ($1) ORDER BY item FOR UPDATE", ids); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `UPDATE item_owner SET epoch = epoch + 1, nonce = $2, name = $3, acquired_at = clock_timestamp()
			WHERE item = ANY ($1) RETURNING item, epoch`, ids, nonce, f.name)
		if err != nil {
			return err
		}
		var item int32
		var epoch int64
		_, err = pgx.ForEachRow(rows, []any{&item, &epoch}, func() error {
			taken[int(item)] = holding{epoch, nonce}
			return nil
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(f.owned, taken)
	return nil
}

// Release implements [core.Worker].
func (f *fence) Release(ctx context.Context, items []core.Item) error {
	select {
	case f.slot <- struct{}{}: // no round is running now
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-f.slot }()
	f.forget(items)
	return nil
}

func (f *fence) forget(items []core.Item) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, it := range items {
		delete(f.owned, it.ID)
	}
}

// work does rounds of work until ctx ends, with a break of every between them. pause
// returns the time from the assertion to the work of a transaction.
func (f *fence) work(ctx context.Context, every time.Duration, pause func() time.Duration, failed func(error)) {
	for ctx.Err() == nil {
		select {
		case f.slot <- struct{}{}:
			if err := f.round(ctx, pause()); err != nil && ctx.Err() == nil {
				failed(err)
			}
			<-f.slot
		case <-ctx.Done():
		}
		sleep(ctx, every)
	}
}

func sleep(ctx context.Context, d time.Duration) { _ = harness.Sleep(ctx, d) } // callers check ctx

// round works for all owned items in one transaction.
func (f *fence) round(ctx context.Context, pause time.Duration) error {
	f.mu.Lock()
	owned := maps.Clone(f.owned)
	f.mu.Unlock()
	if len(owned) == 0 {
		return nil
	}
	var current []int32
	err := pgx.BeginFunc(ctx, f.db, func(tx pgx.Tx) (err error) {
		if current, err = assert(ctx, tx, owned); err != nil {
			return err
		}
		sleep(ctx, pause)
		epochs := make([]int64, len(current))
		for i, item := range current {
			epochs[i] = owned[int(item)].epoch
		}
		_, err = tx.Exec(ctx, `UPDATE item_work w SET n = w.n + 1, name = $3, worked_at = clock_timestamp(),
			overtaken = w.overtaken + (greatest(w.epoch, o.epoch) > u.epoch)::int, epoch = greatest(w.epoch, u.epoch)
			FROM unnest($1::int4[], $2::int8[]) AS u (item, epoch) JOIN item_owner o ON o.item = u.item WHERE w.item = u.item`, current, epochs, f.name)
		return err
	})
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	f.drop(owned, current)
	return nil
}

// assert returns the items still owned. No other member can acquire them before the transaction ends.
func assert(ctx context.Context, tx pgx.Tx, owned map[int]holding) ([]int32, error) {
	var items []int32
	var epochs, nonces []int64
	for _, id := range slices.Sorted(maps.Keys(owned)) {
		items, epochs, nonces = append(items, int32(id)), append(epochs, owned[id].epoch), append(nonces, owned[id].nonce)
	}
	rows, err := tx.Query(ctx, `SELECT o.item FROM item_owner o JOIN unnest($1::int4[], $2::int8[], $3::int8[]) AS u (item, epoch, nonce)
		ON o.item = u.item AND o.epoch = u.epoch AND o.nonce = u.nonce ORDER BY o.item FOR SHARE OF o`, items, epochs, nonces)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int32])
}

// drop removes the items that are not in current and reports them as lost.
func (f *fence) drop(owned map[int]holding, current []int32) {
	var lost []int
	f.mu.Lock()
	for id, h := range owned {
		if !slices.Contains(current, int32(id)) && f.owned[id] == h {
			delete(f.owned, id)
			lost = append(lost, id)
		}
	}
	f.mu.Unlock()
	if len(lost) > 0 {
		f.lost(lost...)
	}
}
