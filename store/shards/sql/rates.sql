-- The limits of tenants: see rates.go and the tables settings and token_bucket.

-- name: SettingsNow()
SELECT now_ms(), version FROM settings;

-- name: SettingsRead(settings text[])
-- Tenants with settings that affect their claims, with the version of the settings from the
-- same snapshot.
SELECT s.version, t.id, t.rates
  FROM settings s
  LEFT JOIN tenant t ON t.rates ?| @settings;

-- name: TokensMake(tenants int4[], purpose int2)
INSERT INTO token_bucket (tenant_id, purpose, tat_us) SELECT u.tenant_id, @purpose, 0 FROM unnest(@tenants) u (tenant_id) ON CONFLICT DO NOTHING;

-- fragment: take_tokens
-- Returns @unused tokens to the bucket and takes as many of @wanted tokens as the rate
-- allows, and leaves @keep tokens. A token lasts step_us. The granted tokens may reach at most burst tokens ahead of
-- now, also after the rate was raised. Returns the number of tokens taken, and the time in
-- ms until one more token is free.
used AS (SELECT tat_us FROM token_bucket WHERE tenant_id = @tenant AND purpose = @purpose FOR UPDATE),
clock AS (SELECT now_ms()::float8 * 1000 AS now_us),
free AS (
  SELECT step_us, burst, now_us, greatest(least(tat_us, now_us + burst * step_us) - @unused * step_us, now_us) AS base FROM used, rate, clock),
given AS (
  SELECT *, greatest(least(@wanted, floor((now_us + (burst - @keep) * step_us - base + 1) / step_us)), 0) AS n FROM free),
done AS (
  UPDATE token_bucket u SET tat_us = (g.base + g.n * g.step_us)::int8 FROM given g WHERE u.tenant_id = @tenant AND u.purpose = @purpose)
SELECT n::int8, ceil(greatest(base + n * step_us + step_us - (burst - @keep) * step_us - now_us, 0) / 1000)::int8 FROM given

-- name: TokensTake(tenants int4[], purpose int2, wanted int8[], unused int8[])
-- Takes tokens of the dispatch rates of tenants, as take_tokens does for one bucket. The arrays
-- are parallel. The burst of a tenant that sets none is its rate. Tenants without a rate or a
-- bucket have no row in the result. Buckets are locked in the order of their tenants, so two
-- statements never wait for each other.
WITH rate AS (
  SELECT r.id AS tenant_id, 1000000.0::float8 / (r.rates ->> 'dispatch_rate')::float8 AS step_us,
         coalesce((r.rates ->> 'dispatch_burst')::float8, greatest((r.rates ->> 'dispatch_rate')::float8, 1)) AS burst
    FROM tenant r WHERE r.id = ANY (@tenants) AND (r.rates ->> 'dispatch_rate')::float8 > 0),
used AS MATERIALIZED (
  SELECT b.tenant_id, b.tat_us FROM token_bucket b
   WHERE b.tenant_id = ANY (@tenants) AND b.purpose = @purpose ORDER BY b.tenant_id FOR UPDATE),
clock AS (SELECT now_ms()::float8 * 1000 AS now_us),
free AS (
  SELECT tenant_id, wanted, step_us, burst, now_us,
         greatest(least(tat_us, now_us + burst * step_us) - unused * step_us, now_us) AS base
    FROM used JOIN rate USING (tenant_id) JOIN unnest(@tenants, @wanted, @unused) AS u (tenant_id, wanted, unused) USING (tenant_id), clock),
given AS (
  SELECT *, greatest(least(wanted, floor((now_us + burst * step_us - base + 1) / step_us)), 0) AS n FROM free),
done AS (
  UPDATE token_bucket b SET tat_us = (g.base + g.n * g.step_us)::int8 FROM given g WHERE b.tenant_id = g.tenant_id AND b.purpose = @purpose)
SELECT tenant_id, n::int8, ceil(greatest(base + n * step_us + step_us - burst * step_us - now_us, 0) / 1000)::int8 FROM given;

-- name: QuotaTake(tenant int4, purpose int2, wanted int8, keep int8, unused int8, rate float8, burst float8)
-- Takes tokens of a quota.
WITH rate AS (SELECT 1000000.0::float8 / @rate AS step_us, @burst AS burst),
{{take_tokens}};

-- name: QuotasUsed(tenant int4)
-- Returns for how long, in microseconds, the rates of a tenant need to make up for the
-- tokens that were granted.
SELECT b.purpose, greatest(b.tat_us - now_ms() * 1000, 0)::int8 FROM token_bucket b WHERE b.tenant_id = @tenant AND b.purpose > 1;

-- name: TenantRates(tenant int4)
SELECT r.rates FROM tenant r WHERE r.id = @tenant;

-- name: ReplaysHold(lock int4, tenant int4)
-- Returns false if another step adds replays of the tenant's dead runs. The lock ends with
-- the transaction.
SELECT pg_try_advisory_xact_lock(@lock, @tenant);

-- name: TokensUsed(tenant int4, purpose int2, rate int8, burst int8)
-- Returns whether a tenant uses up its rate: the granted tokens reach to within one token
-- and half a second of the limit. The half second is there because tokens are taken several
-- at a time.
SELECT tat_us > now_ms() * 1000 + greatest((@burst - 1) * 1000000 / @rate - 500000, 0) FROM token_bucket WHERE tenant_id = @tenant AND purpose = @purpose;

