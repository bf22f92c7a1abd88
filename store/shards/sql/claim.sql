-- Statements of the claiming transaction. ClaimRange and ClaimCapped share the
-- fragment claim_set, which is the claim itself. Rows of state 1 are taken as far
-- ahead of the clock as asked, all others when they are due; so are those that were
-- put off, because nothing holds their record back until then.

-- name: AssertOwned
-- Which of the ownerships are current. FOR SHARE holds off a take-over until
-- this transaction ends; a plain read would let a stale owner claim.
-- $1 items, $2 epochs, $3 nonces
SELECT o.item
  FROM unnest($1::int2[], $2::int8[], $3::int8[]) WITH ORDINALITY AS u (item, epoch, nonce, n)
  JOIN owner o ON o.item = u.item AND o.epoch = u.epoch AND o.nonce = u.nonce
 ORDER BY u.n
   FOR SHARE OF o;

-- name: AssertClaim
-- AssertOwned for claims, which share the lock of the tenants' settings until they
-- end: who changes a setting waits for them.
-- $1 items, $2 epochs, $3 nonces, $4 number of the lock, $5 number of the database
SELECT o.item
  FROM pg_advisory_xact_lock_shared($4::int4, $5::int4) l,
       unnest($1::int2[], $2::int8[], $3::int8[]) WITH ORDINALITY AS u (item, epoch, nonce, n)
  JOIN owner o ON o.item = u.item AND o.epoch = u.epoch AND o.nonce = u.nonce
 ORDER BY u.n
   FOR SHARE OF o;

-- name: ClaimRange
-- $1 shards, $2 low, $3 blocked tenants, $4 distance they are put off by, $5 how far ahead,
-- $6 tenants that are held apart: only their open runs are taken
-- The end of the range is a value of its own: what is compared with c is a condition
-- of a join, and a plan made on empty tables does not look that up in the index.
UPDATE task t SET {{claim_set}}
  FROM (SELECT now_ms() AS now, now_ms() AS held OFFSET 0) c
 WHERE t.shard = ANY ($1::int2[]) AND t.due_at > $2::int8 AND t.due_at <= (SELECT now_ms() + $5::int8)
   AND (t.due_at <= c.now OR (t.state = 1 AND t.scheduled_at > c.now)) AND (t.tenant_id <> ALL ($6::int4[]) OR t.state = 2)
RETURNING {{claim_returning}};

-- name: ClaimCapped
-- One shard: at most $6 rows, oldest first, passing over locked ones. The clock is
-- read once and not for every row.
-- $1 shard, $2 low, $3 blocked tenants, $4 distance they are put off by, $5 how far ahead, $6 tenants that are
-- held apart, $7 rows
WITH due AS MATERIALIZED (
  SELECT d.shard, d.tenant_id, d.id, d.run
    FROM task d
   WHERE d.shard = $1::int2 AND d.due_at > $2::int8 AND d.due_at <= (SELECT now_ms() + $5::int8)
     AND (d.due_at <= (SELECT now_ms()) OR (d.state = 1 AND d.scheduled_at > (SELECT now_ms()))) AND (d.tenant_id <> ALL ($6::int4[]) OR d.state = 2)
   ORDER BY d.due_at
   LIMIT $7
     FOR UPDATE SKIP LOCKED)
UPDATE task t SET {{claim_set}}
  FROM (SELECT * FROM due u {{list_first}}) u, (SELECT now_ms() AS now, now_ms() AS held OFFSET 0) c
 WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
RETURNING {{claim_returning}};

