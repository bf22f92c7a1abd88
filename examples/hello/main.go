// Command hello is the smallest service: it adds a task, and greets whenever a task of
// kind hello is due, whoever has added it.
//
//	PERCEPTOR_TOKEN=... go run ./examples/hello
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// run adds a task and greets until ctx ends.
func run(ctx context.Context) error {
	c, err := client.New(client.Config{}) // PERCEPTOR_ADDRESS, PERCEPTOR_TOKEN
	if err != nil {
		return err
	}
	defer c.Close()
	id, err := c.AddTask(ctx, client.Task{
		Kind: "hello", Type: client.OneShot, Begin: time.Now().Add(2 * time.Second),
		Params: map[string]string{"name": "Ann"},
	})
	if err != nil {
		return err
	}
	fmt.Printf("added task %d, due in 2 s\n", id)

	listener, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		return err
	}
	listener.Handle("hello", greet)
	return listener.Run(ctx)
}

// greet is the handler. The task is completed when it returns nil.
func greet(_ context.Context, run *client.Run) error {
	fmt.Printf("hello, %s! (task %d, attempt %d)\n", run.Params["name"], run.TaskID, run.Attempt)
	return nil
}
