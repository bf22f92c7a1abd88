-- Statements of the claiming transaction. All claims share the fragment claim_set, which is
-- the claim itself. SCHEDULED rows are claimed up to @ahead_ms before they are due. All
-- other rows are claimed when they are due. So are deferred rows, because nothing would
-- delay their records until then.
--
-- A lease lasts for a time, and its end is stored as an instant. If the clock is set
-- forward, a lease whose end has passed is held nevertheless: until @steady_now, which is
-- what the clock would show at most if it had not been set, has reached its end, or until
-- its length has passed since (@set_for_ms).

-- name: AssertOwned(items int2[], epochs int8[], nonces int8[])
-- Returns the items whose ownership is current. FOR SHARE delays a take-over until this
-- transaction ends. With a plain read a stale owner could claim.
SELECT o.item
  FROM unnest(@items, @epochs, @nonces) WITH ORDINALITY AS u (item, epoch, nonce, n)
  JOIN owner o ON o.item = u.item AND o.epoch = u.epoch AND o.nonce = u.nonce
 ORDER BY u.n
   FOR SHARE OF o;

-- name: AssertClaim(items int2[], epochs int8[], nonces int8[], lock int4, database int4)
-- AssertOwned for claims. Claims share the advisory lock of the tenants' settings until
-- they end, so that a change of a setting waits for them.
SELECT o.item
  FROM pg_advisory_xact_lock_shared(@lock, @database) l,
       unnest(@items, @epochs, @nonces) WITH ORDINALITY AS u (item, epoch, nonce, n)
  JOIN owner o ON o.item = u.item AND o.epoch = u.epoch AND o.nonce = u.nonce
 ORDER BY u.n
   FOR SHARE OF o;

-- name: ClaimRange(
--   shards int2[], low int8, blocked_tenants int4[], blocked_for_ms int8[], ahead_ms int8, excluded_tenants int4[],
--   steady_now int8, set_for_ms int8)
-- Claims all due rows of the shards. Rows of @blocked_tenants are not claimed but deferred:
-- see deferred_for. Of @excluded_tenants only open runs are claimed.
-- The end of the range is a scalar subquery. A comparison with c would be a join condition,
-- and a plan that was made on empty tables does not use the index for a join condition.
UPDATE task t SET {{claim_set}}
  FROM (SELECT now_ms() AS now, now_ms() AS held OFFSET 0) c
 WHERE t.shard = ANY (@shards) AND t.due_at > @low AND t.due_at <= (SELECT now_ms() + @ahead_ms)
   AND (t.due_at <= c.now OR (t.state = {{state.SCHEDULED}} AND t.scheduled_at > c.now)) AND (t.tenant_id <> ALL (@excluded_tenants) OR t.state = {{state.RUNNING}})
   AND (t.holder IS NULL OR t.due_at <= @steady_now OR silence_ms(t.ack_timeout_ms, t.attempt - 1 - answered(t.failures)) <= @set_for_ms)
RETURNING {{claim_returning}};

-- name: ClaimCapped(
--   shard int2, low int8, blocked_tenants int4[], blocked_for_ms int8[], ahead_ms int8, excluded_tenants int4[],
--   max_rows int8, steady_now int8, set_for_ms int8)
-- Claims at most @max_rows rows of one shard, oldest first, and skips locked rows. The
-- clock is read once and not for every row.
WITH due AS MATERIALIZED (
  SELECT d.shard, d.tenant_id, d.id, d.run
    FROM task d
   WHERE d.shard = @shard AND d.due_at > @low AND d.due_at <= (SELECT now_ms() + @ahead_ms)
     AND (d.due_at <= (SELECT now_ms()) OR (d.state = {{state.SCHEDULED}} AND d.scheduled_at > (SELECT now_ms()))) AND (d.tenant_id <> ALL (@excluded_tenants) OR d.state = {{state.RUNNING}})
     AND (d.holder IS NULL OR d.due_at <= @steady_now OR silence_ms(d.ack_timeout_ms, d.attempt - 1 - answered(d.failures)) <= @set_for_ms)
   ORDER BY d.due_at
   LIMIT @max_rows
     FOR UPDATE SKIP LOCKED)
