package control

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/control/sql"
)

// copied is a copy of a tenant.
type copied struct {
	Tenant
	database int
	// differs says where another copy has the same version and other settings; nil: nowhere.
	differs error
}

// union is the union of the rows of all databases.
type union struct {
	mu      sync.Mutex
	tenants map[string]copied // by UID: the newest copies
	deleted map[int32]*string // the UIDs by ID; nil if no database knows it
	tokens  map[string]storedToken
	topID   int32
	// byID has the oldest tenant of each ID; usurpers fills it.
	byID map[int32]Tenant
}

func newUnion() *union {
	return &union{tenants: map[string]copied{}, deleted: map[int32]*string{}, tokens: map[string]storedToken{}}
}

func (u *union) readTenants(ctx context.Context, d int, pool *pgxpool.Pool) error {
	for after := int32(0); ; {
		rows, err := sql.TenantsAfterID.Query(ctx, pool, after, syncPage)
		if err != nil {
			return err
		}
		page, err := pgx.CollectRows(rows, scanTenant)
		if err != nil {
			return err
		}
		u.addTenants(d, page)
		if len(page) < syncPage {
			return nil
		}
		after = page[len(page)-1].ID
	}
}

// addTenants adds a page. Of two copies with the same version the one of the lower database
// stays: database 0 decides.
func (u *union) addTenants(d int, page []Tenant) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range page {
		u.topID = max(u.topID, t.ID)
		c, known := u.tenants[t.UID]
		switch {
		case !known || c.Version < t.Version:
			c = copied{Tenant: t, database: d}
		case c.Version == t.Version && !reflect.DeepEqual(c.Tenant, t):
			low, high := min(c.database, d), max(c.database, d)
			if d == low {
				c.Tenant = t
			}
			c.database = low
			c.differs = fmt.Errorf("tenant %d is %q in database %d, and has other settings of the same version in database %d: the former are taken", c.ID, c.Name, low, high)
		}
		u.tenants[t.UID] = c
	}
}

func (u *union) readDeleted(ctx context.Context, _ int, pool *pgxpool.Pool) error {
	for after := int32(0); ; {
		rows, err := sql.Deleted.Query(ctx, pool, after, syncPage)
		if err != nil {
			return err
		}
		n := 0
		var uid *string
		_, err = pgx.ForEachRow(rows, []any{&after, &uid}, func() error {
			n++
			u.addDeleted(after, uid)
			return nil
		})
		if err != nil || n < syncPage {
			return err
		}
	}
}

func (u *union) addDeleted(id int32, uid *string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.topID = max(u.topID, id)
	if known, ok := u.deleted[id]; !ok || known == nil {
		u.deleted[id] = uid
	}
}

func (u *union) readTokens(ctx context.Context, _ int, pool *pgxpool.Pool) error {
	for after := ""; ; {
		page, err := tokensAfter(ctx, pool, "", after, syncPage)
		if err != nil {
			return err
		}
		u.addTokens(page)
		if len(page) < syncPage {
			return nil
		}
		after = page[len(page)-1].ID
	}
}

func (u *union) addTokens(page []storedToken) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range page {
		if other, ok := u.tokens[t.ID]; ok {
			t.revoked = nullable(min(instant(t.revoked), instant(other.revoked)))
		}
		u.tokens[t.ID] = t
	}
}

// conflicts removes the deleted tenants, and gives settings that differ under one version a
// new one, so that they reach all databases. It returns those differences.
func (u *union) conflicts() (found []error) {
	for uid, c := range u.tenants {
		if _, gone := u.deleted[c.ID]; gone {
			delete(u.tenants, uid)
			continue
		}
		if c.differs != nil {
			found = append(found, c.differs)
			c.Version++
			u.tenants[uid] = c
		}
	}
	return found
}

// usurpers returns the tenants whose ID belongs to an older one.
func (u *union) usurpers() (found []Tenant) {
	u.byID = map[int32]Tenant{}
	for _, t := range u.inOrder() {
		if _, taken := u.byID[t.ID]; taken {
			found = append(found, t)
			continue
		}
		u.byID[t.ID] = t
	}
	return found
}

// bothHave says that a tenant has the ID of an older one.
func (u *union) bothHave(t Tenant) error {
	return fmt.Errorf("tenant %d is both %q and %q", t.ID, u.byID[t.ID].Name, t.Name)
}

// inOrder returns the tenants by ID and age.
func (u *union) inOrder() []Tenant {
	all := make([]Tenant, 0, len(u.tenants))
	for _, c := range u.tenants {
		all = append(all, c.Tenant)
	}
	slices.SortFunc(all, func(a, b Tenant) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.UID, b.UID))
	})
	return all
}

// put writes all of u into one database. Rows are written in one order, so that two
// processes that do this do not deadlock.
func (u *union) put(ctx context.Context, d int, tx pgx.Tx) error {
	if err := raiseSettings(ctx, tx, d); err != nil {
		return err
	}
	ids := slices.Sorted(maps.Keys(u.deleted))
	uids := make([]*string, len(ids))
	for i, id := range ids {
		uids[i] = u.deleted[id]
	}
	if _, err := sql.PutDeleted.Exec(ctx, tx, ids, uids); err != nil {
		return err
	}
	if err := dropRevived(ctx, tx); err != nil {
		return err
	}
	tenants := u.inOrder()
	if err := removeUsurpers(ctx, tx, tenants); err != nil {
		return err
	}
	if err := putTenants(ctx, d, tx, tenants); err != nil {
		return err
	}
	return putTokens(ctx, tx, slices.SortedFunc(maps.Values(u.tokens), func(a, b storedToken) int { return cmp.Compare(a.ID, b.ID) }))
}

// removeUsurpers removes the tenants of a database that have the id of one of the tenants.
func removeUsurpers(ctx context.Context, tx pgx.Tx, tenants []Tenant) error {
	ids, uids := make([]int32, len(tenants)), make([]string, len(tenants))
	for i, t := range tenants {
		ids[i], uids[i] = t.ID, t.UID
	}
	_, err := sql.RemoveUsurpers.Exec(ctx, tx, ids, uids)
	return err
}
