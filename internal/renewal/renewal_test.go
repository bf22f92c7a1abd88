package renewal

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
)

// bench is a server with a password, and a file with what a program thinks it is.
type bench struct {
	mu       sync.Mutex
	password string
	file     string
	fault    error
	adopted  int
	refused  []string
	tries    int
}

func (b *bench) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// seen returns what was told, the number of adoptions, and that of tries.
func (b *bench) seen() (refused []string, adopted, tries int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.refused), b.adopted, b.tries
}

// start follows the file within a bubble of synctest.
func (b *bench) start(t *testing.T) *Follower[string] {
	t.Helper()
	f := New(b.file, Config[string]{
		Read: func() (string, error) { b.mu.Lock(); defer b.mu.Unlock(); return b.file, b.fault },
		Same: func(a, b string) bool { return a == b },
		Try: func(_ context.Context, c string) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.tries++; c != b.password {
				return errors.New("wrong password")
			}
			return nil
		},
		Adopted: func(context.Context) { b.set(func() { b.adopted++ }) },
		Refused: func(err error) { b.set(func() { b.refused = append(b.refused, err.Error()) }) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

func TestAChangeIsUsedOnceAConnectionHasProvenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{password: "old", file: "old"}
		f := b.start(t)
		b.set(func() { b.file = "new" })
		time.Sleep(time.Minute)
		if refused, _, _ := b.seen(); f.Current() != "old" || len(refused) != 1 {
			t.Errorf("before the server has changed, %q is used, and %v was told", f.Current(), refused)
		}
		b.set(func() { b.password = "new" })
		time.Sleep(2 * tryEvery)
		_, adopted, tries := b.seen()
		if got := f.Current(); got != "new" || adopted != 1 {
			t.Errorf("after it has changed, %q is used, adopted %d times", got, adopted)
		}
		time.Sleep(time.Hour)
		if _, adopted, later := b.seen(); later != tries || adopted != 1 {
			t.Errorf("%d tries without a change", later-tries)
		}
	})
}

func TestANewConnectionMakesThePendingCredentialTriedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{password: "new", file: "old"} // the server was changed first
		f := b.start(t)
		// Between two looks, the last of which was more than readEvery ago whatever the beats of the process are.
		time.Sleep(ctxtime.Beat(time.Now(), time.Minute) + lookEvery/2)
		b.set(func() { b.file = "new" })
		if got := f.Current(); got != "old" {
			t.Errorf("%q is used before it was tried", got)
		}
		time.Sleep(tryAfter + time.Millisecond)
		if got := f.Current(); got != "new" {
			t.Errorf("%q is used after it was tried", got)
		}
	})
}

func TestManyNewConnectionsDoNotTryAWrongCredentialOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{password: "old", file: "old"}
		f := b.start(t)
		b.set(func() { b.file = "wrong" })
		time.Sleep(lookEvery)
		for range 1000 {
			f.Current()
			time.Sleep(time.Millisecond)
		}
		if refused, _, tries := b.seen(); tries > 10 || len(refused) != 1 {
			t.Errorf("%d tries, and told %v", tries, refused)
		}
	})
}

func TestAFileThatCannotBeReadEndsNothingAndIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{password: "old", file: "old"}
		f := b.start(t)
		b.set(func() { b.fault = errors.New("no such file") })
		time.Sleep(time.Minute)
		if refused, _, tries := b.seen(); f.Current() != "old" || len(refused) != 1 || tries != 0 {
			t.Errorf("%q is used, told %v, %d tries", f.Current(), refused, tries)
		}
		b.set(func() { b.fault = nil })
		time.Sleep(time.Minute)
		b.set(func() { b.fault = errors.New("gone again") })
		time.Sleep(time.Minute)
		if refused, _, _ := b.seen(); len(refused) != 2 {
			t.Errorf("told %v, want both faults", refused)
		}
	})
}

func TestAChangeThatIsTakenBackChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{password: "old", file: "old"}
		f := b.start(t)
		for _, text := range []string{"wrong", "old"} {
			b.set(func() { b.file = text })
			time.Sleep(time.Minute)
		}
		if refused, adopted, _ := b.seen(); f.Current() != "old" || adopted != 0 || len(refused) != 1 {
			t.Errorf("%q is used, adopted %d times, told %v", f.Current(), adopted, refused)
		}
	})
}