UPDATE task t SET {{claim_set}}
  FROM (SELECT * FROM due u {{list_first}}) u, (SELECT now_ms() AS now, now_ms() AS held OFFSET 0) c
 WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
RETURNING {{claim_returning}};

-- name: ClaimFlows(
--   shards int2[], ahead_ms int8, blocked_tenants int4[], blocked_for_ms int8[], flow_tenants int4[],
--   flow_kinds text[], flow_quotas int8[], flow_lows int8[], flow_waiting_since int8[], capped_tenants int4[],
--   capped_kinds text[])
-- Claims the oldest rows of each flow of excluded tenants. The flow parameters are parallel
-- arrays. A flow without a kind ('') claims all kinds of its tenant except those in the
-- parallel arrays @capped_tenants and @capped_kinds. @flow_waiting_since is the instant
-- since which the rows of a flow have been waiting for tokens.
-- The tenant is compared with an expression and not with a column. With a column the
-- planner would read all rows of the tenant by their key.
WITH due AS MATERIALIZED (
  SELECT d.shard, d.tenant_id, d.id, d.run, q.held
    FROM unnest(@flow_tenants, @flow_kinds, @flow_quotas, @flow_lows, @flow_waiting_since) q (tenant_id, kind, quota, low, held)
   CROSS JOIN LATERAL (
     SELECT x.shard, x.tenant_id, x.id, x.run
       FROM task x
      WHERE x.shard = ANY (@shards) AND x.due_at > q.low AND x.due_at <= (SELECT now_ms() + @ahead_ms)
        AND x.tenant_id + 0 = q.tenant_id AND x.state = {{state.SCHEDULED}}
        AND CASE WHEN q.kind <> '' THEN x.kind = q.kind
                 ELSE NOT EXISTS (SELECT FROM unnest(@capped_tenants, @capped_kinds) AS e (tenant_id, kind)
                                   WHERE e.tenant_id = q.tenant_id AND e.kind = x.kind) END
      ORDER BY x.due_at
      LIMIT q.quota
        FOR UPDATE SKIP LOCKED) d)
UPDATE task t SET {{claim_set}}
  FROM (SELECT u.shard, u.tenant_id, u.id, u.run, n.now, least(n.now, u.held) AS held
          FROM due u, (SELECT now_ms() AS now OFFSET 0) n {{list_first}}) c
 WHERE t.shard = c.shard AND t.tenant_id = ANY (ARRAY[c.tenant_id]) AND t.id = c.id AND t.run = c.run
RETURNING {{claim_returning}};

-- name: ClaimFlow(
--   shards int2[], ahead_ms int8, blocked_tenants int4[], blocked_for_ms int8[], flow_tenant int4, flow_quota int8, low int8,
--   waiting_since int8)
-- ClaimFlows for one flow of all kinds, as a range: it claims the rows that are due before the
-- first one beyond the quota, so none if those have the same due_at. A row is read twice, but neither
-- locked before its update nor found by its key, which is a quarter cheaper. One more column is
-- the quota if rows are left, else 0.
WITH horizon AS MATERIALIZED (SELECT now_ms() + @ahead_ms AS until), -- once: rows that become due in between would exceed the quota
beyond AS MATERIALIZED (
  SELECT d.due_at
    FROM task d
   WHERE d.shard = ANY (@shards) AND d.due_at > @low AND d.due_at <= (SELECT h.until FROM horizon h)
     AND d.tenant_id + 0 = @flow_tenant AND d.state = {{state.SCHEDULED}}
   ORDER BY d.due_at
  OFFSET @flow_quota LIMIT 1)
UPDATE task t SET {{claim_set}}
  FROM (SELECT n.now, least(n.now, @waiting_since) AS held, CASE WHEN EXISTS (SELECT FROM beyond) THEN @flow_quota ELSE 0 END AS read
          FROM (SELECT now_ms() AS now OFFSET 0) n OFFSET 0) c
 WHERE t.shard = ANY (@shards) AND t.due_at > @low
   AND t.due_at < (SELECT coalesce((SELECT b.due_at FROM beyond b), h.until + 1) FROM horizon h)
   AND t.tenant_id + 0 = @flow_tenant AND t.state = {{state.SCHEDULED}}
