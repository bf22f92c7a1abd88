package assign

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

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
