// Command fromcron does what a crontab did: it runs commands by schedules.
//
//	PERCEPTOR_TOKEN=... go run ./examples/fromcron
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/client"
)

// job is a line of the crontab.
type job struct {
	name, schedule, command string
}

// jobs replaces these lines:
//
//	30 2 * * *    df -h /
//	*/10 * * * *  uptime
var jobs = []job{
	{"disk-report", "30 2 * * *", "df -h /"},
	{"load-report", "*/10 * * * *", "uptime"},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// run makes the tasks those of the table and runs their commands until ctx ends.
func run(ctx context.Context) error {
	c, err := client.New(client.Config{})
	if err != nil {
		return err
	}
	defer c.Close()
	listener, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if err := declare(ctx, c, j); err != nil {
			return fmt.Errorf("job %s: %w", j.name, err)
		}
		fmt.Printf("%s runs at %s\n", j.name, j.schedule)
		listener.Handle(j.name, j.execute, client.MaxDuration(time.Hour))
	}
	return listener.Run(ctx)
}

// declare adds the task of a job, or changes it to what the table says.
func declare(ctx context.Context, c client.Tasks, j job) error {
	_, err := c.AddTask(ctx, client.Task{
		Kind: j.name, IdempotencyKey: "cron-" + j.name,
		Type: client.Blocking, // never twice at once; cron needs flock for that
		Cron: &client.Cron{Expression: j.schedule, Zone: "Europe/Berlin"},
	}, client.WithUpsert())
	return err
}

// execute is the handler of a job. If the command fails, it is tried again.
func (j job) execute(ctx context.Context, run *client.Run) error {
	fmt.Printf("run %s of %s\n", run.RunID(), j.name)
	command := exec.CommandContext(ctx, "sh", "-c", j.command)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	return command.Run()
}
