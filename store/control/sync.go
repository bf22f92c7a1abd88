package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/control/sql"
	"github.com/perceptor/perceptor/task"
)

// Run calls [Store.Sync] at once and then every 30 s, until ctx is cancelled. Then it
// returns nil. It logs the first failure and the recovery. It also goes on with deletions of tenants, removes keys
// that have ended, stores the uses of tokens, and purges tokens that expired long ago.
func (s *Store) Run(ctx context.Context) error {
	failing, pace := false, ctxtime.NewPace()
	for round := 0; ; round++ {
		err := s.Sync(ctx)
		s.maintainTokens(ctx, round%purgeRounds == 0)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			s.log.WarnContext(ctx, "tenants and tokens differ between databases; trying again", "err", err)
		case err == nil && failing:
			s.log.InfoContext(ctx, "tenants and tokens agree in all databases again")
		}
		if err == nil {
			s.continueDeletions(ctx)
		}
		if err := s.dropEndedKeys(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "keys of tenants that have ended cannot be removed; trying again", "err", err)
		}
		failing = err != nil
		if !pace.Sleep(ctx, syncEvery) {
			return nil
		}
	}
}

// deletionsPerRound bounds the deletions that a round goes on with: each is looked up in all databases.
const deletionsPerRound = 20

// continueDeletions goes on with the deletions of tenants. The call that has begun one may not have come to the removal of the
// data, because its process died or a database was away. The caller has just made sure that all databases agree: data
// must not be removed before every database refuses the tenant.
func (s *Store) continueDeletions(ctx context.Context) {
	if s.deleter == nil {
		return
	}
	deleting, err := read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) ([]int32, error) {
		rows, err := sql.DeletingTenants.Query(ctx, pool, deletionsPerRound)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[int32])
	})
	for _, id := range deleting {
		if failed := s.deleter(ctx, id); task.CodeOf(failed) != task.NotFound { // not found: it has just ended
			err = errors.Join(err, failed)
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "deletions of tenants cannot go on; trying again", "err", err)
	}
}

// maintainTokens stores the uses of tokens and, if purge is true, removes expired ones.
func (s *Store) maintainTokens(ctx context.Context, purge bool) {
	err := errors.Join(s.recordUses(ctx), s.readIDs(ctx))
	if purge {
		err = errors.Join(err, s.purgeTokens(ctx))
	}
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "ids of tokens cannot be read, their uses cannot be stored, or expired ones cannot be purged", "err", err)
	}
}

// Sync compares the reachable databases and copies rows to those that lack them. It also
// settles conflicts, which databases that have lost commits leave behind. The error names the
// databases that could not be read or written, and the conflicts; Sync still updates the
// others. It may run in many processes at once.
func (s *Store) Sync(ctx context.Context) error {
	found, readErr := s.digests(ctx)
	var conflict error
	if !same(found) {
		u := newUnion()
		collectErr := s.each(ctx, found, func(ctx context.Context, d int) error { return s.collect(ctx, d, u) })
		conflict = s.settle(ctx, u)
		putErr := s.each(ctx, found, func(ctx context.Context, d int) error {
			return s.change(ctx, d, func(ctx context.Context, tx pgx.Tx) error { return u.put(ctx, d, tx) })
		})
		if err := errors.Join(collectErr, putErr); err != nil {
			return errors.Join(readErr, conflict, err)
		}
	}
	s.trust(found)
	if readErr == nil {
		readErr = s.setCompared(ctx, found[0].incarnation)
	}
	return errors.Join(readErr, conflict)
}

// Compare returns whether the databases differ, and the conflicts that Sync will settle. It
// changes nothing.
func (s *Store) Compare(ctx context.Context) (differ bool, err error) {
	found, err := s.digests(ctx)
	if same(found) {
		return false, err
	}
	u := newUnion()
	errs := []error{err, s.each(ctx, found, func(ctx context.Context, d int) error { return s.collect(ctx, d, u) })}
	errs = append(errs, u.conflicts()...)
	for _, t := range u.usurpers() {
		errs = append(errs, u.bothHave(t))
	}
	return true, errors.Join(errs...)
}

