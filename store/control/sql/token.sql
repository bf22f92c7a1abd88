-- Tokens: their copies in one database.

-- fragment: token_columns
t.id, t.secret_hash, t.scopes, t.tenant_uid::text, t.description, t.created_at, t.expires_at, t.revoked_at,
  (SELECT n.name FROM tenant n WHERE n.uid = t.tenant_uid), (SELECT u.used_at FROM token_use u WHERE u.token_id = t.id)

-- fragment: of_tenant
-- 0 stands for all tenants and for tokens without a tenant.
(@tenant_id = 0 OR t.tenant_uid = (SELECT n.uid FROM tenant n WHERE n.id = @tenant_id))

-- name: NewToken(
--   id text, secret_hash bytea, scopes int4, tenant_name text, description text, expires_at int8, lifetime_ms int8, max_tokens int8)
-- Returns no row if there is no such tenant, if it has too many tokens, or if the expiry has
-- passed or is further ahead than the lifetime. NULL: no expiry, no bound on the lifetime. A
-- minute is allowed for the caller's clock.
WITH owner AS (SELECT uid FROM tenant WHERE name = @tenant_name)
INSERT INTO token (id, secret_hash, scopes, tenant_uid, description, created_at, expires_at)
SELECT @id, @secret_hash, @scopes, (SELECT uid FROM owner), @description, now_ms(), coalesce(@expires_at, now_ms() + @lifetime_ms)
WHERE (@tenant_name = '' OR EXISTS (SELECT FROM owner))
  AND (SELECT count(*) FROM token x WHERE x.tenant_uid IS NOT DISTINCT FROM (SELECT uid FROM owner)) < @max_tokens
  AND (@expires_at IS NULL OR @expires_at > now_ms() AND (@lifetime_ms IS NULL OR @expires_at <= now_ms() + @lifetime_ms + 60000))
RETURNING tenant_uid::text, created_at, expires_at;

-- name: WhyNoToken(tenant_name text, expires_at int8)
-- Returns what NewToken has checked: whether the tenant exists, its number of tokens, and
-- whether the expiry has passed.
SELECT @tenant_name = '' OR n.uid IS NOT NULL, (SELECT count(*) FROM token x WHERE x.tenant_uid IS NOT DISTINCT FROM n.uid),
  coalesce(@expires_at <= now_ms(), false)
FROM (SELECT 1) one LEFT JOIN tenant n ON n.name = @tenant_name;

-- name: PutTokens(
--   ids text[], secret_hashes bytea[], scopes int4[], tenant_uids text[], descriptions text[], created_ats int8[],
--   expires_ats int8[], revoked_ats int8[])
-- The lower of two revocations wins. NULL means that the token is not revoked.
INSERT INTO token AS mine (id, secret_hash, scopes, tenant_uid, description, created_at, expires_at, revoked_at)
SELECT id, secret_hash, scopes, tenant_uid::uuid, description, created_at, expires_at, revoked_at
  FROM unnest(@ids, @secret_hashes, @scopes, @tenant_uids, @descriptions, @created_ats, @expires_ats, @revoked_ats)
    AS u (id, secret_hash, scopes, tenant_uid, description, created_at, expires_at, revoked_at)
 WHERE NOT EXISTS (SELECT FROM deleted_tenant g WHERE g.uid = u.tenant_uid::uuid)
ON CONFLICT (id) DO UPDATE SET revoked_at = least(mine.revoked_at, excluded.revoked_at)
WHERE mine.revoked_at IS DISTINCT FROM least(mine.revoked_at, excluded.revoked_at);

-- name: RevokeToken(id text, tenant_id int4, delay_ms int8)
-- Locks the row, so that the returned values are final. It writes nothing if the token is revoked
-- as early already. Without a delay the revocation holds by any clock: see the package comment.
WITH known AS MATERIALIZED (
  SELECT t.id, CASE WHEN @delay_ms > 0 THEN now_ms() + @delay_ms ELSE -least(now_ms(), abs(t.revoked_at)) END AS ends
    FROM token t WHERE t.id = @id AND {{of_tenant}} FOR UPDATE),
ended AS (
  UPDATE token t SET revoked_at = k.ends FROM known k WHERE t.id = k.id AND (t.revoked_at IS NULL OR t.revoked_at > k.ends)
  RETURNING {{token_columns}})
SELECT * FROM ended
UNION ALL
SELECT {{token_columns}} FROM token t JOIN known k ON k.id = t.id WHERE NOT EXISTS (SELECT FROM ended);

-- name: TokenByID(id text, tenant_id int4)
-- Also returns whether the token has ended.
SELECT coalesce(least(t.expires_at, t.revoked_at) <= now_ms(), false), {{token_columns}} FROM token t WHERE t.id = @id AND {{of_tenant}};

-- name: TokensAfter(after_id text, tenant_name text, max_rows int8)
SELECT {{token_columns}}
FROM token t
WHERE t.id COLLATE "C" > @after_id AND (@tenant_name = '' OR t.tenant_uid = (SELECT n.uid FROM tenant n WHERE n.name = @tenant_name))
ORDER BY t.id COLLATE "C" LIMIT @max_rows;

-- name: RecentlyRevoked(window_ms int8, max_rows int8)
-- Tokens whose revocation took effect within the window, or later than now because the clock was set back.
SELECT id FROM token
 WHERE revoked_at < @window_ms - now_ms() OR revoked_at > now_ms() - @window_ms AND revoked_at <= now_ms()
 ORDER BY abs(revoked_at) DESC LIMIT @max_rows;

-- name: TokenIDs(max_rows int8)
SELECT id FROM token LIMIT @max_rows;

-- name: RecordUses(ids text[], ages_ms int8[])
-- Records how long ago tokens were used. Rows are written in one order, so that two
-- processes that do this do not deadlock.
INSERT INTO token_use AS u (token_id, used_at)
SELECT x.id, now_ms() - x.age FROM unnest(@ids, @ages_ms) AS x (id, age) WHERE EXISTS (SELECT FROM token t WHERE t.id = x.id) ORDER BY x.id
ON CONFLICT (token_id) DO UPDATE SET used_at = excluded.used_at WHERE u.used_at < excluded.used_at;

-- name: PurgeTokens(kept_ms int8)
-- Deletes tokens that expired longer ago than this. Not revoked ones: a copy that missed the
-- revocation would bring them back alive. The expiry is in every copy.
DELETE FROM token WHERE expires_at < now_ms() - @kept_ms;

-- name: DropTokens()
-- Deletes the tokens of deleted tenants.
DELETE FROM token t USING deleted_tenant g WHERE g.uid = t.tenant_uid;

-- name: Authenticate(id text)
-- A token belongs to the tenant with its uid, whatever id that tenant has. Two columns are
-- the times, in ms, until it expires and until its revocation; NULL: never.
SELECT t.secret_hash, t.scopes, t.tenant_uid::text, t.expires_at - now_ms(), t.revoked_at - now_ms(),
  n.id, n.uid::text, n.name, n.max_params_bytes, n.default_retention_ms, n.created_at, n.history, n.rates, n.keys, n.version, now_ms()
FROM token t LEFT JOIN tenant n ON n.uid = t.tenant_uid WHERE t.id = @id;