-- name: ClaimLanes
-- The rows of tenants that are held apart: of each lane its oldest. An expression
-- and not a column is compared with the tenant, or the planner would read all rows
-- of the tenant by their key.
-- $1 shards, $2 how far ahead, $3 blocked tenants, $4 distance they are put off by;
-- lanes, side by side: $5 tenants, $6 kinds ('': all but those of $10 and $11), $7 rows,
-- $8 lows, $9 since when their rows wait for turns; $10 tenants and $11 kinds of which
-- lanes without a kind take nothing
WITH due AS MATERIALIZED (
  SELECT d.shard, d.tenant_id, d.id, d.run, q.held
    FROM unnest($5::int4[], $6::text[], $7::int8[], $8::int8[], $9::int8[]) q (tenant_id, kind, quota, low, held)
   CROSS JOIN LATERAL (
     SELECT x.shard, x.tenant_id, x.id, x.run
       FROM task x
      WHERE x.shard = ANY ($1::int2[]) AND x.due_at > q.low AND x.due_at <= (SELECT now_ms() + $2::int8)
        AND x.tenant_id + 0 = q.tenant_id AND x.state = 1
        AND CASE WHEN q.kind <> '' THEN x.kind = q.kind
                 ELSE NOT EXISTS (SELECT FROM unnest($10::int4[], $11::text[]) AS e (tenant_id, kind)
                                   WHERE e.tenant_id = q.tenant_id AND e.kind = x.kind) END
      ORDER BY x.due_at
      LIMIT q.quota
        FOR UPDATE SKIP LOCKED) d)
UPDATE task t SET {{claim_set}}
  FROM (SELECT u.shard, u.tenant_id, u.id, u.run, n.now, least(n.now, u.held) AS held
          FROM due u, (SELECT now_ms() AS now OFFSET 0) n {{list_first}}) c
 WHERE t.shard = c.shard AND t.tenant_id = ANY (ARRAY[c.tenant_id]) AND t.id = c.id AND t.run = c.run
RETURNING {{claim_returning}};

-- fragment: claim_returning
c.now, t.tenant_id, t.id, t.run, t.due_at, t.type, t.seq, t.attempt, t.state, t.scheduled_at, t.anchor,
  t.interval_ms, t.end_at, t.version, t.ack_timeout_ms, t.kind, t.params, t.extra

-- fragment: claim_set
-- A row that needs the state machine of package task is left as it is, and so
-- comes back still due, or with its due instant negated if that has not come: see
-- needs_model. All other rows come back due later.
  due_at = CASE
    WHEN t.tenant_id = ANY ($3::int4[]) THEN greatest(c.now + $4::int8, t.due_at)
    WHEN {{needs_model}} THEN CASE WHEN t.due_at > c.now THEN -t.due_at ELSE t.due_at END
    WHEN t.state = 2 THEN c.now + silence_ms(t.ack_timeout_ms, t.attempt - answered(t.failures))
    WHEN t.type <> 2 OR {{last_run}} THEN {{claim_at}} + t.ack_timeout_ms
    ELSE greatest({{next_instant}}, {{claim_at}} + 1) END,
  state = CASE
    WHEN {{held_back}} OR t.state = 2 THEN t.state
    WHEN t.type <> 2 OR {{last_run}} THEN 2 ELSE 1 END,
  seq = CASE WHEN {{held_back}} OR t.state = 2 THEN t.seq ELSE t.seq + 1 END,
  anchor = CASE WHEN {{held_back}} OR t.state = 2 THEN t.anchor ELSE t.scheduled_at END,
  scheduled_at = CASE WHEN {{held_back}} OR t.state = 2 OR t.type <> 2 THEN t.scheduled_at ELSE {{next_instant}} END,
  open_runs = CASE WHEN {{held_back}} OR t.state = 2 OR t.type <> 2 THEN t.open_runs ELSE t.open_runs << 1 | 1 END,
  missed = CASE WHEN {{held_back}} OR t.state = 2 OR t.type <> 2 THEN t.missed
    ELSE t.missed + least(({{next_instant}} - t.scheduled_at) / t.interval_ms - 1,
                          (t.end_at - 1 - t.scheduled_at) / t.interval_ms) END,
  attempt = CASE
    WHEN {{held_back}} THEN t.attempt
    WHEN t.state = 2 THEN t.attempt + 1
    WHEN t.type <> 2 THEN 1 ELSE 0 END,
  out = CASE WHEN {{held_back}} THEN t.out ELSE t.state = 2 OR t.type <> 2 END,
  holder = CASE WHEN {{held_back}} THEN t.holder END,
  first_claim_at = CASE
    WHEN {{held_back}} OR t.state = 2 THEN t.first_claim_at
    WHEN t.type <> 2 THEN {{claim_at}} END