RETURNING {{claim_returning}}, c.read;

-- name: ClaimTogether(
--   shards int2[], ahead_ms int8, blocked_tenants int4[], blocked_for_ms int8[], flow_tenants int4[],
--   flow_kinds text[], flow_quotas int8[], flow_lows int8[], flow_waiting_since int8[], capped_tenants int4[],
--   capped_kinds text[], max_rows int8, low int8)
-- ClaimFlows for many flows without a kind, by one scan of the rows above @low, which is the
-- lowest of @flow_lows. It reads at most @max_rows rows. Those beyond the quota of their flow
-- are locked, but not claimed. One more column is the number of rows read.
WITH due AS MATERIALIZED (
  SELECT d.shard, d.tenant_id, d.id, d.run, d.due_at
    FROM task d
   WHERE d.shard = ANY (@shards) AND d.due_at > @low AND d.due_at <= (SELECT now_ms() + @ahead_ms)
     AND d.tenant_id + 0 = ANY (@flow_tenants) AND d.state = {{state.SCHEDULED}}
     AND NOT EXISTS (SELECT FROM unnest(@capped_tenants, @capped_kinds) AS e (tenant_id, kind)
                      WHERE e.tenant_id = d.tenant_id AND e.kind = d.kind)
   ORDER BY d.due_at
   LIMIT @max_rows
     FOR UPDATE SKIP LOCKED),
ranked AS (
  SELECT u.shard, u.tenant_id, u.id, u.run, row_number() OVER (PARTITION BY u.tenant_id ORDER BY u.due_at) AS n, count(*) OVER () AS read
    FROM due u),
granted AS MATERIALIZED (
  SELECT u.shard, u.tenant_id, u.id, u.run, u.read, q.held
    FROM ranked u
    JOIN unnest(@flow_tenants, @flow_kinds, @flow_quotas, @flow_lows, @flow_waiting_since) q (tenant_id, kind, quota, low, held)
      ON q.tenant_id = u.tenant_id AND u.n <= q.quota)
UPDATE task t SET {{claim_set}}
  FROM (SELECT u.shard, u.tenant_id, u.id, u.run, u.read, n.now, least(n.now, u.held) AS held
          FROM granted u, (SELECT now_ms() AS now OFFSET 0) n {{list_first}}) c
 WHERE t.shard = c.shard AND t.tenant_id = ANY (ARRAY[c.tenant_id]) AND t.id = c.id AND t.run = c.run
RETURNING {{claim_returning}}, c.read;

-- name: ClaimKeys(shards int2[], tenants int4[], ids int8[], runs int8[], blocked_tenants int4[], blocked_for_ms int8[])
-- Claims the given rows, whenever they are due. It finds the rows because of which a claim
-- fails.
UPDATE task t SET {{claim_set}}
  FROM (SELECT * FROM unnest(@shards, @tenants, @ids, @runs) AS u (shard, tenant_id, id, run) {{list_first}}) u,
       (SELECT now_ms() AS now, now_ms() AS held OFFSET 0) c
 WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
RETURNING {{claim_returning}};

-- name: DueKeys(shards int2[], ahead_ms int8, skip int8, max_rows int8)
-- The keys of rows that a claim may take, oldest first.
SELECT t.shard, t.tenant_id, t.id, t.run
  FROM task t
 WHERE t.shard = ANY (@shards) AND t.due_at <= (SELECT now_ms() + @ahead_ms)
 ORDER BY t.due_at
OFFSET @skip LIMIT @max_rows;

-- name: RowQuarantine(shards int2[], tenants int4[], ids int8[], runs int8[], for_ms int8, reasons text[])
-- Defers damaged rows and lists them.
WITH deferred AS (
  UPDATE task t SET due_at = now_ms() + @for_ms
    FROM (SELECT * FROM unnest(@shards, @tenants, @ids, @runs) AS u (shard, tenant_id, id, run) {{list_first}}) u
   WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
  RETURNING t.tenant_id, t.id, t.run)
