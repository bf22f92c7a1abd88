-- name: NewToken
-- No row: the tenant does not exist, or the expiry has passed.
WITH owner AS (SELECT id FROM tenant WHERE name = $4::text)
INSERT INTO token (id, secret_hash, scope, tenant_id, description, created_at, expires_at)
SELECT $1::text, $2::bytea, $3::int2, (SELECT id FROM owner), $5::text, now_ms(), $6::int8
WHERE ($3::int2 = 2 OR EXISTS (SELECT FROM owner)) AND ($6::int8 IS NULL OR $6::int8 > now_ms())
RETURNING tenant_id, created_at;

-- name: PutTokens
-- Of two revocations the earlier one counts; NULL counts as none.
INSERT INTO token AS mine (id, secret_hash, scope, tenant_id, description, created_at, expires_at, revoked_at)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::int2[], $4::int4[], $5::text[], $6::int8[], $7::int8[], $8::int8[])
    AS u (id, secret_hash, scope, tenant_id, description, created_at, expires_at, revoked_at)
 WHERE NOT EXISTS (SELECT FROM tenant_gone g WHERE g.id = u.tenant_id)
ON CONFLICT (id) DO UPDATE SET revoked_at = least(mine.revoked_at, excluded.revoked_at)
WHERE mine.revoked_at IS DISTINCT FROM least(mine.revoked_at, excluded.revoked_at);

-- name: RevokeToken
-- Always touches the row, so that what it returns is settled.
UPDATE token SET revoked_at = least(revoked_at, now_ms()) WHERE id = $1
RETURNING id, secret_hash, scope, tenant_id, description, created_at, expires_at, revoked_at,
  (SELECT name FROM tenant WHERE id = tenant_id);

-- name: TokensAfter
SELECT t.id, t.secret_hash, t.scope, t.tenant_id, t.description, t.created_at, t.expires_at, t.revoked_at, n.name
FROM token t LEFT JOIN tenant n ON n.id = t.tenant_id
WHERE t.id COLLATE "C" > $1::text AND ($2::text = '' OR n.name = $2::text) ORDER BY t.id COLLATE "C" LIMIT $3;

-- name: Authenticate
SELECT t.secret_hash, t.scope,
  t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now_ms()),
  n.id, n.name, n.max_params_bytes, n.default_retention_ms, n.created_at, n.history, n.rates, n.version
FROM token t LEFT JOIN tenant n ON n.id = t.tenant_id WHERE t.id = $1;
