// Package trial reminds people that the trial of a product ends. Its test plays a month in
// a second, on a virtual clock.
package trial

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/client"
)

// Kind is the name of the handler.
const Kind = "trial-reminder"

const week = 7 * 24 * time.Hour

// Reminder has the params of a reminder.
type Reminder struct {
	Customer string `param:",required"`
}

// Begin adds the reminders of a trial: one a week, three times.
func Begin(ctx context.Context, c client.Tasks, customer string, now time.Time) (int64, error) {
	return c.AddTask(ctx, client.Task{
		Kind: Kind, Type: client.NonBlocking, IdempotencyKey: "trial-" + customer,
		Begin: now.Add(week), Interval: week, MaxCount: 3,
		Params:    client.MustParams(Reminder{Customer: customer}),
		Retention: 30 * 24 * time.Hour,
	})
}

// Mailer sends mail.
type Mailer interface {
	Send(ctx context.Context, to, text string) error
}

// Handler returns the handler of reminders.
func Handler(m Mailer) func(context.Context, *client.Run, Reminder) error {
	return func(ctx context.Context, _ *client.Run, r Reminder) error {
		return m.Send(ctx, r.Customer, "Your trial ends soon.")
	}
}
