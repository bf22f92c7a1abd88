// Command charge charges an order. With -bank down every attempt fails, until the run is
// given up; with -bank up it succeeds.
//
//	PERCEPTOR_TOKEN=... go run ./examples/charge -bank down
//	PERCEPTOR_TOKEN=... go run ./examples/charge -bank up
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/perceptor/perceptor/client"
)

func main() {
	bank := flag.String("bank", "up", "up or down")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, &charger{bankIsDown: *bank == "down", done: stop})
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// order has the params of a charge.
type order struct {
	Number int64 `param:",required"`
	Cents  int64 `param:",required"`
}

const maxAttempts = 3

// run adds the task, unless it is there already, and handles runs until one has ended.
func run(ctx context.Context, ch *charger) error {
	c, err := client.New(client.Config{})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.AddTask(ctx, client.Task{
		Kind: "charge", Type: client.OneShot, IdempotencyKey: "order-7",
		Params: client.MustParams(order{Number: 7, Cents: 1995}),
		Retry:  client.RetryPolicy{MaxAttempts: maxAttempts, InitialBackoff: time.Second, Multiplier: 2},
	})
	if err != nil {
		return err
	}
	listener, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		return err
	}
	client.Handle(listener, "charge", ch.charge)
	return listener.Run(ctx)
}

// charger charges orders.
type charger struct {
	bankIsDown bool
	done       func()
}

// charge is the handler. It may be called twice for one run, so a real one would pass
// run.RunID() to the bank, which then charges once.
func (ch *charger) charge(_ context.Context, run *client.Run, o order) error {
	fmt.Printf("attempt %d to charge order %d: ", run.Attempt, o.Number)
	switch {
	case o.Cents <= 0:
		return client.Permanent(fmt.Errorf("order %d has nothing to charge", o.Number)) // no further attempt
	case ch.bankIsDown:
		fmt.Println("failed")
		if run.Attempt == maxAttempts {
			ch.done() // this program has nothing more to do; the listener still reports the failure
		}
		return errors.New("the bank does not answer") // the next attempt follows after the backoff
	}
	fmt.Println("charged")
	ch.done()
	return nil
}