INSERT INTO quarantined_row (tenant_id, id, run, seen, reason)
SELECT d.tenant_id, d.id, d.run, now_ms(), u.reason
  FROM deferred d JOIN unnest(@tenants, @ids, @runs, @reasons) AS u (tenant_id, id, run, reason) ON (u.tenant_id, u.id, u.run) = (d.tenant_id, d.id, d.run)
    ON CONFLICT (tenant_id, id, run) DO UPDATE SET seen = excluded.seen, reason = excluded.reason;

-- name: RowsNote(tenants int4[], ids int8[], runs int8[], reasons text[])
-- Lists rows that the state machine has deferred.
INSERT INTO quarantined_row (tenant_id, id, run, seen, reason)
SELECT u.tenant_id, u.id, u.run, now_ms(), u.reason FROM unnest(@tenants, @ids, @runs, @reasons) AS u (tenant_id, id, run, reason)
    ON CONFLICT (tenant_id, id, run) DO UPDATE SET seen = excluded.seen, reason = excluded.reason;

-- name: RowsRetry(shards int2[], deferred_ms int8)
-- Makes the rows of the shards due that are listed and still deferred.
UPDATE task t SET due_at = now_ms()
  FROM quarantined_row q
 WHERE t.shard = q.id % {{layout.SHARDS}} AND t.shard = ANY (@shards) AND t.tenant_id = ANY (ARRAY[q.tenant_id]) AND t.id = q.id AND t.run = q.run
   AND t.due_at > now_ms() AND t.due_at = q.seen + @deferred_ms;

-- name: RowsQuarantined(within_ms int8)
-- Counts the rows that were quarantined within that time.
SELECT count(*) FROM quarantined_row WHERE seen > now_ms() - @within_ms;

-- name: RowsForget(before_ms int8)
DELETE FROM quarantined_row WHERE seen < now_ms() - @before_ms;

-- fragment: claim_returning
c.now, t.tenant_id, t.id, t.run, t.due_at, t.type, t.seq, t.attempt, t.state, t.scheduled_at, t.anchor,
  t.interval_ms, t.end_at, t.version, t.ack_timeout_ms, t.undecided, t.kind, t.params, t.terms

-- fragment: claim_set
-- A row that needs the state machine of package task is only marked as undecided: see
-- needs_machine.
  due_at = CASE
    WHEN t.tenant_id = ANY (@blocked_tenants) THEN greatest(c.now + {{deferred_for}}, t.due_at)
    WHEN {{needs_machine}} THEN t.due_at
    WHEN t.state = {{state.RUNNING}} THEN c.now + silence_ms(t.ack_timeout_ms, t.attempt - answered(t.failures))
    WHEN t.type <> {{type.NON_BLOCKING}} OR {{last_run}} THEN {{claim_at}} + t.ack_timeout_ms
    ELSE greatest({{next_instant}}, {{claim_at}} + 1) END,
  undecided = t.tenant_id <> ALL (@blocked_tenants) AND {{needs_machine}} IS TRUE,
  state = CASE
    WHEN {{kept}} OR t.state = {{state.RUNNING}} THEN t.state
    WHEN t.type <> {{type.NON_BLOCKING}} OR {{last_run}} THEN {{state.RUNNING}} ELSE {{state.SCHEDULED}} END,
  seq = CASE WHEN {{kept}} OR t.state = {{state.RUNNING}} THEN t.seq ELSE t.seq + 1 END,
  anchor = CASE WHEN {{kept}} OR t.state = {{state.RUNNING}} THEN t.anchor ELSE t.scheduled_at END,
  scheduled_at = CASE WHEN {{kept}} OR t.state = {{state.RUNNING}} OR t.type <> {{type.NON_BLOCKING}} THEN t.scheduled_at ELSE {{next_instant}} END,
  open_runs = CASE WHEN {{kept}} OR t.state = {{state.RUNNING}} OR t.type <> {{type.NON_BLOCKING}} THEN t.open_runs ELSE t.open_runs << 1 | 1 END,
  missed = CASE WHEN {{kept}} OR t.state = {{state.RUNNING}} OR t.type <> {{type.NON_BLOCKING}} THEN t.missed
    ELSE t.missed + least(({{next_instant}} - t.scheduled_at) / t.interval_ms - 1,
                          (t.end_at - 1 - t.scheduled_at) / t.interval_ms) END,
  attempt = CASE
    WHEN {{kept}} THEN t.attempt
    WHEN t.state = {{state.RUNNING}} THEN t.attempt + 1
    WHEN t.type <> {{type.NON_BLOCKING}} THEN 1 ELSE 0 END,
  out = CASE WHEN {{kept}} THEN t.out ELSE t.state = {{state.RUNNING}} OR t.type <> {{type.NON_BLOCKING}} END,
  holder = CASE WHEN {{kept}} THEN t.holder END,
  first_claim_at = CASE
    WHEN {{kept}} OR t.state = {{state.RUNNING}} THEN t.first_claim_at
    WHEN t.type <> {{type.NON_BLOCKING}} OR {{late_claim}} THEN {{claim_at}}
    WHEN t.open_runs <> 0 THEN t.first_claim_at END

