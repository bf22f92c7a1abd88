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
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	core "github.com/perceptor/perceptor/assign"
)

// MemberName is the hidden command that is a member process.
const MemberName = "assign-member"

// memberConfig is given to a member process on its standard input.
type memberConfig struct {
	Name     string        `json:"name"`
	Servers  []string      `json:"servers"`
	Root     string        `json:"root"`
	Postgres string        `json:"postgres"`
	Items    int           `json:"items"`
	Groups   int           `json:"groups"`
	Session  time.Duration `json:"session"`
	Takeover time.Duration `json:"takeover"`
	Settle   time.Duration `json:"settle"`
	// Pause is how long a transaction of work takes at most.
	Pause time.Duration `json:"pause"`
}

// ServeMember is a member process: it reads its configuration from in, takes part
// until ctx ends, and logs to log.
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
	logger := slog.New(slog.NewTextHandler(log, nil)).With("who", c.Name)
	f := newFence(db, c.Name)
	z, err := core.NewZooKeeper(c.assignConfig(logger), f)
	if err != nil {
		return err
	}
	f.lost = z.Lost
	beyond, stop := context.WithCancel(context.WithoutCancel(ctx))
	var working sync.WaitGroup
	working.Go(func() {
		f.work(beyond, 20*time.Millisecond, func() time.Duration { return rand.N(c.Pause + 1) }, func(err error) { logger.Warn("a round failed", "err", err) })
	})
	err = z.Run(ctx)
	stop()
	working.Wait()
	return err
}

func (c memberConfig) assignConfig(log *slog.Logger) core.Config {
	return core.Config{
		Servers: c.Servers, Root: c.Root, Name: c.Name, Items: itemsOf(c.Items, c.Groups), Fenced: true,
		SessionTimeout: c.Session, TakeoverAfter: c.Takeover, RebalanceDelay: c.Settle, Reconcile: 2 * time.Second, Log: log,
	}
}

// itemsOf are n items in so many groups.
func itemsOf(n, groups int) []core.Item {
	items := make([]core.Item, n)
	for i := range items {
		items[i] = core.Item{ID: i, Group: i % groups}
	}
	return items
}

// openPostgres opens a pool whose transactions do not outlive a suspended member
// for long.
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

// idleInTransaction ends the transactions of members that are suspended, so that
// they hold nobody up for longer.
const idleInTransaction = 2500 * time.Millisecond

const tables = `
CREATE TABLE item_owner (
	item int4 PRIMARY KEY, epoch int8 NOT NULL DEFAULT 0, nonce int8 NOT NULL DEFAULT 0,
	name text NOT NULL DEFAULT '', acquired_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE item_work (
	item int4 PRIMARY KEY, epoch int8 NOT NULL DEFAULT 0, name text NOT NULL DEFAULT '', n int8 NOT NULL DEFAULT 0,
	overtaken int8 NOT NULL DEFAULT 0, worked_at timestamptz NOT NULL DEFAULT clock_timestamp());
`

// makeTables makes the rows of n items.
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

// A fence is the worker of a member: it takes items by raising their epochs, and
// works for them in transactions that assert these.
type fence struct {
	db   *pgxpool.Pool
	name string
	lost func(ids ...int)
	slot chan struct{} // held by whoever works, or ends work

	mu    sync.Mutex
	owned map[int]holding
}

type holding struct{ epoch, nonce int64 }

func newFence(db *pgxpool.Pool, name string) *fence {
	return &fence{db: db, name: name, slot: make(chan struct{}, 1), owned: map[int]holding{}}
}

func idsOf(items []core.Item) []int32 {
	ids := make([]int32, len(items))
	for i, it := range items {
		ids[i] = int32(it.ID)
	}
	slices.Sort(ids)
	return ids
}

// Acquire implements the worker of package assign.
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

// Release implements the worker of package assign.
func (f *fence) Release(ctx context.Context, items []core.Item) error {
	select {
	case f.slot <- struct{}{}: // nobody works now
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

// work works for all items, again and again, until ctx ends. pause is how long a
// transaction takes from its assertion to its work, at most.
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

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// round is one transaction for all items.
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

// assert answers which of the items are still owned; until the transaction ends
// nobody can take these.
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

// drop forgets what is not current any more, and reports it.
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
