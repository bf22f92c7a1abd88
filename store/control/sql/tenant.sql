-- name: LockTenants
-- Creations are few: one at a time keeps the ids dense.
SELECT pg_advisory_xact_lock(hashtext(current_schema() || $1::text));

-- name: NewTenant
INSERT INTO tenant (id, name, max_params_bytes, default_retention_ms, created_at)
SELECT coalesce(max(id), 0) + 1, $1::text, $2::int4, $3::int8, now_ms() FROM tenant
RETURNING id, created_at;

-- name: PutTenants
INSERT INTO tenant (id, name, max_params_bytes, default_retention_ms, created_at)
SELECT * FROM unnest($1::int4[], $2::text[], $3::int4[], $4::int8[], $5::int8[])
ON CONFLICT (id) DO NOTHING;

-- name: TenantByName
SELECT id, name, max_params_bytes, default_retention_ms, created_at FROM tenant WHERE name = $1;

-- name: TenantByID
SELECT id, name, max_params_bytes, default_retention_ms, created_at FROM tenant WHERE id = $1;

-- name: TenantsAfter
SELECT id, name, max_params_bytes, default_retention_ms, created_at FROM tenant
WHERE name COLLATE "C" > $1::text ORDER BY name COLLATE "C" LIMIT $2;

-- name: TenantsAfterID
SELECT id, name, max_params_bytes, default_retention_ms, created_at FROM tenant
WHERE id > $1 ORDER BY id LIMIT $2;

-- name: Digest
-- Equal in two databases when they have the same tenants and tokens.
SELECT coalesce((SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM tenant t), '')
    || coalesce((SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM token t WHERE id <> $1::text), '');
