-- name: LockTenants(name text)
-- Tenants are created rarely. One creation at a time keeps the ids dense.
SELECT pg_advisory_xact_lock(hashtext(current_schema() || @name));

-- name: NewTenant(name text, max_params_bytes int4, default_retention_ms int8, history int2, rates jsonb)
INSERT INTO tenant (id, name, max_params_bytes, default_retention_ms, history, rates, created_at, version)
SELECT greatest(coalesce(max(id), 0), (SELECT coalesce(max(g.id), 0) FROM deleted_tenant g)) + 1, @name, @max_params_bytes, @default_retention_ms, @history, @rates, now_ms(), 1 FROM tenant
RETURNING id, created_at, version;

-- name: ChangeTenant(name text, max_params_bytes int4, default_retention_ms int8, history int2, rates jsonb)
-- A NULL parameter leaves its setting unchanged.
UPDATE tenant SET
  max_params_bytes = coalesce(@max_params_bytes, max_params_bytes), default_retention_ms = coalesce(@default_retention_ms, default_retention_ms),
  history = coalesce(@history, history), rates = coalesce(@rates, rates), version = version + 1
 WHERE name = @name
RETURNING id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version;

-- name: LockSettings(lock int4, database int4)
-- Waits for the claims that have read the old settings. Later claims wait for the new
-- settings.
SELECT pg_advisory_xact_lock(@lock, @database) FROM set_config('lock_timeout', '2500ms', true);

-- name: RaiseSettings()
UPDATE settings SET version = version + 1;

-- name: RatesForChange(name text)
SELECT rates FROM tenant WHERE name = @name FOR UPDATE;

-- name: HistoryLevels(usual int2)
-- Tenants whose level is not @usual.
SELECT id, history FROM tenant WHERE history <> @usual;

-- name: PutTenants(
--   ids int4[], names text[], max_params_bytes int4[], default_retentions_ms int8[], created_ats int8[],
--   histories int2[], rates text[], versions int4[])
-- The higher of two versions of a tenant's settings wins.
INSERT INTO tenant AS mine (id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version)
SELECT id, name, params, retention, created, history, rates::jsonb, version
  FROM unnest(@ids, @names, @max_params_bytes, @default_retentions_ms, @created_ats, @histories, @rates, @versions)
    AS u (id, name, params, retention, created, history, rates, version)
 WHERE NOT EXISTS (SELECT FROM deleted_tenant g WHERE g.id = u.id)
ON CONFLICT (id) DO UPDATE SET
  max_params_bytes = excluded.max_params_bytes, default_retention_ms = excluded.default_retention_ms,
  history = excluded.history, rates = excluded.rates, version = excluded.version
WHERE mine.name = excluded.name AND mine.version < excluded.version;

-- name: DropTenant(tenant int4)
-- Deletes a tenant with its API tokens, its token buckets and the state of its caps.
WITH gone AS (INSERT INTO deleted_tenant (id, deleted_at) VALUES (@tenant, now_ms()) ON CONFLICT DO NOTHING),
tokens AS (DELETE FROM token WHERE tenant_id = @tenant),
buckets AS (DELETE FROM token_bucket WHERE tenant_id = @tenant),
cap_leases AS (DELETE FROM cap_lease WHERE tenant_id = @tenant),
cap_fences AS (DELETE FROM cap_fence WHERE tenant_id = @tenant),
capped AS (DELETE FROM capped_run WHERE tenant_id = @tenant)
DELETE FROM tenant WHERE id = @tenant;

-- name: TenantDeleted(tenant int4)
SELECT EXISTS (SELECT FROM deleted_tenant WHERE id = @tenant);

-- name: TenantByName(name text)
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version FROM tenant WHERE name = @name;

-- name: TenantByID(id int4)
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version FROM tenant WHERE id = @id;

-- name: TenantsAfter(after_name text, max_rows int8)
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version FROM tenant
WHERE name COLLATE "C" > @after_name ORDER BY name COLLATE "C" LIMIT @max_rows;

-- name: TenantsAfterID(after_id int4, max_rows int8)
SELECT id, name, max_params_bytes, default_retention_ms, created_at, history, rates, version FROM tenant
WHERE id > @after_id ORDER BY id LIMIT @max_rows;

-- name: Digest()
-- Returns a value that is equal in two databases if they have the same tenants and tokens.
SELECT coalesce((SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM tenant t), '')
    || coalesce((SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM token t), '');
