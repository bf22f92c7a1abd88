package bulk

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

const (
	// homeEvery is how often the home database of an operation is asked whether it has it, and
	// homeWithin bounds the question: the home may be away, and the operation goes on.
	homeEvery  = 30 * time.Second
	homeWithin = 2 * time.Second
	// maxAsked bounds the operations that are remembered as asked for.
	maxAsked = 10_000
)

// asked remembers when the home databases of operations were last asked.
type asked struct {
	mu sync.Mutex
	at map[[2]int64]time.Time // by tenant and operation
}

// due reports whether to ask about an operation now. If so the caller does that.
func (a *asked) due(r *Row, now time.Time) bool {
	key := [2]int64{int64(r.Tenant), r.ID}
	a.mu.Lock()
	defer a.mu.Unlock()
	if last, known := a.at[key]; known && now.Sub(last) < homeEvery {
		return false
	}
	if a.at == nil || len(a.at) >= maxAsked {
		a.at = map[[2]int64]time.Time{}
	}
	a.at[key] = now
	return true
}

// keepAtHome stores an operation that is open in database d in its home database again, if that has lost it in a restore.
// Otherwise nobody would see it or could end it. The home then does its part again, as its tasks are those of before.
// An operation that is older than ended ones are kept may have ended at home.
func (ops *Operations) keepAtHome(ctx context.Context, d int, r *Row) error {
	home := kernel.Home(r.Tenant)
	if home == d || !ops.asked.due(r, time.Now()) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, homeWithin)
	defer cancel()
	rows, err := Read(ctx, ops.db.Pool(home), sql.BulkRead, r.Tenant, []int64{r.ID})
	if err != nil || len(rows) > 0 {
		return err
	}
	var age int64
	if err := sql.BulkAge.QueryRow(ctx, ops.db.Pool(d), r.Tenant, r.ID).Scan(&age); err != nil || age >= task.BulkKept.Milliseconds() {
		return err
	}
	if err := ops.put(ctx, home, r, r, age); err != nil {
		return fmt.Errorf("store bulk operation %d in its home database again: %w", r.ID, err)
	}
	ops.db.Log.Warn("the home database of a bulk operation has lost it; it is stored there again", "database", home, "operation", r.ID)
	ops.db.TellBulk(home)
	return nil
}
