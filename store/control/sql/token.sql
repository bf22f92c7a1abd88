-- name: NewToken(id text, secret_hash bytea, scope int2, tenant_name text, description text, expires_at int8)
-- Returns no row if the tenant does not exist or if the expiry has passed.
WITH owner AS (SELECT uid FROM tenant WHERE name = @tenant_name)
INSERT INTO token (id, secret_hash, scope, tenant_uid, description, created_at, expires_at)
SELECT @id, @secret_hash, @scope, (SELECT uid FROM owner), @description, now_ms(), @expires_at
WHERE (@scope = {{scope.ADMIN}} OR EXISTS (SELECT FROM owner)) AND (@expires_at IS NULL OR @expires_at > now_ms())
RETURNING tenant_uid::text, created_at;

-- name: PutTokens(
--   ids text[], secret_hashes bytea[], scopes int2[], tenant_uids text[], descriptions text[], created_ats int8[],
--   expires_ats int8[], revoked_ats int8[])
-- The earlier of two revocations wins. NULL means that the token is not revoked.
INSERT INTO token AS mine (id, secret_hash, scope, tenant_uid, description, created_at, expires_at, revoked_at)
SELECT id, secret_hash, scope, tenant_uid::uuid, description, created_at, expires_at, revoked_at
  FROM unnest(@ids, @secret_hashes, @scopes, @tenant_uids, @descriptions, @created_ats, @expires_ats, @revoked_ats)
    AS u (id, secret_hash, scope, tenant_uid, description, created_at, expires_at, revoked_at)
 WHERE NOT EXISTS (SELECT FROM deleted_tenant g WHERE g.uid = u.tenant_uid::uuid)
ON CONFLICT (id) DO UPDATE SET revoked_at = least(mine.revoked_at, excluded.revoked_at)
WHERE mine.revoked_at IS DISTINCT FROM least(mine.revoked_at, excluded.revoked_at);

-- name: RevokeToken(id text)
-- Always writes the row, also if the token is revoked already, so that the returned values
-- are final.
UPDATE token SET revoked_at = least(revoked_at, now_ms()) WHERE id = @id
RETURNING id, secret_hash, scope, tenant_uid::text, description, created_at, expires_at, revoked_at,
  (SELECT n.name FROM tenant n WHERE n.uid = tenant_uid);

-- name: TokensAfter(after_id text, tenant_name text, max_rows int8)
SELECT t.id, t.secret_hash, t.scope, t.tenant_uid::text, t.description, t.created_at, t.expires_at, t.revoked_at, n.name
FROM token t LEFT JOIN tenant n ON n.uid = t.tenant_uid
WHERE t.id COLLATE "C" > @after_id AND (@tenant_name = '' OR n.name = @tenant_name) ORDER BY t.id COLLATE "C" LIMIT @max_rows;

-- name: DropTokens()
-- Deletes the tokens of deleted tenants.
DELETE FROM token t USING deleted_tenant g WHERE g.uid = t.tenant_uid;

-- name: Authenticate(id text)
-- A token belongs to the tenant with its uid, whatever id that tenant has.
SELECT t.secret_hash, t.scope,
  t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now_ms()),
  n.id, n.uid::text, n.name, n.max_params_bytes, n.default_retention_ms, n.created_at, n.history, n.rates, n.version
FROM token t LEFT JOIN tenant n ON n.uid = t.tenant_uid WHERE t.id = @id;
