package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
)

const (
	restartLimit = time.Minute
	longestKill  = 3 * time.Second
	longestPause = 12 * time.Second
)

// load runs the load, and disturbs the parts meanwhile. It returns what it did, by part.
func (r *runner) load(ctx context.Context, meter *harness.Meter) (map[string]int, error) {
	loading, stop := context.WithTimeout(ctx, r.For)
	defer stop()
	done := map[string]int{}
	var failed error
	var disturber sync.WaitGroup
	if r.Kill {
		disturber.Go(func() { failed = r.disturb(loading, meter, done) })
	}
	r.shop.load(loading)
	disturber.Wait()
	return done, failed
}

// victims are the parts that are disturbed; the relays come twice as often as the others.
func (r *runner) victims() (list []stack.Part, err error) {
	names := []string{"taskd", "dispatcher", "shop", "postgres"}
	for i := range r.Relays {
		name := fmt.Sprintf("relay-%d", i+1)
		names = append(names, name, name)
	}
	for _, name := range names {
		p, err := r.stack.Part(name)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// disturb kills and freezes parts until ctx ends. Up to two are away at a time. In the end all run again.
func (r *runner) disturb(ctx context.Context, meter *harness.Meter, done map[string]int) error {
	victims, err := r.victims()
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(r.Seed, 1))
	var away sync.WaitGroup
	var mu sync.Mutex
	busy, errs := map[string]bool{}, []error(nil)
	slots := make(chan struct{}, 2)
	for harness.Sleep(ctx, time.Second+time.Duration(random.Int64N(int64(2*time.Second)))) == nil {
		p, kill, long := victims[random.IntN(len(victims))], random.IntN(2) == 0, random.Float64()
		mu.Lock()
		taken := busy[p.Name]
		busy[p.Name] = true
		mu.Unlock()
		if taken {
			continue
		}
		meter.Sample()
		slots <- struct{}{}
		away.Go(func() {
			what, err := r.strike(ctx, p, kill, long)
			mu.Lock()
			defer mu.Unlock()
			errs, busy[p.Name] = append(errs, err), false
			done[p.Name+" "+what]++
			<-slots
		})
	}
	away.Wait()
	return errors.Join(errs...)
}

// strike kills a part and starts it again, or freezes it for a time; long is from 0 to 1.
func (r *runner) strike(ctx context.Context, p stack.Part, kill bool, long float64) (what string, err error) {
	up := context.WithoutCancel(ctx)
	if !kill {
		d := time.Duration(long * float64(longestPause))
		r.Say("freezing %s for %s", p.Name, d.Round(time.Millisecond))
		if err := p.Pause(); err != nil {
			return "frozen", err
		}
		_ = harness.Sleep(up, d)
		return "frozen", p.Resume()
	}
	r.Say("killing %s", p.Name)
	if err := p.Kill(); err != nil {
		return "killed", err
	}
	_ = harness.Sleep(up, time.Duration(long*float64(longestKill)))
	up, cancel := context.WithTimeout(up, restartLimit)
	defer cancel()
	return "killed", p.Restart(up)
}
