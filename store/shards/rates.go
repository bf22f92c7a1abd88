package shards

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// settingsLock is the number of the advisory lock of tenants' settings. Claims share it
// until they end; package control acquires it exclusively to change a tenant.
const settingsLock = 7031

// flowSettings are the settings that need claims other than plain foreground claims.
var flowSettings = []string{"dispatch_rate", "weight", "paused", "paused_kinds", "kind_caps"}

// Settings returns the settings in database d of the tenants that have any of
// flowSettings.
func (s *Store) Settings(ctx context.Context, d int) (task.Settings, error) {
	settings := task.Settings{Rates: map[int32]task.Rates{}}
	rows, err := sql.SettingsRead.Query(ctx, s.db.Pool(d), flowSettings)
	if err != nil {
		return task.Settings{}, fmt.Errorf("read settings: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id *int32
		var r *task.Rates
		if err := rows.Scan(&settings.Version, &id, &r); err != nil {
			return task.Settings{}, fmt.Errorf("read settings: %w", err)
		}
		if id != nil && r != nil {
			settings.Rates[*id] = *r
		}
	}
	return settings, rows.Err()
}

// claimTokens is the purpose of the tokens of dispatch rates. The other purposes are quotas.
const claimTokens int16 = 1

// TakeTokens first returns unused tokens, and then takes tokens of tenants with a dispatch rate
// whose home database is d, each tenant at most once. It returns the grants in the order of the
// requests. A tenant without a rate gets all that it wants.
func (s *Store) TakeTokens(ctx context.Context, d int, requests []task.TokenRequest) ([]task.Tokens, error) {
	pool := s.db.Pool(d)
	granted, missing, err := s.takeDispatchTokens(ctx, pool, requests)
	if err == nil && len(missing) > 0 {
		if _, err = sql.TokensMake.Exec(ctx, pool, missing, claimTokens); err == nil {
			var again []task.TokenRequest
			for _, q := range requests {
				if slices.Contains(missing, q.Tenant) {
					again = append(again, q)
				}
			}
			var made map[int32]task.Tokens
			made, _, err = s.takeDispatchTokens(ctx, pool, again)
			maps.Copy(granted, made)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("take tokens: %w", err)
	}
	grants := make([]task.Tokens, len(requests))
	for i, q := range requests {
		grant, ok := granted[q.Tenant]
		if !ok { // it has a bucket, so it has no rate
			grant.Granted = q.Want
		}
		grants[i] = grant
	}
	return grants, nil
}

// takeDispatchTokens takes tokens of the tenants that have a bucket and a rate, and returns which
// ones have not both.
func (s *Store) takeDispatchTokens(ctx context.Context, pool *pgxpool.Pool, requests []task.TokenRequest) (granted map[int32]task.Tokens, missing []int32, err error) {
	tenants, wanted, unused := make([]int32, len(requests)), make([]int64, len(requests)), make([]int64, len(requests))
	for i, q := range requests {
		tenants[i], wanted[i], unused[i] = q.Tenant, int64(q.Want), int64(q.Unused)
	}
	rows, err := sql.TokensTake.Query(ctx, pool, tenants, claimTokens, wanted, unused)
	if err != nil {
		return nil, nil, err
	}
	granted = make(map[int32]task.Tokens, len(requests))
	var tenant int32
	var t task.Tokens
	_, err = pgx.ForEachRow(rows, []any{&tenant, &t.Granted, &t.Wait}, func() error {
		granted[tenant] = t
		return nil
	})
	for _, tenant := range tenants {
		if _, ok := granted[tenant]; !ok {
			missing = append(missing, tenant)
		}
	}
	return granted, missing, err
}

// TakeQuota first returns unused tokens of a rate of the calls of a tenant, and then takes up to
// want of them. It leaves keep tokens.
func (s *Store) TakeQuota(ctx context.Context, tenant int32, q task.Quota, rate int64, want, keep, unused int) (task.Tokens, error) {
	pool := s.db.Pool(kernel.Home(tenant))
	for range 2 {
		var t task.Tokens
		err := sql.QuotaTake.QueryRow(ctx, pool, tenant, int16(q), want, keep, unused, float64(rate), float64(q.Burst(rate))).Scan(&t.Granted, &t.Wait)
		if !errors.Is(err, pgx.ErrNoRows) {
			if err != nil {
				return task.Tokens{}, fmt.Errorf("take tokens: %w", err)
			}
			return t, nil
		}
		if _, err := sql.TokensMake.Exec(ctx, pool, []int32{tenant}, int16(q)); err != nil {
			return task.Tokens{}, fmt.Errorf("take tokens: %w", err)
		}
	}
	return task.Tokens{Granted: want}, nil
}

// QuotasUsed returns how long the rates of a tenant need to make up for what its calls have
// used. That is a second if all of a rate was used within the last second.
func (s *Store) QuotasUsed(ctx context.Context, tenant int32) (map[task.Quota]time.Duration, error) {
	rows, err := sql.QuotasUsed.Query(ctx, s.db.Pool(kernel.Home(tenant)), tenant)
	if err != nil {
		return nil, kernel.Unavailable(fmt.Errorf("read used quotas: %w", err))
	}
	used := map[task.Quota]time.Duration{}
	var q int16
	var us int64
	if _, err := pgx.ForEachRow(rows, []any{&q, &us}, func() error {
		used[task.Quota(q)] = time.Duration(us) * time.Microsecond
		return nil
	}); err != nil {
		return nil, kernel.Unavailable(fmt.Errorf("read used quotas: %w", err))
	}
	return used, nil
}

// flowArgs spreads the flows of a claim over the arrays of ClaimFlows.
func flowArgs(req *task.ClaimRequest) []any {
	n := len(req.Flows)
	tenants, kinds := make([]int32, n), make([]string, n)
	quotas, lows, sinces := make([]int64, n), make([]int64, n), make([]int64, n)
	for i, l := range req.Flows {
		tenants[i], kinds[i], quotas[i] = l.Tenant, l.Kind, int64(l.Rows)
		lows[i], sinces[i] = int64(l.Low), int64(l.WaitingSince)
	}
	outTenants, outKinds := make([]int32, len(req.ExcludedKinds)), make([]string, len(req.ExcludedKinds))
	for i, k := range req.ExcludedKinds {
		outTenants[i], outKinds[i] = k.Tenant, k.Kind
	}
	return []any{tenants, kinds, quotas, lows, sinces, outTenants, outKinds}
}

// lowest returns the lowest bound of the flows.
func lowest(flows []task.Flow) int64 {
	low := task.Never
	for _, l := range flows {
		low = min(low, l.Low)
	}
	return int64(low)
}

// flowOf returns the index of the flow to which a claimed row belongs, or -1.
func (c *claiming) flowOf(tenant int32, kind string) int {
	if c.flows == nil {
		c.flows = make(map[task.TenantKind]int, len(c.req.Flows))
		for i, l := range c.req.Flows {
			c.flows[l.TenantKind] = i
		}
	}
	if own, ok := c.flows[task.TenantKind{Tenant: tenant, Kind: kind}]; ok {
		return own
	}
	if own, ok := c.flows[task.TenantKind{Tenant: tenant}]; ok {
		return own
	}
	return -1
}

// waitingSince returns since when rows of a kind wait for tokens in this claim, or 0 if
// they do not wait.
func (c *claiming) waitingSince(tenant int32, kind string) task.Instant {
	if i := c.flowOf(tenant, kind); i >= 0 {
		return c.req.Flows[i].WaitingSince
	}
	return 0
}

// Replay answers a request that was stored before. If it was not, known is false and
// nothing is changed. Replay fails as Add does for a repeated RequestID or Key. An upsert
// changes the living task of its key.
func (s *Store) Replay(ctx context.Context, req task.AddRequest) (result task.AddResult, known bool, err error) {
	if req.Key != "" {
		return s.replayKeyed(ctx, req)
	}
	if req.RequestID == "" {
		return task.AddResult{}, false, nil
	}
	a := &adding{req: req, home: task.ShardOf(req.RequestID), key: req.RequestID}
	switch err := s.lookUp(ctx, a); {
	case errors.Is(err, pgx.ErrNoRows):
		return task.AddResult{}, false, nil
	case err != nil:
		return task.AddResult{}, false, kernel.Unavailable(err)
	}
	return a.result, true, nil
}

// lookUp answers a repeated request outside a group.
func (s *Store) lookUp(ctx context.Context, a *adding) error {
	db := s.dbs[a.home.Database()]
	ctx, leave, err := db.enter(ctx, a.req.Tenant)
	if err != nil {
		return err
	}
	defer leave()
	return db.replay(ctx, a)
}