-- fragment: deferred_for
-- Claims exclude new runs of most blocked tenants, but see all redeliveries of theirs. Those may be
-- many, so silent ones wait as if they had been made, for at most 10 minutes. Retries wait as long again as the topic
-- has failed, if that is less: each is deferred a few times before that is minutes, and none comes much later than what came due at that time.
-- The first delivery of a run that was triggered is none of them.
CASE WHEN t.state = {{state.RUNNING}} AND t.attempt > 0
     THEN greatest({{briefly}}, least(silence_ms(t.ack_timeout_ms, t.attempt - answered(t.failures)), 600000, CASE WHEN NOT t.out THEN {{failed_for}} END))
     ELSE {{briefly}} END

-- fragment: briefly
least({{failed_for}}, {{bound.MAX_BLOCK_MS}})

-- fragment: failed_for
(@blocked_for_ms)[array_position(@blocked_tenants, t.tenant_id)]

-- fragment: claim_at
-- The instant at which a row counts as claimed: its due_at if it is claimed ahead, else
-- now. RUNNING rows are never claimed ahead, so for them this is c.now.
greatest(c.now, t.due_at)

-- fragment: late_claim
-- Whether the claim is so late that its instant is stored.
({{claim_at}} - t.scheduled_at > claim_tolerance(t.ack_timeout_ms))

-- fragment: kept
({{needs_machine}} OR t.tenant_id = ANY (@blocked_tenants))

-- fragment: needs_machine
-- Whether only package task can decide: SQL cannot compute the instants, open_runs cannot
-- represent the open runs or one of them is silent, or the run has to be given up. While
-- results come in time, open_runs is 0 and nothing else is examined.
(CASE t.state
   WHEN {{state.SCHEDULED}} THEN t.modeled OR t.type = {{type.NON_BLOCKING}} AND t.open_runs <> 0
        AND (t.open_runs < 0 OR t.scheduled_at - t.anchor <> t.interval_ms OR {{late_claim}} OR {{last_run}}
             OR any_silent(t.open_runs, t.anchor, t.interval_ms, t.first_claim_at, t.ack_timeout_ms, {{claim_at}}))
   ELSE (t.type = {{type.NON_BLOCKING}} AND t.run = 0) OR (t.out AND c.now - coalesce(t.heard_at, t.first_claim_at) >= t.give_up_after_ms) END)

-- fragment: next_instant
-- Instants that passed while the row waited for tokens of its tenant do not count as
-- missed.
(t.scheduled_at + t.interval_ms * grid_steps(t.scheduled_at, t.interval_ms, greatest(c.held, t.due_at), {{count_spent}}))

-- fragment: last_run
({{count_spent}} OR coalesce({{next_instant}} >= t.end_at, false))

-- fragment: count_spent
coalesce(t.seq + 1 >= t.max_count, false)