// A digest stands for the content of a database: see the statement Digest.
type digest struct {
	answered    bool
	content     string
	incarnation int64
}

// digests returns the digests of the databases.
func (s *Store) digests(ctx context.Context) (found [task.Databases]digest, err error) {
	err = s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		g := digest{answered: true}
		err := domainError(sql.Digest.QueryRow(ctx, s.cluster.Pool(d)).Scan(&g.content, &g.incarnation))
		if err != nil {
			s.suspect[d].Store(true)
			return err
		}
		found[d] = g
		return nil
	})
	return found, err
}

func same(found [task.Databases]digest) bool {
	var first *digest
	for d := range found {
		switch {
		case !found[d].answered:
		case first == nil:
			first = &found[d]
		case found[d].content != first.content:
			return false
		}
	}
	return true
}

// trust clears the suspicion of the databases that were compared.
func (s *Store) trust(found [task.Databases]digest) {
	for d := range found {
		if found[d].answered {
			s.suspect[d].Store(false)
			s.trusted[d].Store(found[d].incarnation)
		}
	}
}

// setCompared records that all databases were compared while database 0 had an incarnation.
func (s *Store) setCompared(ctx context.Context, incarnation int64) error {
	return s.change(ctx, 0, func(ctx context.Context, tx pgx.Tx) error {
		_, err := sql.SetCompared.Exec(ctx, tx, incarnation)
		return err
	})
}

// each runs f for the databases that have answered.
func (s *Store) each(ctx context.Context, found [task.Databases]digest, f func(context.Context, int) error) error {
	return s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		if !found[d].answered {
			return nil
		}
		return f(ctx, d)
	})
}

// collect reads one database into u.
func (s *Store) collect(ctx context.Context, d int, u *union) error {
	ctx, cancel := context.WithTimeout(ctx, 5*writeTimeout)
	defer cancel()
	pool := s.cluster.Pool(d)
	for _, read := range []func(context.Context, int, *pgxpool.Pool) error{u.readTenants, u.readDeleted, u.readTokens} {
		if err := read(ctx, d, pool); err != nil {
			return domainError(err)
		}
	}
	return nil
}

// settle ends the conflicts of u and returns them. A tenant whose id belongs to an older one
// gets another id, which database 0 draws.
func (s *Store) settle(ctx context.Context, u *union) error {
	conflicts := u.conflicts()
	for _, t := range u.usurpers() {
		err := u.bothHave(t)
		moved, moveErr := s.move(ctx, t, u.topID)
		if moveErr != nil {
			delete(u.tenants, t.UID)
			conflicts = append(conflicts, errors.Join(err, moveErr))
			continue
		}
		u.tenants[t.UID] = copied{Tenant: moved}
		u.topID = max(u.topID, moved.ID)
		conflicts = append(conflicts, fmt.Errorf("%w: %q, which is younger, is now tenant %d", err, t.Name, moved.ID))
	}
	s.conflicts.Add(int64(len(conflicts)))
	for _, err := range conflicts {
		s.log.WarnContext(ctx, "databases disagree about a tenant: one of them has lost commits", "err", err)
	}
	return errors.Join(conflicts...)
}

// move gives a tenant another id, in database 0, unless it has got one already.
func (s *Store) move(ctx context.Context, t Tenant, topID int32) (moved Tenant, err error) {
	next := t
	next.Version++
	err = s.provisionFree(ctx, &next, func(ctx context.Context, next *Tenant) error {
		return s.change(ctx, 0, func(ctx context.Context, tx pgx.Tx) (err error) {
			next.ID, _, err = reserve(ctx, tx, topID)
			return err
		})
	})
	if err != nil {
		return moved, err
	}
	err = s.change(ctx, 0, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := sql.LockTenants.Exec(ctx, tx, "tenant"); err != nil {
			return err
		}
		rows, err := sql.TenantByUID.Query(ctx, tx, t.UID)
		if err != nil {
			return err
		}
		stored, err := pgx.CollectExactlyOneRow(rows, scanTenant)
		switch {
		case err == nil && stored.ID != t.ID:
			moved = stored
			return nil
		case err != nil && !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		moved = next
		return putTenants(ctx, 0, tx, []Tenant{moved})
	})
	return moved, err
}
