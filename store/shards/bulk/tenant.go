package bulk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// # Deleting a tenant
//
// The deletion is a bulk operation, too. When it is created, the tenant is paused and
// its tokens are refused. Calls that were authorized before end within tenantGrace. Then
// each database removes the tenant's data in phases. All phases run twice, so that the
// second round finds tasks that moved during the first. The last phase removes the
// counters. The home database waits for the others, has the remaining data removed
// ([Config.DropTenant]), and deletes the operation.
//
// Events in the history are not removed: no index finds those of a tenant. They are
// dropped with the partitions of their days.

// tenantGrace is how long after the creation of the operation data of the tenant may
// still be written: the result of an authentication is cached for 5 s, and a call lasts
// at most 30 s.
const tenantGrace = 40 * time.Second

// tenantPhases are the statements of the phases; nil means that tasks are removed from
// packs.
var tenantPhases = []func(context.Context, pgx.Tx, *bulkStep) pgx.Row{
	nil,
	deleteOfTenant(sql.TenantRows),
	deleteOfTenant(sql.TenantDone),
	deleteOfTenant(sql.TenantDead),
	func(ctx context.Context, tx pgx.Tx, b *bulkStep) pgx.Row {
		return sql.TenantKeys.QueryRow(ctx, tx, b.row.Tenant, bulkLook, shardsIn(b.d))
	},
	deleteOfTenant(sql.TenantSeen),
}

func deleteOfTenant(s *statement.Statement) func(context.Context, pgx.Tx, *bulkStep) pgx.Row {
	return func(ctx context.Context, tx pgx.Tx, b *bulkStep) pgx.Row {
		return s.QueryRow(ctx, tx, b.row.Tenant, bulkLook)
	}
}

// tenantWait is the pause before the home database checks the other databases again.
const tenantWait = time.Second

// tenant executes a step of the deletion. The position is "phase.cursor"; phases are
// counted through both rounds.
func (b *bulkStep) tenant(ctx context.Context) (lost bool, err error) {
	phase, cursor := 0, ""
	if p := b.row.position; p != "" {
		if _, err := fmt.Sscanf(p, "%d", &phase); err != nil {
			return false, fmt.Errorf("position %q: %w", p, err)
		}
		cursor = p[len(fmt.Sprint(phase))+1:]
	}
	switch {
	case b.row.position == "":
		b.next, b.wait = "0.", tenantGrace
		return b.tx(ctx, func(pgx.Tx, task.Instant) error { return nil })
	case phase >= 2*len(tenantPhases):
		return b.lastOfTenant(ctx)
	case tenantPhases[phase%len(tenantPhases)] == nil:
		return b.packsOfTenant(ctx, phase, cursor)
	}
	return b.tx(ctx, func(tx pgx.Tx, _ task.Instant) error {
		var n int64
		if err := tenantPhases[phase%len(tenantPhases)](ctx, tx, b).Scan(&n); err != nil {
			return err
		}
		b.sum, b.next = task.BulkSum{Matched: n, Done: n}, b.row.position
		if n < bulkLook {
			b.next = fmt.Sprintf("%d.", phase+1)
		}
		return nil
	})
}

// shardsIn returns the shards of a database.
func shardsIn(d int) []int16 {
	all := make([]int16, task.ShardsPerDatabase)
	for i := range all {
		all[i] = int16(d*task.ShardsPerDatabase + i)
	}
	return all
}

// packsOfTenant removes the tenant's tasks from one pack.
func (b *bulkStep) packsOfTenant(ctx context.Context, phase int, cursor string) (lost bool, err error) {
	at := task.ListCursor{Database: b.d}
	if cursor != "" {
		c, err := task.ParseListCursor(cursor)
		if err != nil {
			return false, err
		}
		at = *c
	}
	var name far.PackName
	for name == 0 && at.Stage < task.ListRows {
		if name, at, err = b.nextPack(ctx, at); err != nil {
			return false, err
		}
	}
	if name == 0 {
		b.next = fmt.Sprintf("%d.", phase+1)
		return b.tx(ctx, func(pgx.Tx, task.Instant) error { return nil })
	}
	at.Pack = name.Position()
	b.next = fmt.Sprintf("%d.%s", phase, at)
	return b.tx(ctx, func(tx pgx.Tx, _ task.Instant) error { return b.emptyPack(ctx, tx, name) })
}

// nextPack returns the first pack after a position that may hold the tenant's tasks, or 0
// if there is none before next.
func (b *bulkStep) nextPack(ctx context.Context, at task.ListCursor) (far.PackName, task.ListCursor, error) {
	for {
		w, err := far.PacksAfter(ctx, b.s.db.Pool(b.d), at.Stage == task.ListLevel0, b.row.Tenant, at.Pack, 0, task.Never)
		switch {
		case err != nil:
			return 0, at, err
		case len(w.Names) > 0:
			return far.PackName(w.Names[0]), at, nil
		case w.End:
			return 0, at.NextStage(), nil
		}
		at.Pack = w.Last
	}
}

