-- Tenants: their copies in one database.

-- fragment: tenant_columns
t.id, t.uid::text, t.name, t.max_params_bytes, t.default_retention_ms, t.created_at, t.history, t.rates, t.keys, t.version

-- name: LockTenants(name text)
-- Tenants are created rarely. One creation at a time keeps the ids dense.
SELECT pg_advisory_xact_lock(hashtext(current_schema() || @name));

-- name: Compared()
-- Returns whether the tenants of this database were compared with all copies since it may
-- have lost some, and its incarnation.
SELECT s.compared = i.incarnation, i.incarnation FROM settings s, database_identity i;

-- name: SetCompared(incarnation int8)
UPDATE settings SET compared = @incarnation WHERE compared < @incarnation;

-- name: TopTenant()
-- Returns the greatest id of a tenant that this database knows.
SELECT greatest((SELECT coalesce(max(x.id), 0) FROM tenant x), (SELECT coalesce(max(g.id), 0) FROM deleted_tenant g));

-- name: ReserveTenant(known_id int4)
-- Returns an id and a uid for a new tenant. No other tenant gets the id, whatever becomes of
-- this one.
UPDATE settings s SET tenant_floor = {{next_id}} RETURNING s.tenant_floor, gen_random_uuid()::text;

-- name: NewTenant(id int4, uid text, name text, max_params_bytes int4, default_retention_ms int8, history int2, rates jsonb, keys jsonb)
INSERT INTO tenant AS t (id, uid, name, max_params_bytes, default_retention_ms, history, rates, keys, created_at, version)
SELECT @id, @uid::uuid, @name, @max_params_bytes, @default_retention_ms, @history, @rates, @keys, now_ms(), 1
RETURNING t.created_at, t.version;

-- fragment: next_id
-- Greater than all ids that this database and the others have seen.
greatest((SELECT coalesce(max(x.id), 0) FROM tenant x), (SELECT coalesce(max(g.id), 0) FROM deleted_tenant g), s.tenant_floor, @known_id) + 1

-- name: ChangeTenant(name text, max_params_bytes int4, default_retention_ms int8, history int2, rates jsonb, keys jsonb)
-- A NULL parameter leaves its setting unchanged. After an adoption of the database versions
-- go on from its incarnation, which is greater than every version that may be lost.
UPDATE tenant t SET
  max_params_bytes = coalesce(@max_params_bytes, max_params_bytes), default_retention_ms = coalesce(@default_retention_ms, default_retention_ms),
  history = coalesce(@history, history), rates = coalesce(@rates, rates), keys = coalesce(@keys, keys),
  version = greatest(version + 1, (SELECT i.incarnation FROM database_identity i))
 WHERE name = @name
RETURNING {{tenant_columns}};

-- name: LockSettings(lock int4, database int4)
-- Waits for the claims that have read the old settings. Later claims wait for the new
-- settings.
SELECT pg_advisory_xact_lock(@lock, @database) FROM set_config('lock_timeout', '2500ms', true);

-- name: RaiseSettings()
UPDATE settings SET version = version + 1;

-- name: RatesForChange(name text)
SELECT rates FROM tenant WHERE name = @name FOR UPDATE;

-- name: KeysForChange(name text)
SELECT keys, now_ms() FROM tenant WHERE name = @name FOR UPDATE;

-- name: EndedKeys()
-- Returns keys that have ended, with their tenants.
SELECT t.name, (k->>'id')::int4 FROM tenant t, jsonb_array_elements(t.keys) k
WHERE jsonb_array_length(t.keys) > 1 AND (k->>'end')::int8 <= now_ms() ORDER BY t.id LIMIT 100;

-- name: DeletingTenants(max_rows int8)
-- Some of the tenants that are being deleted. They are drawn, so that none waits behind others whose deletion takes long.
SELECT t.id FROM tenant t WHERE t.rates @> '{"deleting": true}' ORDER BY random() LIMIT @max_rows;

-- name: TenantVersions(ids int4[])
SELECT t.id, t.version, now_ms() FROM tenant t WHERE t.id = ANY(@ids);

-- name: HistoryPolicies(usual int2)
-- Tenants whose level is not @usual, or that have bounds of their own, with those.
SELECT id, history, coalesce((rates->>'history_slow_ms')::int8, 0), coalesce((rates->>'history_sample')::int4, 0)
  FROM tenant WHERE history <> @usual OR rates ? 'history_slow_ms' OR rates ? 'history_sample';