-- fragment: claim_at
-- When a row counts as claimed: one that is claimed ahead, when it is due. Rows of
-- state 2 are never claimed ahead, so for them this is c.now.
greatest(c.now, t.due_at)

-- fragment: held_back
({{needs_model}} OR t.tenant_id = ANY ($3::int4[]))

-- fragment: needs_model
-- Instants that SQL cannot compute, open runs whose bits cannot be kept, bits whose
-- time is up, and runs to give up.
(CASE t.state
   WHEN 1 THEN t.modeled OR t.type = 2 AND t.open_runs <> 0 AND (t.open_runs < 0 OR t.scheduled_at - t.anchor <> t.interval_ms)
   ELSE (t.type = 2 AND t.run = 0) OR (t.out AND c.now - t.first_claim_at >= t.give_up_after_ms) END)

-- fragment: next_instant
-- What passed while the row waited for its tenant's turn was not missed.
(t.scheduled_at + t.interval_ms * grid_steps(t.scheduled_at, t.interval_ms, greatest(c.held, t.due_at), {{count_spent}}))

-- fragment: last_run
({{count_spent}} OR coalesce({{next_instant}} >= t.end_at, false))

-- fragment: count_spent
coalesce(t.seq + 1 >= t.max_count, false)

-- name: Peek
-- $1 shards, $2 low, $3 window, $4 limit, $5 how many are listed, $6 from where to count
SELECT now_ms(),
       (SELECT count(*) FROM (
          SELECT 1 FROM task t
           WHERE t.shard = ANY ($1::int2[]) AND t.due_at > $6::int8 AND t.due_at <= now_ms() + $3::int8
           LIMIT $4) AS soon),
       first.dues, first.shards, (SELECT version FROM settings)
  FROM (SELECT array_agg(f.due_at) AS dues, array_agg(f.shard) AS shards FROM (
          SELECT t.due_at, t.shard FROM task t
           WHERE t.shard = ANY ($1::int2[]) AND t.due_at > $2::int8
           ORDER BY t.due_at LIMIT $5) f) first;

-- name: PeekApart
-- Peek while tenants are held apart, whose rows are not listed. However many there
-- are, no more than $8 rows are looked at: if that was all of them, the last one's
-- instant is how far the look goes.
-- $1 shards, $2 low, $3 window, $4 limit, $5 how many are listed, $6 from where to count,
-- $7 tenants that are held apart, $8 how many rows are looked at
WITH walked AS MATERIALIZED (
  SELECT t.due_at, t.shard, t.state = 1 AND t.tenant_id = ANY ($7::int4[]) AS apart
    FROM task t
   WHERE t.shard = ANY ($1::int2[]) AND t.due_at > $2::int8
   ORDER BY t.due_at LIMIT $8)
SELECT now_ms(),
       (SELECT CASE WHEN count(*) < $4::int8 THEN count(*) FILTER (WHERE NOT soon.apart) ELSE $4::int8 END FROM (
          SELECT t.state = 1 AND t.tenant_id = ANY ($7::int4[]) AS apart FROM task t
           WHERE t.shard = ANY ($1::int2[]) AND t.due_at > $6::int8 AND t.due_at <= now_ms() + $3::int8
           LIMIT $4) AS soon),
       first.dues, first.shards, (SELECT version FROM settings),
       (SELECT CASE WHEN count(*) >= $8 THEN max(due_at) END FROM walked),
       (SELECT min(due_at) FROM walked WHERE apart)
  FROM (SELECT array_agg(f.due_at) AS dues, array_agg(f.shard) AS shards FROM (
          SELECT w.due_at, w.shard FROM walked w WHERE NOT w.apart ORDER BY w.due_at LIMIT $5) f) first;
