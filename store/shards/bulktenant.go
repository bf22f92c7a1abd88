package shards

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// # Deleting a tenant
//
// The deletion is a bulk operation, too. When it is created the tenant's tokens are
// refused and it is paused; calls that had been let in before end within
// tenantGrace. Then each database removes what the tenant has there, in phases, all
// of them twice: what moved while it was looked for is met the second time. It ends
// with the counters. The home database waits for the others, has the rest removed
// ([Config.DropTenant]), and forgets the operation.
//
// Events in the history are not looked for: no index finds those of a tenant. They
// go with their days.

// tenantGrace is how long after the creation of the operation something of the
// tenant may still be written: an answer of the authentication is remembered for
// 5 s, and a call lasts up to 30 s.
const tenantGrace = 40 * time.Second

// The phases.
var tenantPhases = []string{"packs", "TenantRows", "TenantDone", "TenantDead", "TenantKeys", "TenantSeen"}

// tenantWait is the pause before the home database looks again for the others.
const tenantWait = time.Second

// tenant takes a step of the deletion. The position is "phase.cursor"; phases are
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
	case tenantPhases[phase%len(tenantPhases)] == "packs":
		return b.packsOfTenant(ctx, phase, cursor)
	}
	return b.tx(ctx, func(tx pgx.Tx, _ task.Instant) error {
		var n int64
		statement := sql.Get(tenantPhases[phase%len(tenantPhases)])
		if err := tx.QueryRow(ctx, statement, b.row.tenant, bulkLook, shardsIn(b.d)).Scan(&n); err != nil {
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

// packsOfTenant takes the tenant's tasks out of one pack.
func (b *bulkStep) packsOfTenant(ctx context.Context, phase int, cursor string) (lost bool, err error) {
	at := task.ListCursor{Database: b.d}
	if cursor != "" {
		c, err := task.ParseListCursor(cursor)
		if err != nil {
			return false, err
		}
		at = *c
	}
	var name packName
	for name == 0 && at.Stage < task.ListRows {
		if name, at, err = b.nextPack(ctx, at); err != nil {
			return false, err
		}
	}
	if name == 0 {
		b.next = fmt.Sprintf("%d.", phase+1)
		return b.tx(ctx, func(pgx.Tx, task.Instant) error { return nil })
	}
	at.Pack = name.position()
	b.next = fmt.Sprintf("%d.%s", phase, at)
	return b.tx(ctx, func(tx pgx.Tx, _ task.Instant) error { return b.emptyPack(ctx, tx, name) })
}

// nextPack returns the first pack after a position that may hold the tenant's tasks;
// 0: there is none before next.
func (b *bulkStep) nextPack(ctx context.Context, at task.ListCursor) (packName, task.ListCursor, error) {
	for {
		w, err := packsAfter(ctx, b.s.cluster.Pool(b.d), at.Stage == task.ListLevel0, b.row.tenant, at.Pack, 0, task.Never)
		switch {
		case err != nil:
			return 0, at, err
		case len(w.names) > 0:
			return packName(w.names[0]), at, nil
		case w.end:
			return 0, after(at), nil
		}
		at.Pack = w.last
	}
}

func (b *bulkStep) emptyPack(ctx context.Context, tx pgx.Tx, name packName) error {
	locked, err := lockPacks(ctx, tx, []candidate{{id: int64(name)}})
	if err != nil {
		return err
	}
	if len(locked) == 0 {
		there, err := readPacks(ctx, tx, []int64{int64(name)})
		if err == nil && len(there) > 0 && there[0].damaged == nil {
			err = errBusy
		}
		return err
	}
	void, err := readOverrides(ctx, tx, locked)
	if err != nil {
		return err
	}
	all, err := pack.DecodeKeys(locked[0].keys)
	if err != nil {
		return nil //nolint:nilerr // a cut will set it aside
	}
	var mine []*task.Machine
	others := false
	for _, r := range all {
		switch {
		case r.Tenant != b.row.tenant:
			others = true
		case !void[override{int64(name), int64(r.ID)}]:
			mine = append(mine, &task.Machine{Task: r})
		}
	}
	b.sum = task.BulkSum{Matched: int64(len(mine)), Done: int64(len(mine))}
	if len(mine) == 0 && others {
		return nil
	}
	return leavePack(ctx, tx, name, mine, !others)
}

// lastOfTenant removes the counters, and at home what is left anywhere.
func (b *bulkStep) lastOfTenant(ctx context.Context) (lost bool, err error) {
	for more := true; more; {
		if _, more, err = b.s.FoldCounters(ctx, b.d); err != nil {
			return false, err
		}
	}
	if home(b.row.tenant) != b.d {
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
	if err := b.s.cfg.DropTenant(ctx, b.row.tenant); err != nil {
		return false, err
	}
	err = b.s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		if d == b.d {
			return nil
		}
		_, err := b.s.cluster.Pool(d).Exec(ctx, sql.Get("BulkDrop"), b.row.tenant, b.row.id)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("forget the deletion of tenant %d: %w", b.row.tenant, err)
	}
	b.next, b.end = b.row.position, true
	return b.tx(ctx, func(tx pgx.Tx, now task.Instant) error {
		if err := b.dropCounters(ctx)(tx, now); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sql.Get("BulkDrop"), b.row.tenant, b.row.id)
		return err
	})
}

func (b *bulkStep) dropCounters(ctx context.Context) func(pgx.Tx, task.Instant) error {
	return func(tx pgx.Tx, _ task.Instant) error {
		if _, err := tx.Exec(ctx, sql.Get("TenantBulk"), b.row.tenant, b.row.id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sql.Get("TenantCounters"), b.row.tenant)
		return err
	}
}

// othersEnded reports whether nothing of the tenant is left in any other database.
// One that has forgotten the operation has ended it.
func (b *bulkStep) othersEnded(ctx context.Context) (bool, error) {
	var known bool
	row := b.s.cluster.Pool(b.d).QueryRow(ctx, sql.Get("BulkKnown"), b.row.tenant, b.row.id)
	if err := row.Scan(&known); err != nil || !known {
		return false, err
	}
	var open [task.Databases]bool
	err := b.s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		rows, err := readBulk(ctx, b.s.cluster.Pool(d), "BulkRead", b.row.tenant, []int64{b.row.id})
		open[d] = d != b.d && len(rows) == 1 && rows[0].state == task.BulkRunning
		return err
	})
	return !slices.Contains(open[:], true), err
}

// DeleteTenant creates the operation that removes all that a tenant has, or returns
// it as it stands. Its tokens must be refused, and it paused, before. When the
// operation is over it is forgotten: [task.NotFound].
func (s *Store) DeleteTenant(ctx context.Context, tenant int32) (*task.BulkOperation, error) {
	return s.CreateBulk(ctx, tenant, task.BulkDeleteTenant, task.BulkTerms{}, "\x01delete", []byte{1})
}
