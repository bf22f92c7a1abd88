package bulk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Quotas of replays and backfills.
//
// A replay adds a task, and so does a backfill for each of its sources. So they count towards
// the add rate and the maximum number of unfinished tasks of their tenant. A step adds no more
// than the quotas allow, and the operation waits for the rest. The steps of one tenant that add tasks take turns, in all databases: each counts the
// unfinished tasks, which would otherwise lack those that the other steps are about to add.

const (
	// replaysLock is the number of the advisory lock, in the home database of a tenant, of
	// the step that replays its dead runs.
	replaysLock = 7033
	// fullWait is the pause of an operation whose tenant has its maximum of unfinished tasks.
	fullWait = 2 * time.Second
)

// overQuota says that a quota allows no replay now.
type overQuota struct {
	text string
	wait time.Duration
}

func (o *overQuota) Error() string { return o.text }

// withinQuotas calls f with the number of new tasks, at most want, that the quotas of the tenant
// allow. f returns how many it has made. If the quotas allow none, the error is an [overQuota].
func (b *bulkStep) withinQuotas(ctx context.Context, want int, f func(n int) (done int, err error)) error {
	r, err := b.rates(ctx)
	if err != nil {
		return err
	}
	rate, most := r.Quota(task.QuotaAdds, b.s.cfg.Quotas), r.Quota(task.QuotaBacklog, b.s.cfg.Quotas)
	if most > 0 {
		unlock, err := b.replayAlone(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		if want, err = b.untilFull(ctx, want, most); err != nil {
			return err
		}
	}
	if rate == 0 {
		_, err := f(want)
		return err
	}
	tokens, err := b.s.cfg.TakeQuota(ctx, b.row.Tenant, task.QuotaAdds, rate, want, 0, 0)
	if err != nil {
		return err
	}
	if tokens.Granted == 0 {
		wait := max(time.Duration(tokens.Wait)*time.Millisecond, bulkBusy)
		return &overQuota{fmt.Sprintf("add_rate: at most %d tasks can be added per second", rate), wait}
	}
	done, err := f(tokens.Granted)
	if unused := tokens.Granted - done; unused > 0 && err == nil {
		_, err = b.s.cfg.TakeQuota(ctx, b.row.Tenant, task.QuotaAdds, rate, 0, 0, unused)
	}
	return err
}

// rates returns the rates of the tenant as this database stores them.
func (b *bulkStep) rates(ctx context.Context) (r task.Rates, err error) {
	err = sql.TenantRates.QueryRow(ctx, b.s.db.Pool(b.d), b.row.Tenant).Scan(&r)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil // the defaults apply
	}
	return r, err
}

// replayAlone excludes other steps that replay dead runs of the tenant, until unlock is called.
// It keeps a connection to the tenant's home database meanwhile. Only one step of this process
// may do that, or several could wait for a further connection with all of them in their hands.
func (b *bulkStep) replayAlone(ctx context.Context) (unlock func(), err error) {
	home := kernel.Home(b.row.Tenant)
	select {
	case b.s.homes[home] <- struct{}{}:
	default:
		return nil, errBusy
	}
	tx, err := b.s.db.Pool(home).Begin(ctx)
	if err != nil {
		<-b.s.homes[home]
		return nil, err
	}
	unlock = func() {
		defer func() { <-b.s.homes[home] }()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bulkNote)
		defer cancel()
		_ = tx.Rollback(ctx) // it has written nothing; the server ends the session if this fails
	}
	var held bool
	if err = sql.ReplaysHold.QueryRow(ctx, tx, int32(replaysLock), b.row.Tenant).Scan(&held); err == nil && !held {
		err = errBusy
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// countLimit bounds the count of a tenant's tasks, in all databases: operations of others wait meanwhile.
const countLimit = 2 * time.Second

// untilFull returns how many of want tasks the tenant may add until it has most unfinished ones.
func (b *bulkStep) untilFull(ctx context.Context, want int, most int64) (int, error) {
	counting, cancel := context.WithTimeout(ctx, countLimit)
	defer cancel()
	counts, err := b.s.counters.Counts(counting, b.row.Tenant)
	if err != nil {
		return 0, err
	}
	living := task.Living(counts)
	if living >= most {
		return 0, &overQuota{fmt.Sprintf("max_backlog: the tenant has %d unfinished tasks; the maximum is %d", living, most), fullWait}
	}
	return int(min(int64(want), most-living)), nil
}
