-- name: LockTenants
-- Creations are few: one at a time keeps the ids dense.
SELECT pg_advisory_xact_lock(hashtext(current_schema() || $1::text));

-- name: NewTenant
INSERT INTO tenant (id, name, max_params_bytes, default_retention_ms, history, created_at, version)
SELECT coalesce(max(id), 0) + 1, $1::text, $2::int4, $3::int8, $4::int2, now_ms(), 1 FROM tenant
RETURNING id, created_at, version;

-- name: ChangeTenant
-- $1 name; NULL leaves a setting as it is: $2 max_params_bytes, $3 default_retention_ms, $4 history
UPDATE tenant SET
  max_params_bytes = coalesce($2::int4, max_params_bytes), default_retention_ms = coalesce($3::int8, default_retention_ms),
  history = coalesce($4::int2, history), version = version + 1
 WHERE name = $1
RETURNING id, name, max_params_bytes, default_retention_ms, created_at, history, version;

-- name: HistoryLevels
-- Tenants that have another level than $1
SELECT id, history FROM tenant WHERE history <> $1;

-- name: PutTenants
-- Of two versions of a tenant's settings the higher one counts.
INSERT INTO tenant AS mine (id, name, max_params_bytes, default_retention_ms, created_at, history, version)
SELECT * FROM unnest($1::int4[], $2::text[], $3::int4[], $4::int8[], $5::int8[], $6::int2[], $7::int4[])
ON CONFLICT (id) DO UPDATE SET
  max_params_bytes = excluded.max_params_bytes, default_retention_ms = excluded.default_retention_ms,
  history = excluded.history, version = excluded.version
WHERE mine.name = excluded.name AND mine.version < excluded.version;

-- name: TenantByName
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, version FROM tenant WHERE name = $1;

-- name: TenantByID
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, version FROM tenant WHERE id = $1;

-- name: TenantsAfter
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, version FROM tenant
WHERE name COLLATE "C" > $1::text ORDER BY name COLLATE "C" LIMIT $2;

-- name: TenantsAfterID
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, version FROM tenant
WHERE id > $1 ORDER BY id LIMIT $2;

-- name: Digest
-- Equal in two databases when they have the same tenants and tokens.
SELECT coalesce((SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM tenant t), '')
    || coalesce((SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM token t WHERE id <> $1::text), '');
