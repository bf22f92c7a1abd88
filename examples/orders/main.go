// Command orders is a shop that reminds customers of orders they have not paid. The order and its
// reminder are stored in one transaction of the shop's own database; so are the payment and the end of
// the reminder. The relay that moves them to Perceptor runs in the shop.
//
//	PERCEPTOR_TOKEN=... SHOP_DSN=postgres://... go run ./examples/orders -after 2s
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/client/outbox"
)

const (
	createOrders = `CREATE TABLE IF NOT EXISTS orders (id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL, paid bool NOT NULL DEFAULT false)`
	insertOrder  = `INSERT INTO orders (item) VALUES ($1) RETURNING id`
	payOrder     = `UPDATE orders SET paid = true WHERE id = $1 AND NOT paid`
)

func main() {
	after := flag.Duration("after", time.Hour, "time until customers are reminded")
	flag.Parse()
	if err := run(*after); err != nil {
		log.Fatal(err)
	}
}

// reminder are the params of a reminder.
type reminder struct{ Order int64 }

const remind = "remind"

// run orders two things, pays for one of them, and returns after the reminder of the other.
func run(after time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pg, err := pgxpool.ParseConfig(os.Getenv("SHOP_DSN"))
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, pg)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = pool.Exec(ctx, createOrders)
	if err = errors.Join(err, outbox.Migrate(ctx, pool)); err != nil {
		return err
	}
	c, err := client.New(client.Config{}) // PERCEPTOR_ADDRESS, PERCEPTOR_TOKEN
	if err != nil {
		return err
	}
	defer c.Close()
	relay, err := outbox.NewRelay(outbox.RelayConfig{Postgres: pg, Client: c, Log: slog.Default()})
	if err != nil {
		return err
	}
	listener, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		return err
	}
	client.Handle(listener, remind, func(_ context.Context, _ *client.Run, r reminder) error {
		fmt.Printf("order %d is not paid yet\n", r.Order)
		stop()
		return nil
	})
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return relay.Run(ctx) })
	work.Go(func() error { return listener.Run(ctx) })
	shop := &shop{pool, after}
	tea, err := shop.order(ctx, "tea")
	if err == nil {
		_, err = shop.order(ctx, "coffee")
	}
	if err == nil {
		err = shop.pay(ctx, tea)
	}
	if err != nil {
		stop()
	}
	return errors.Join(err, work.Wait())
}

type shop struct {
	pool  *pgxpool.Pool
	after time.Duration
}

// order stores an order and adds its reminder: both or neither.
func (s *shop) order(ctx context.Context, item string) (id int64, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, insertOrder, item).Scan(&id); err != nil {
			return err
		}
		return outbox.AddTask(ctx, tx, client.Task{
			Kind: remind, Type: client.OneShot, Begin: time.Now().Add(s.after),
			IdempotencyKey: fmt.Sprintf("order-%d", id), Params: client.MustParams(reminder{Order: id}),
		})
	})
	return id, err
}

// pay stores the payment of an order and cancels its reminder.
func (s *shop) pay(ctx context.Context, id int64) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		paid, err := tx.Exec(ctx, payOrder, id)
		if err != nil || paid.RowsAffected() == 0 {
			return err
		}
		return outbox.CancelTask(ctx, tx, outbox.ByKey(fmt.Sprintf("order-%d", id)))
	})
}