-- name: Peek(shards int2[], low int8, window_ms int8, max_counted int8, max_listed int8, count_from int8)
-- Returns the first due instants and their shards as parallel arrays, and the number of
-- rows that are due after @count_from and within the window. The count stops at
-- @max_counted.
SELECT now_ms(),
       (SELECT count(*) FROM (
          SELECT 1 FROM task t
           WHERE t.shard = ANY (@shards) AND t.due_at > @count_from AND t.due_at <= now_ms() + @window_ms
           LIMIT @max_counted) AS soon),
       first.dues, first.shards, (SELECT version FROM settings)
  FROM (SELECT array_agg(f.due_at) AS dues, array_agg(f.shard) AS shards FROM (
          SELECT t.due_at, t.shard FROM task t
           WHERE t.shard = ANY (@shards) AND t.due_at > @low
           ORDER BY t.due_at LIMIT @max_listed) f) first;

-- name: PeekFew(shards int2[], low int8, max_listed int8)
-- Peek without the count, which is needless if the list has all rows. Beginning a scan of 32
-- tables is most of its cost. The last column says that nothing else waits in the database.
SELECT now_ms(), first.dues, first.shards, (SELECT version FROM settings),
       NOT EXISTS (SELECT FROM outbox) AND NOT EXISTS (SELECT FROM counter_delta) AND NOT EXISTS (SELECT FROM quarantined_row)
       AND (SELECT x.tenant_id FROM dead_run x WHERE NOT x.published ORDER BY x.tenant_id, x.died_at LIMIT 1) IS NULL
       AND NOT ({{bulk_open}})
  FROM (SELECT array_agg(f.due_at) AS dues, array_agg(f.shard) AS shards FROM (
          SELECT t.due_at, t.shard FROM task t
           WHERE t.shard = ANY (@shards) AND t.due_at > @low
           ORDER BY t.due_at LIMIT @max_listed) f) first;

-- name: PeekExcluded(
--   shards int2[], low int8, window_ms int8, max_counted int8, max_listed int8, count_from int8,
--   excluded_tenants int4[], max_walked int8)
-- Peek without the first runs of @excluded_tenants in the list, and without their rows in the count. The list comes from at most
-- @max_walked rows, however many rows are excluded. If there are that many, the instant of
-- the last one is returned: the list is complete up to it. Rows that were walked over are not read again to be counted.
WITH walked AS MATERIALIZED (
  SELECT t.due_at, t.shard, t.state = {{state.SCHEDULED}} AND t.tenant_id = ANY (@excluded_tenants) AS excluded
    FROM task t
   WHERE t.shard = ANY (@shards) AND t.due_at > @low
   ORDER BY t.due_at LIMIT @max_walked),
whole AS MATERIALIZED (
  SELECT CASE WHEN count(*) >= @max_walked THEN max(w.due_at) END AS last, min(w.due_at) FILTER (WHERE w.excluded) AS excluded
    FROM walked w)
SELECT now_ms(),
       (SELECT count(*) FROM walked w WHERE NOT w.excluded AND w.due_at > @count_from AND w.due_at <= now_ms() + @window_ms AND (whole.last IS NULL OR w.due_at < whole.last))
       + CASE WHEN whole.last <= now_ms() + @window_ms THEN (
           SELECT CASE WHEN count(*) < @max_counted THEN count(*) FILTER (WHERE NOT soon.excluded) ELSE @max_counted END FROM (
             SELECT t.state = {{state.SCHEDULED}} AND t.tenant_id = ANY (@excluded_tenants) AS excluded FROM task t
              WHERE t.shard = ANY (@shards) AND t.due_at >= greatest(whole.last, @count_from + 1) AND t.due_at <= now_ms() + @window_ms
              LIMIT @max_counted) AS soon) ELSE 0 END,
       first.dues, first.shards, (SELECT version FROM settings), whole.last, whole.excluded
  FROM whole, (SELECT array_agg(f.due_at) AS dues, array_agg(f.shard) AS shards FROM (
          SELECT w.due_at, w.shard FROM walked w WHERE NOT w.excluded ORDER BY w.due_at LIMIT @max_listed) f) first;