func (b *bulkStep) emptyPack(ctx context.Context, tx pgx.Tx, name far.PackName) error {
	locked, err := far.Lock(ctx, tx, []far.PackName{name})
	if err != nil {
		return err
	}
	if len(locked) == 0 {
		there, err := far.ReadPacks(ctx, tx, []int64{int64(name)})
		if err == nil && len(there) > 0 && there[0].Damaged == nil {
			err = errBusy
		}
		return err
	}
	void, err := far.ReadTombstones(ctx, tx, locked)
	if err != nil {
		return err
	}
	all, err := pack.DecodeKeys(locked[0].Keys)
	if newer := far.Newer(err); newer != nil {
		return newer
	}
	if err != nil {
		return nil //nolint:nilerr // a compaction will quarantine it
	}
	var mine []*task.Machine
	others := false
	for _, r := range all {
		switch {
		case r.Tenant != b.row.Tenant:
			others = true
		case !void[far.Tombstone{Pack: name, Task: r.ID}]:
			mine = append(mine, &task.Machine{Task: r})
		}
	}
	b.sum = task.BulkSum{Matched: int64(len(mine)), Done: int64(len(mine))}
	if len(mine) == 0 && others {
		return nil
	}
	return far.Leave(ctx, tx, name, mine, !others)
}

// lastOfTenant removes the counters and, in the home database, the remaining data.
func (b *bulkStep) lastOfTenant(ctx context.Context) (lost bool, err error) {
	for more := true; more; {
		if _, more, err = b.s.counters.FoldCounters(ctx, b.d); err != nil {
			return false, err
		}
	}
	if kernel.Home(b.row.Tenant) != b.d {
		b.next, b.end = b.row.position, true
		return b.tx(ctx, b.dropCounters(ctx))
	}
	ready, err := b.othersEnded(ctx)
	if err != nil {
		return false, err
	}
	if !ready {
		b.next, b.wait = b.row.position, tenantWait
		return b.tx(ctx, b.dropCounters(ctx))
	}
	if b.s.cfg.DropTenant == nil {
		return false, errors.New("this process cannot remove a tenant's topics and tokens")
	}
	if err := b.s.cfg.DropTenant(ctx, b.row.Tenant); err != nil {
		return false, err
	}
	err = b.s.db.Each(ctx, func(ctx context.Context, d int) error {
		if d == b.d {
			return nil
		}
		_, err := sql.BulkDrop.Exec(ctx, b.s.db.Pool(d), b.row.Tenant, b.row.ID)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("forget the deletion of tenant %d: %w", b.row.Tenant, err)
	}
	b.next, b.end = b.row.position, true
	return b.tx(ctx, func(tx pgx.Tx, now task.Instant) error {
		if err := b.dropCounters(ctx)(tx, now); err != nil {
			return err
		}
		_, err := sql.BulkDrop.Exec(ctx, tx, b.row.Tenant, b.row.ID)
		return err
	})
}

func (b *bulkStep) dropCounters(ctx context.Context) func(pgx.Tx, task.Instant) error {
	return func(tx pgx.Tx, _ task.Instant) error {
		if _, err := sql.TenantBulk.Exec(ctx, tx, b.row.Tenant, b.row.ID); err != nil {
			return err
		}
		if err := b.dropImports(ctx, tx); err != nil {
			return err
		}
		_, err := sql.TenantCounters.Exec(ctx, tx, b.row.Tenant)
		return err
	}
}

// dropImports removes the imports of the tenant, if the schema has any.
func (b *bulkStep) dropImports(ctx context.Context, tx pgx.Tx) error {
	var exist bool
	if err := sql.ImportsExist.QueryRow(ctx, tx).Scan(&exist); err != nil || !exist {
		return err
	}
	_, err := sql.TenantImports.Exec(ctx, tx, b.row.Tenant)
	return err
}

// othersEnded reports whether no other database has data of the tenant. A database that
// has deleted the operation has ended it.
func (b *bulkStep) othersEnded(ctx context.Context) (bool, error) {
	var known bool
	row := sql.BulkKnown.QueryRow(ctx, b.s.db.Pool(b.d), b.row.Tenant, b.row.ID)
	if err := row.Scan(&known); err != nil || !known {
		return false, err
	}
	var open [task.Databases]bool
	err := b.s.db.Each(ctx, func(ctx context.Context, d int) error {
		rows, err := Read(ctx, b.s.db.Pool(d), sql.BulkRead, b.row.Tenant, []int64{b.row.ID})
		open[d] = d != b.d && len(rows) == 1 && rows[0].state == task.BulkRunning
		return err
	})
	return !slices.Contains(open[:], true), err
}

// DeleteTenant creates the operation that removes all data of a tenant, or returns the
// existing operation. The caller must have paused the tenant and revoked its tokens. Once
// the operation has ended it is deleted, and calls return [task.NotFound].
func (ops *Operations) DeleteTenant(ctx context.Context, tenant int32) (*task.BulkOperation, error) {
	return ops.CreateBulk(ctx, tenant, task.BulkDeleteTenant, task.BulkTerms{}, "\x01delete", []byte{1})
}