-- name: CapBegin(tenant int4, kind text, duration_ms int8)
-- Begins the next cap lease of a kind. Returns no row if the previous lease has not
-- expired. One that has more time left than a lease lasts is void: the clock was set back.
-- After an adoption of the home database epochs go on from its incarnation, which is greater
-- than the fences of all lost leases. shared says that the holder of the previous lease has
-- found that each database can have its part.
INSERT INTO cap_lease AS c (tenant_id, kind, epoch, expires_at)
SELECT @tenant, @kind, i.incarnation, now_ms() + @duration_ms FROM database_identity i
    ON CONFLICT (tenant_id, kind) DO UPDATE SET epoch = greatest(c.epoch + 1, excluded.epoch), expires_at = excluded.expires_at
 WHERE c.expires_at NOT BETWEEN now_ms() + 1 AND excluded.expires_at
RETURNING epoch, shared_epoch = epoch - 1 AS shared;

-- name: CapEnd(tenant int4, kind text, epoch int8, shared bool)
UPDATE cap_lease SET expires_at = 0, shared_epoch = CASE WHEN @shared THEN epoch ELSE shared_epoch END
 WHERE tenant_id = @tenant AND kind = @kind AND epoch = @epoch;

-- name: CapFence(tenant int4, kind text, epoch int8, part int4, cap int4)
-- Waits for claims under older leases, and makes later claims under them fail. Returns no
-- row if this lease or a newer one is recorded already. @part is NULL to take the part
-- back. Else a database whose part was taken back gets it, and the others keep what they have.
INSERT INTO cap_fence AS c (tenant_id, kind, epoch, part, cap) VALUES (@tenant, @kind, @epoch, @part, @cap)
    ON CONFLICT (tenant_id, kind) DO UPDATE SET epoch = excluded.epoch,
      part = CASE WHEN excluded.part IS NULL THEN NULL ELSE coalesce(c.part, excluded.part) END,
      cap = CASE WHEN excluded.part IS NULL OR c.part IS NULL THEN excluded.cap ELSE c.cap END
 WHERE c.epoch < excluded.epoch
RETURNING coalesce(part, 0);

-- name: CapUnlend(tenant int4, kind text, n int4, epoch int8)
-- Returns what was not borrowed, unless a newer lease has counted this database.
UPDATE cap_fence SET part = part + @n WHERE tenant_id = @tenant AND kind = @kind AND epoch = @epoch;

-- name: CapLend(tenant int4, kind text, n int4)
UPDATE cap_fence SET part = part - @n WHERE tenant_id = @tenant AND kind = @kind;

-- name: CapBorrow(tenant int4, kind text, n int4, epoch int8)
-- Raises the part by what another database has lent at @epoch, unless a newer lease has
-- counted this database. That lease may count the lender after it has lent.
UPDATE cap_fence SET part = part + @n WHERE tenant_id = @tenant AND kind = @kind AND epoch <= @epoch AND part IS NOT NULL;

-- fragment: capped_open
-- The recorded runs of a kind that are open.
listed AS MATERIALIZED (
  SELECT (x.id % {{layout.SHARDS}})::int2 AS shard, x.tenant_id, x.id, v.run, x.seq
    FROM capped_run x, LATERAL (VALUES (0::int8), (x.seq)) v (run)
   WHERE x.tenant_id = @tenant AND x.kind = @kind),
open AS MATERIALIZED (
  SELECT u.id, u.seq
    FROM (SELECT * FROM listed u {{list_first}}) u
    JOIN task t ON t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
   WHERE CASE WHEN t.run <> 0 THEN true
              WHEN t.type <> {{type.NON_BLOCKING}} THEN t.state = {{state.RUNNING}} AND t.seq = u.seq
              ELSE t.seq - u.seq BETWEEN 0 AND 63 AND (t.open_runs >> (t.seq - u.seq)::int4) & 1 = 1 END)

-- name: CapForget(tenant int4, kind text)
-- Deletes the recorded runs that are no longer open.
WITH {{capped_open}}
DELETE FROM capped_run c
 WHERE c.tenant_id = @tenant AND c.kind = @kind AND (c.id, c.seq) NOT IN (SELECT o.id, o.seq FROM open o);

-- name: CapOpen(tenant int4, kind text)
-- Returns the number of open runs without deleting any row.
WITH {{capped_open}}
SELECT count(*) FROM open;

-- name: CapCount(tenant int4, kind text)
SELECT count(*) FROM capped_run WHERE tenant_id = @tenant AND kind = @kind;

-- name: CapAssert(tenant int4, kind text, epoch int8)
-- Returns no row if a newer lease has fenced this one off in this database.
SELECT epoch FROM cap_fence WHERE tenant_id = @tenant AND kind = @kind AND epoch = @epoch FOR SHARE;

-- name: CapPart(tenant int4, kind text)
-- Returns the part of the cap that this database may use without a lease. Until the
-- transaction ends, no other one claims runs of the kind here.
SELECT coalesce(part, 0), cap, epoch FROM cap_fence WHERE tenant_id = @tenant AND kind = @kind FOR UPDATE;

-- name: CapNote(tenant int4, kind text, ids int8[], seqs int8[])
INSERT INTO capped_run (tenant_id, kind, id, seq) SELECT @tenant, @kind, u.id, u.seq FROM unnest(@ids, @seqs) u (id, seq)
    ON CONFLICT DO NOTHING;

-- name: FlowDue(shards int2[], ahead_ms int8, tenant int4, kind text, low int8)
-- Returns whether a claim of the flow of a kind would find a row.
SELECT EXISTS (
  SELECT FROM task x
   WHERE x.shard = ANY (@shards) AND x.due_at > @low AND x.due_at <= (SELECT now_ms() + @ahead_ms)
     AND x.tenant_id + 0 = @tenant AND x.state = {{state.SCHEDULED}} AND x.kind = @kind);
