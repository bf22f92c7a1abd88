-- name: LockTenants
-- Creations are few: one at a time keeps the ids dense.
SELECT pg_advisory_xact_lock(hashtext(current_schema() || $1::text));

-- name: NewTenant
INSERT INTO tenant (id, name, max_params_bytes, default_retention_ms, history, rates, created_at, version)
SELECT greatest(coalesce(max(id), 0), (SELECT coalesce(max(g.id), 0) FROM tenant_gone g)) + 1, $1::text, $2::int4, $3::int8, $4::int2, $5::jsonb, now_ms(), 1 FROM tenant
RETURNING id, created_at, version;

-- name: ChangeTenant
-- $1 name; NULL leaves a setting as it is: $2 max_params_bytes, $3 default_retention_ms, $4 history, $5 rates
UPDATE tenant SET
  max_params_bytes = coalesce($2::int4, max_params_bytes), default_retention_ms = coalesce($3::int8, default_retention_ms),
  history = coalesce($4::int2, history), rates = coalesce($5::jsonb, rates), version = version + 1
 WHERE name = $1
RETURNING id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version;

-- name: LockSettings
-- Waits for the claims that go by the old settings; those that come wait for the
-- new ones. $1 number of the lock, $2 number of the database
SELECT pg_advisory_xact_lock($1::int4, $2::int4) FROM set_config('lock_timeout', '2500ms', true);

-- name: RaiseSettings
UPDATE settings SET version = version + $1::int4;

-- name: RatesForChange
SELECT rates FROM tenant WHERE name = $1 FOR UPDATE;

-- name: HistoryLevels
-- Tenants that have another level than $1
SELECT id, history FROM tenant WHERE history <> $1;

-- name: PutTenants
-- Of two versions of a tenant's settings the higher one counts.
INSERT INTO tenant AS mine (id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version)
SELECT id, name, params, retention, created, history, rates::jsonb, version
  FROM unnest($1::int4[], $2::text[], $3::int4[], $4::int8[], $5::int8[], $6::int2[], $7::text[], $8::int4[])
    AS u (id, name, params, retention, created, history, rates, version)
 WHERE NOT EXISTS (SELECT FROM tenant_gone g WHERE g.id = u.id)
ON CONFLICT (id) DO UPDATE SET
  max_params_bytes = excluded.max_params_bytes, default_retention_ms = excluded.default_retention_ms,
  history = excluded.history, rates = excluded.rates, version = excluded.version
WHERE mine.name = excluded.name AND mine.version < excluded.version;

-- name: DropTenant
-- With its tokens, and what it has used of its rates and caps. $1 tenant
WITH gone AS (INSERT INTO tenant_gone (id, gone_at) VALUES ($1, now_ms()) ON CONFLICT DO NOTHING),
tokens AS (DELETE FROM token WHERE tenant_id = $1),
turns AS (DELETE FROM turn WHERE tenant_id = $1),
cap_turns AS (DELETE FROM cap_turn WHERE tenant_id = $1),
cap_fences AS (DELETE FROM cap_fence WHERE tenant_id = $1),
capped AS (DELETE FROM capped_run WHERE tenant_id = $1)
DELETE FROM tenant WHERE id = $1;

-- name: TenantByName
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version FROM tenant WHERE name = $1;

-- name: TenantByID
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version FROM tenant WHERE id = $1;

-- name: TenantsAfter
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version FROM tenant
WHERE name COLLATE "C" > $1::text ORDER BY name COLLATE "C" LIMIT $2;

-- name: TenantsAfterID
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version FROM tenant
WHERE id > $1 ORDER BY id LIMIT $2;

-- name: Digest
-- Equal in two databases when they have the same tenants and tokens.
SELECT coalesce((SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM tenant t), '')
    || coalesce((SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM token t WHERE id <> $1::text), '');
