// Command parcel asks a carrier once a second whether a parcel has arrived, until it has,
// and at most 60 times. A real service would ask every hour, for a week.
//
//	PERCEPTOR_TOKEN=... go run ./examples/parcel
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/perceptor/perceptor/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, stop)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// check has the params of a check.
type check struct {
	Parcel string `param:",required"`
	Looks  int    `param:",omitempty"` // so far
}

// run adds the task and handles its runs until stop is called.
func run(ctx context.Context, stop func()) error {
	c, err := client.New(client.Config{})
	if err != nil {
		return err
	}
	defer c.Close()
	id, err := watch(ctx, c, "42")
	if err != nil {
		return err
	}
	fmt.Printf("task %d watches parcel 42\n", id)
	listener, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		return err
	}
	w := watcher{arrived: stop}
	client.Handle(listener, "parcel-check", w.look)
	return listener.Run(ctx)
}

// watch adds the task, which begins now. Watching a parcel twice adds one task.
func watch(ctx context.Context, c client.Tasks, parcel string) (int64, error) {
	return c.AddTask(ctx, client.Task{
		Kind:           "parcel-check",
		IdempotencyKey: "parcel-" + parcel,
		Type:           client.Blocking, // the next look is a second after the end of the last one
		Interval:       time.Second,
		MaxCount:       60,
		Params:         client.MustParams(check{Parcel: parcel}),
	})
}

// watcher looks for parcels.
type watcher struct{ arrived func() }

// look is the handler: one look at one parcel.
func (w watcher) look(_ context.Context, run *client.Run, p check) error {
	p.Looks++
	status := ask(p)
	fmt.Printf("look %d: parcel %s is %s\n", p.Looks, p.Parcel, status)
	if status != "delivered" {
		return run.SetParams(p) // what the next look gets
	}
	run.Stop() // no further run: the task is completed
	w.arrived()
	return nil
}

// ask stands for a call to the carrier, who delivers before the third look.
func ask(p check) string {
	if p.Looks < 3 {
		return "on its way"
	}
	return "delivered"
}
