// Command river adds jobs with River to the database DATABASE_URL.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type mail struct {
	Customer string  `json:"customer"`
	Lines    []int   `json:"lines"`
	Gross    float64 `json:"gross"`
}

// Kind implements [river.JobArgs].
func (mail) Kind() string { return "mail" }

type empty struct{}

// Kind implements [river.JobArgs].
func (empty) Kind() string { return "empty" }

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	client, err := river.NewClient(driver, &river.Config{})
	if err != nil {
		return err
	}
	at := time.Date(2030, 1, 28, 8, 30, 0, 123_000_000, time.UTC)
	if _, err := client.Insert(ctx, mail{"42", []int{1, 2}, 19.99}, &river.InsertOpts{ScheduledAt: at, MaxAttempts: 7, Tags: []string{"campaign"}}); err != nil {
		return err
	}
	if _, err := client.Insert(ctx, empty{}, &river.InsertOpts{Queue: "slow"}); err != nil {
		return err
	}
	gone, err := client.Insert(ctx, empty{}, &river.InsertOpts{ScheduledAt: at})
	if err != nil {
		return err
	}
	_, err = client.JobCancel(ctx, gone.Job.ID)
	return err
}
