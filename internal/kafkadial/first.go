package kafkadial

import (
	"context"
	"time"
)

// patience is how long what was asked may be silent before the next one is asked, too.
const patience = 300 * time.Millisecond

// First calls ask with the numbers from 0 to n-1 until one call succeeds, and returns its result. A call that is silent for patience
// has company, and one that fails is followed by the next at once. When one succeeds, or ctx ends, the context of the others ends. If drop is
// not nil, First waits for them then, and drop gets the results that came too late. Without a result it returns why the calls failed.
func First[T any](ctx context.Context, n int, ask func(ctx context.Context, i int) (T, error), drop func(T)) (first T, failed []error) {
	type answer struct {
		result T
		err    error
	}
	answers, begun, running := make(chan answer, n), 0, 0
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for ; running > 0 && drop != nil; running-- {
			if late := <-answers; late.err == nil {
				drop(late.result)
			}
		}
	}()
	impatient := time.NewTicker(patience)
	defer impatient.Stop()
	for {
		if begun < n {
			i := begun
			begun, running = begun+1, running+1
			go func() {
				result, err := ask(ctx, i)
				answers <- answer{result, err}
			}()
		}
		select {
		case <-impatient.C:
		case a := <-answers:
			running--
			if a.err == nil {
				return a.result, nil
			}
			if failed = append(failed, a.err); len(failed) == n || ctx.Err() != nil {
				return first, failed
			}
		}
	}
}
