-- The virtual clock of one database: see clock.go.

-- name: Installed()
SELECT to_regclass('virtual_clock') IS NOT NULL;

-- name: Used()
-- Returns whether the database has ever had a task. Such a database has instants of the
-- real clock.
SELECT (SELECT is_called FROM task_number) OR EXISTS (SELECT FROM task_key) OR EXISTS (SELECT FROM task)
    OR EXISTS (SELECT FROM far_pack) OR EXISTS (SELECT FROM far_level0);

-- name: CreateTable()
-- The table has one row. value_ms is the instant that a frozen clock shows, or else the
-- number of milliseconds by which the clock is ahead of the server's.
CREATE TABLE virtual_clock (
  one      bool NOT NULL DEFAULT true,
  frozen   bool NOT NULL,
  value_ms int8 NOT NULL,
  CONSTRAINT virtual_clock_pkey PRIMARY KEY (one),
  CONSTRAINT virtual_clock_one  CHECK (one)
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 1000);

-- name: ReplaceFunction()
-- PL/pgSQL keeps the plan of the query for the session. A function in SQL would plan the
-- query again for each statement that calls it.
CREATE OR REPLACE FUNCTION now_ms() RETURNS int8 LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
  RETURN (SELECT CASE WHEN c.frozen THEN c.value_ms
                      ELSE floor(date_part('epoch', statement_timestamp()) * 1000)::int8 + c.value_ms END
            FROM virtual_clock c);
END $$;

-- name: Create(frozen bool, value_ms int8)
INSERT INTO virtual_clock (frozen, value_ms) VALUES (@frozen, @value_ms);

-- name: ServerNow()
SELECT floor(date_part('epoch', statement_timestamp()) * 1000)::int8;

-- name: Read()
-- Returns the server's clock too.
SELECT c.frozen, now_ms(), floor(date_part('epoch', statement_timestamp()) * 1000)::int8 FROM virtual_clock c;

-- fragment: token_free
-- The instant at which the next token is free, computed as in statement TokensTake of
-- package store/shards. It is 0 if the tenant has no rate.
coalesce(ceil((u.tat_us + 1000000.0::float8 / nullif((a.rates ->> 'dispatch_rate')::float8, 0)
  * (1 - coalesce((a.rates ->> 'dispatch_burst')::float8, greatest((a.rates ->> 'dispatch_rate')::float8, 1)))) / 1000)::int8, 0)

-- name: Look(max_open_runs int8)
-- Returns everything that the clock has to wait for. There is one row for each open run,
-- and at least one row. All rows have the same values in the columns of h. First claims of
-- paused tenants and kinds are left out. First claims of tenants with a rate or with capped
-- kinds are listed by tenant.
WITH limited AS MATERIALIZED (
  SELECT a.id, a.rates FROM tenant a WHERE a.rates ?| ARRAY['dispatch_rate', 'paused', 'paused_kinds', 'kind_caps']),
lists AS MATERIALIZED (
  SELECT ARRAY(SELECT a.id FROM limited a) AS limited,
         ARRAY(SELECT a.id FROM limited a WHERE a.rates ->> 'paused' = 'true') AS paused,
         ARRAY(SELECT a.id || '/' || k FROM limited a, jsonb_array_elements_text(a.rates -> 'paused_kinds') k) AS kinds),
waiting AS MATERIALIZED (
  SELECT t.tenant_id AS tenant, min(t.due_at) AS due
    FROM lists l JOIN task t ON t.tenant_id = ANY (l.limited)
   WHERE cardinality(l.limited) > 0 AND t.state = {{state.SCHEDULED}} AND t.due_at IS NOT NULL
     AND t.tenant_id <> ALL (l.paused) AND t.tenant_id || '/' || t.kind <> ALL (l.kinds)
   GROUP BY t.tenant_id)
SELECT h.now, h.due, h.level0, h.bucket, h.outbox, h.tenants, h.dues, h.tokens, h.frees,
       o.tenant, o.id, o.run, o.seq, o.attempt, o.open_runs, o.kind
  FROM (SELECT now_ms() AS now,
               (SELECT t.due_at FROM task t
                 WHERE t.due_at IS NOT NULL AND (t.state <> {{state.SCHEDULED}} OR t.tenant_id <> ALL (ARRAY(SELECT a.id FROM limited a)))
                 ORDER BY t.due_at LIMIT 1) AS due,
               ARRAY(SELECT w.tenant FROM waiting w ORDER BY w.tenant) AS tenants,
               ARRAY(SELECT w.due FROM waiting w ORDER BY w.tenant) AS dues,
               ARRAY(SELECT u.tenant_id FROM token_bucket u WHERE u.purpose = {{rate.CLAIMS}} ORDER BY u.tenant_id) AS tokens,
               ARRAY(SELECT {{token_free}} FROM token_bucket u LEFT JOIN limited a ON a.id = u.tenant_id
                      WHERE u.purpose = {{rate.CLAIMS}} ORDER BY u.tenant_id) AS frees,
               EXISTS (SELECT FROM far_level0 a WHERE a.quarantine_reason IS NULL) AS level0,
               (SELECT min(b.at) FROM (
                  SELECT (SELECT min(p.bucket_at) FROM far_pack p WHERE p.level = l AND p.quarantine_reason IS NULL) AS at
                    FROM generate_series({{level.MINUTE}}, {{level.MONTH}}) l) b) AS bucket,
               (SELECT count(*) FROM outbox WHERE quarantine_reason IS NULL) AS outbox) h
  LEFT JOIN (SELECT coalesce(n.name, t.tenant_id::text) AS tenant, t.id, t.run, t.seq, t.attempt, t.open_runs, t.kind
               FROM task t LEFT JOIN tenant n ON n.id = t.tenant_id
              WHERE t.out OR t.open_runs <> 0 LIMIT @max_open_runs) o ON true;