-- name: PutTenants(
--   ids int4[], uids text[], names text[], max_params_bytes int4[], default_retentions_ms int8[], created_ats int8[],
--   histories int2[], rates text[], keys text[], versions int8[])
-- The higher of two versions of a tenant's settings wins.
INSERT INTO tenant AS mine (id, uid, name, max_params_bytes, default_retention_ms, created_at, history, rates, keys, version)
SELECT id, uid::uuid, name, params, retention, created, history, rates::jsonb, keys::jsonb, version
  FROM unnest(@ids, @uids, @names, @max_params_bytes, @default_retentions_ms, @created_ats, @histories, @rates, @keys, @versions)
    AS u (id, uid, name, params, retention, created, history, rates, keys, version)
 WHERE NOT EXISTS (SELECT FROM deleted_tenant g WHERE g.id = u.id)
ON CONFLICT (uid) DO UPDATE SET
  id = excluded.id, name = excluded.name, max_params_bytes = excluded.max_params_bytes,
  default_retention_ms = excluded.default_retention_ms, history = excluded.history, rates = excluded.rates, keys = excluded.keys,
  version = excluded.version
WHERE mine.version < excluded.version;

-- name: RemoveUsurpers(ids int4[], uids text[])
-- Removes tenants that have the id of another tenant. They come back under their own ids.
DELETE FROM tenant t USING unnest(@ids, @uids) AS u (id, uid) WHERE t.id = u.id AND t.uid <> u.uid::uuid;

-- name: PutDeleted(ids int4[], uids text[])
-- Records deletions that this database has missed or lost.
INSERT INTO deleted_tenant AS g (id, deleted_at, uid)
SELECT u.id, now_ms(), u.uid::uuid FROM unnest(@ids, @uids) AS u (id, uid)
ON CONFLICT (id) DO UPDATE SET uid = coalesce(g.uid, excluded.uid);

-- name: Deleted(after_id int4, max_rows int8)
SELECT g.id, g.uid::text FROM deleted_tenant g WHERE g.id > @after_id ORDER BY g.id LIMIT @max_rows;

-- name: RevivedTenants()
-- Tenants that were deleted, and that this database has again because it was restored.
SELECT t.id FROM tenant t JOIN deleted_tenant g ON g.id = t.id ORDER BY t.id;

-- name: DeleteAgain(tenant int4, action int2)
-- Begins to delete the tasks of a revived tenant in this database.
INSERT INTO bulk_operation (tenant_id, id, action, terms, body_hash, created_at, replicated_version)
VALUES (@tenant, 1, @action, '{}', '', now_ms(), 1)
ON CONFLICT (tenant_id, id) DO UPDATE SET state = 1, finished_at = NULL, position = '', next_at = 0;

-- name: DropTenant(tenant int4)
-- Deletes a tenant with its API tokens, its token buckets and the state of its caps.
WITH lost AS (INSERT INTO deleted_tenant AS g (id, deleted_at, uid) VALUES (@tenant, now_ms(), (SELECT t.uid FROM tenant t WHERE t.id = @tenant))
              ON CONFLICT (id) DO UPDATE SET uid = coalesce(g.uid, excluded.uid)),
tokens AS (DELETE FROM token WHERE tenant_uid = (SELECT t.uid FROM tenant t WHERE t.id = @tenant)),
buckets AS (DELETE FROM token_bucket WHERE tenant_id = @tenant),
cap_leases AS (DELETE FROM cap_lease WHERE tenant_id = @tenant),
cap_fences AS (DELETE FROM cap_fence WHERE tenant_id = @tenant),
capped AS (DELETE FROM capped_run WHERE tenant_id = @tenant)
DELETE FROM tenant WHERE id = @tenant;

-- name: TenantDeleted(tenant int4)
SELECT EXISTS (SELECT FROM deleted_tenant WHERE id = @tenant);

-- name: TenantByName(name text)
SELECT {{tenant_columns}}, now_ms() FROM tenant t WHERE name = @name;

-- name: TenantByID(id int4)
SELECT {{tenant_columns}}, now_ms() FROM tenant t WHERE id = @id;

-- name: TenantByUID(uid text)
SELECT {{tenant_columns}} FROM tenant t WHERE t.uid = @uid::uuid;

-- name: TenantsAfter(after_name text, max_rows int8)
SELECT {{tenant_columns}} FROM tenant t
WHERE name COLLATE "C" > @after_name ORDER BY name COLLATE "C" LIMIT @max_rows;

-- name: TenantsAfterID(after_id int4, max_rows int8)
SELECT {{tenant_columns}} FROM tenant t
WHERE id > @after_id ORDER BY id LIMIT @max_rows;

-- name: Digest()
-- Returns a value that is equal in two databases if they have the same tenants, deleted
-- tenants and tokens, and the incarnation.
SELECT coalesce((SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM tenant t), '')
    || coalesce((SELECT md5(string_agg(g.id || ' ' || coalesce(g.uid::text, ''), ',' ORDER BY id)) FROM deleted_tenant g), '')
    || coalesce((SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM token t), ''),
       (SELECT i.incarnation FROM database_identity i);
