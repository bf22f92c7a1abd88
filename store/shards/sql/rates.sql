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
