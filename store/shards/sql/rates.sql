-- What tenants may use: see rates.go and the tables settings and turn.

-- name: SettingsNow
SELECT now_ms(), version FROM settings WHERE $1::int4 = $1::int4;

-- name: SettingsRead
-- Tenants whose claims are not plain, with the version of the same instant.
SELECT s.version, t.id, t.rates
  FROM settings s
  LEFT JOIN tenant t ON t.rates ?| $1::text[];

-- name: TurnsMake
INSERT INTO turn (tenant_id, purpose, tat_us) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING;

-- name: TurnsTake
-- Takes what the rate allows of $3 turns, after $4 unused ones were given back. A
-- turn lasts step_us; what was given out may reach no further than burst turns
-- from now, also after the rate was raised. It returns what was taken, and in how many ms there is one more.
-- $1 tenant, $2 purpose, $3 wanted, $4 given back, $5 name of the rate, $6 name of the burst,
-- $7 the least burst where none is set
WITH rate AS (
  SELECT 1000000.0::float8 / (r.rates ->> $5::text)::float8 AS step_us,
         coalesce((r.rates ->> $6::text)::float8, greatest((r.rates ->> $5::text)::float8, $7::int8)) AS burst
    FROM tenant r WHERE r.id = $1 AND (r.rates ->> $5::text)::float8 > 0),
used AS (SELECT tat_us FROM turn WHERE tenant_id = $1 AND purpose = $2 FOR UPDATE),
clock AS (SELECT now_ms()::float8 * 1000 AS now_us),
free AS (
  SELECT step_us, burst, now_us, greatest(least(tat_us, now_us + burst * step_us) - $4::int8 * step_us, now_us) AS base FROM used, rate, clock),
given AS (
  SELECT *, greatest(least($3::int8, floor((now_us + burst * step_us - base + 1) / step_us)), 0) AS n FROM free),
done AS (
  UPDATE turn u SET tat_us = (g.base + g.n * g.step_us)::int8 FROM given g WHERE u.tenant_id = $1 AND u.purpose = $2)
SELECT n::int8, ceil(greatest(base + n * step_us + step_us - burst * step_us - now_us, 0) / 1000)::int8 FROM given;

-- name: TurnsUsed
-- Whether a tenant uses up its rate: what was given out reaches to within a turn and
-- half a second of what may be, since they are taken some at a time. $1 tenant, $2 purpose, $3 rate, $4 burst
SELECT tat_us > now_ms() * 1000 + greatest(($4::int8 - 1) * 1000000 / $3::int8 - 500000, 0) FROM turn WHERE tenant_id = $1 AND purpose = $2;

-- name: CapBegin
-- The next turn of a kind with a cap, unless another one is under way.
-- $1 tenant, $2 kind, $3 how long it lasts
INSERT INTO cap_turn AS c (tenant_id, kind, epoch, expires_at) VALUES ($1, $2, 1, now_ms() + $3::int8)
    ON CONFLICT (tenant_id, kind) DO UPDATE SET epoch = c.epoch + 1, expires_at = excluded.expires_at
 WHERE c.expires_at <= now_ms()
RETURNING epoch;

-- name: CapEnd
-- $1 tenant, $2 kind, $3 epoch
UPDATE cap_turn SET expires_at = 0 WHERE tenant_id = $1 AND kind = $2 AND epoch = $3;

-- name: CapFence
-- Waits for claims of older turns, and keeps others of theirs out. No row: a newer
-- turn has been here. $1 tenant, $2 kind, $3 epoch
INSERT INTO cap_fence AS c (tenant_id, kind, epoch) VALUES ($1, $2, $3)
    ON CONFLICT (tenant_id, kind) DO UPDATE SET epoch = excluded.epoch WHERE c.epoch < excluded.epoch
RETURNING epoch;

-- fragment: capped_open
-- The noted runs of a kind that are open. $1 tenant, $2 kind
listed AS MATERIALIZED (
  SELECT (x.id % 512)::int2 AS shard, x.tenant_id, x.id, v.run, x.seq
    FROM capped_run x, LATERAL (VALUES (0::int8), (x.seq)) v (run)
   WHERE x.tenant_id = $1::int4 AND x.kind = $2::text),
open AS MATERIALIZED (
  SELECT u.id, u.seq
    FROM (SELECT * FROM listed u {{list_first}}) u
    JOIN task t ON t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
   WHERE CASE WHEN t.run <> 0 THEN true
              WHEN t.type <> 2 THEN t.state = 2 AND t.seq = u.seq
              ELSE t.seq - u.seq BETWEEN 0 AND 63 AND (t.open_runs >> (t.seq - u.seq)::int4) & 1 = 1 END)

-- name: CapForget
-- Forgets the runs that are no longer open. $1 tenant, $2 kind
WITH {{capped_open}}
DELETE FROM capped_run c
 WHERE c.tenant_id = $1 AND c.kind = $2 AND (c.id, c.seq) NOT IN (SELECT o.id, o.seq FROM open o);

-- name: CapOpen
-- How many there are, without forgetting any. $1 tenant, $2 kind
WITH {{capped_open}}
SELECT count(*) FROM open;

-- name: CapCount
SELECT count(*) FROM capped_run WHERE tenant_id = $1 AND kind = $2;

-- name: CapAssert
-- No row: the turn is over here. $1 tenant, $2 kind, $3 epoch
SELECT epoch FROM cap_fence WHERE tenant_id = $1 AND kind = $2 AND epoch = $3 FOR SHARE;

-- name: CapNote
-- $1 tenant, $2 kind, $3 ids, $4 seqs
INSERT INTO capped_run (tenant_id, kind, id, seq) SELECT $1::int4, $2::text, u.id, u.seq FROM unnest($3::int8[], $4::int8[]) u (id, seq)
    ON CONFLICT DO NOTHING;
