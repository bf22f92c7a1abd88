package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/control/sql"
	"github.com/perceptor/perceptor/task"
)

// Run calls [Store.Sync] at once and then every 30 s, until ctx is cancelled. Then it
// returns nil. It logs the first failure and the recovery.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	failing := false
	for {
		err := s.Sync(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			s.log.WarnContext(ctx, "tenants and tokens differ between databases; trying again", "err", err)
		case err == nil && failing:
			s.log.InfoContext(ctx, "tenants and tokens agree in all databases again")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Sync compares the reachable databases and copies rows to those that lack them. The error
// names the databases that could not be read or written; Sync still updates the others. It
// may run in many processes at once.
func (s *Store) Sync(ctx context.Context) error {
	digests, readErr := s.digests(ctx)
	if same(digests) {
		s.trust(digests)
		return readErr
	}
	u := &union{tenants: map[int32]Tenant{}, tokens: map[string]storedToken{}}
	collectErr := s.each(ctx, digests, func(ctx context.Context, d int) error { return s.collect(ctx, d, u) })
	putErr := s.each(ctx, digests, func(ctx context.Context, d int) error {
		return s.change(ctx, d, func(ctx context.Context, tx pgx.Tx) error { return u.put(ctx, d, tx) })
	})
	if err := errors.Join(collectErr, putErr); err != nil {
		return errors.Join(readErr, err)
	}
	s.trust(digests)
	return errors.Join(readErr, u.conflict)
}

// digests returns the digests of the databases. "" means that the database did not answer.
func (s *Store) digests(ctx context.Context) (digests [task.Databases]string, err error) {
	err = s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		var digest string
		err := domainError(sql.Digest.QueryRow(ctx, s.cluster.Pool(d)).Scan(&digest))
		if err != nil {
			s.suspect[d].Store(true)
			return err
		}
		digests[d] = "=" + digest
		return nil
	})
	return digests, err
}

func same(digests [task.Databases]string) bool {
	first := ""
	for _, d := range digests {
		switch {
		case d == "":
		case first == "":
			first = d
		case d != first:
			return false
		}
	}
	return true
}

// trust clears the suspicion of the databases that were compared.
func (s *Store) trust(digests [task.Databases]string) {
	for d := range digests {
		if digests[d] != "" {
			s.suspect[d].Store(false)
		}
	}
}

// each runs f for the databases that have answered.
func (s *Store) each(ctx context.Context, digests [task.Databases]string, f func(context.Context, int) error) error {
	return s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		if digests[d] == "" {
			return nil
		}
		return f(ctx, d)
	})
}

// union is the union of the rows of all databases.
type union struct {
	mu       sync.Mutex
	tenants  map[int32]Tenant
	tokens   map[string]storedToken
	conflict error
}

// collect reads one database into u.
func (s *Store) collect(ctx context.Context, d int, u *union) error {
	ctx, cancel := context.WithTimeout(ctx, 5*writeTimeout)
	defer cancel()
	pool := s.cluster.Pool(d)
	for after := int32(0); ; {
		rows, err := sql.TenantsAfterID.Query(ctx, pool, after, syncPage)
		if err != nil {
			return domainError(err)
		}
		page, err := pgx.CollectRows(rows, scanTenant)
		if err != nil {
			return domainError(err)
		}
		u.addTenants(d, page)
		if len(page) < syncPage {
			break
		}
		after = page[len(page)-1].ID
	}
	for after := ""; ; {
		page, err := tokensAfter(ctx, pool, "", after, syncPage)
		if err != nil {
			return domainError(err)
		}
		u.addTokens(page)
		if len(page) < syncPage {
			return nil
		}
		after = page[len(page)-1].ID
	}
}

// addTenants adds a page. Two tenants with one id can only come from a database
// that was restored from an old copy: the name that is there first stays, and a
// person has to look.
func (u *union) addTenants(d int, page []Tenant) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range page {
		if other, ok := u.tenants[t.ID]; ok && other.Name != t.Name {
			u.conflict = errors.Join(u.conflict, fmt.Errorf("tenant %d is %q in database %d and %q in another", t.ID, t.Name, d, other.Name))
			continue
		} else if ok && other.Version > t.Version {
			continue
		}
		u.tenants[t.ID] = t
	}
}

func (u *union) addTokens(page []storedToken) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range page {
		if other, ok := u.tokens[t.ID]; ok {
			t.RevokedAt = min(t.RevokedAt, other.RevokedAt)
		}
		u.tokens[t.ID] = t
	}
}

// put writes all of u into one database.
func (u *union) put(ctx context.Context, d int, tx pgx.Tx) error {
	// In one order, so that two processes that do this do not deadlock.
	tenants := slices.SortedFunc(maps.Values(u.tenants), func(a, b Tenant) int { return cmp.Compare(a.ID, b.ID) })
	tokens := slices.SortedFunc(maps.Values(u.tokens), func(a, b storedToken) int { return cmp.Compare(a.ID, b.ID) })
	if err := putTenants(ctx, d, tx, tenants); err != nil {
		return err
	}
	return putTokens(ctx, tx, tokens)
}
