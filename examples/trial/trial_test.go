package trial

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
)

func TestATrialHasThreeRemindersAndThenEnds(t *testing.T) {
	ctx := t.Context()
	c, clock := connect(t)
	mails := &outbox{broken: true} // the first mail fails, and is sent again
	listen(t, c, mails)

	start, err := clock.Now(ctx) // never time.Now: this is another clock
	if err != nil {
		t.Fatal(err)
	}
	id, err := Begin(ctx, c, "ann", start)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := clock.Advance(ctx, 6*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	if n := mails.count(); n != 0 {
		t.Errorf("%d mails before the first week is over", n)
	}
	if _, err := clock.Advance(ctx, 24*24*time.Hour); err != nil { // returns when the handlers have
		t.Fatal(err)
	}
	if n := mails.count(); n != 3 {
		t.Errorf("%d mails in a month, want 3", n)
	}
	if info, err := c.GetTask(ctx, id); err != nil || info.State != client.Completed {
		t.Errorf("after a month the task is %+v, %v", info, err)
	}
}

// connect returns a client of the tenant, and the clock of the installation.
func connect(t *testing.T) (*client.Client, *client.Clock) {
	t.Helper()
	c, err := client.New(client.Config{}) // PERCEPTOR_ADDRESS, PERCEPTOR_TOKEN
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	clock, err := client.NewClock(client.Config{Token: os.Getenv("PERCEPTOR_ADMIN_TOKEN")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = clock.Close() })
	return c, clock
}

// listen handles reminders until the test ends.
func listen(t *testing.T, c *client.Client, m Mailer) {
	t.Helper()
	l, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	client.Handle(l, Kind, Handler(m))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// outbox counts mails instead of sending them.
type outbox struct {
	mu     sync.Mutex
	broken bool // fail once
	mails  int
}

// Send implements [Mailer].
func (o *outbox) Send(context.Context, string, string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken {
		o.broken = false
		return errors.New("the mail server does not answer")
	}
	o.mails++
	return nil
}

func (o *outbox) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mails
}
