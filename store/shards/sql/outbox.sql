-- The packed outbox: one row per claiming transaction.

-- name: OutboxInsert(shards int2[], entries bytea)
INSERT INTO outbox (shards, created_at, entries) VALUES (@shards, now_ms(), @entries) RETURNING id;

-- name: OutboxDeleteWhole(rows int8[], shards int2[])
-- Deletes rows whose remaining parts are all given, except quarantined ones. @rows and
-- @shards name parts, as parallel arrays.
DELETE FROM outbox o
 USING (SELECT row, array_agg(shard) AS shards FROM unnest(@rows, @shards) AS u (row, shard) GROUP BY row) p
 WHERE o.id = p.row AND o.shards <@ p.shards AND o.quarantine_reason IS NULL;

-- name: OutboxAcknowledge(rows int8[], shards int2[])
-- Removes parts, given as parallel arrays. The list of shards is changed here and never
-- written back from the program: otherwise two owners could restore each other's parts.
UPDATE outbox o
   SET shards = ARRAY(SELECT s FROM unnest(o.shards) AS s WHERE s <> ALL (p.shards))
  FROM (SELECT row, array_agg(shard) AS shards FROM unnest(@rows, @shards) AS u (row, shard) GROUP BY row) p
 WHERE o.id = p.row;

-- name: OutboxDeleteEmpty(rows int8[])
DELETE FROM outbox WHERE id = ANY (@rows) AND cardinality(shards) = 0 AND quarantine_reason IS NULL;

-- name: OutboxRead(shards int2[], after int8, max_rows int8, max_bytes int8, with_entries bool)
-- Reads the next rows, up to the one with which their entries have @max_bytes bytes. Without @with_entries it
-- reads no entries, and so cannot fail because of them; their length is in the row.
SELECT r.id, r.shards, r.created_at, CASE WHEN @with_entries THEN r.entries END AS entries
  FROM (SELECT o.*, sum(length(o.entries)) OVER (ORDER BY o.id) - length(o.entries) AS before
          FROM (SELECT id, shards, created_at, entries FROM outbox
                 WHERE shards && @shards AND id > @after ORDER BY id LIMIT @max_rows) o) r
 WHERE r.before < @max_bytes ORDER BY r.id;

-- name: OutboxQuarantine(id int8, reason text)
UPDATE outbox SET quarantine_reason = @reason WHERE id = @id AND quarantine_reason IS NULL;

-- name: OpenRuns(shard int2, after_tenant int4, after_id int8, after_run int8, max_rows int8)
-- Reads the next @max_rows rows of a shard in the order of their keys. Returns those with
-- open runs that may be unpublished, and the last row, each with the number of rows read.
-- A listener that has the lease of a run has received its record.
SELECT w.tenant_id, w.id, w.run, w.open, w.n
  FROM (SELECT x.tenant_id, x.id, x.run, x.open, count(*) OVER () AS n, row_number() OVER (ORDER BY x.tenant_id, x.id, x.run) AS i
          FROM (SELECT t.tenant_id, t.id, t.run, (t.out AND t.holder IS NULL) OR t.open_runs <> 0 AS open
                  FROM task t
                 WHERE t.shard = @shard AND (t.tenant_id, t.shard, t.id, t.run) > (@after_tenant, @shard, @after_id, @after_run)
                 ORDER BY t.tenant_id, t.shard, t.id, t.run LIMIT @max_rows) x) w
 WHERE w.open OR w.i = w.n;

-- name: OutboxStats(newest_format bytea)
-- Counts the rows that wait for their publication, the rows that only a newer program can
-- read, and the quarantined rows, whose entries PostgreSQL may have lost.
SELECT count(*) FILTER (WHERE o.readable AND o.quarantine_reason IS NULL), count(*) FILTER (WHERE NOT o.readable AND o.quarantine_reason IS NULL),
       count(*) FILTER (WHERE o.quarantine_reason IS NOT NULL),
       coalesce(min(o.created_at) FILTER (WHERE o.readable AND o.quarantine_reason IS NULL), 0), now_ms()
  FROM (SELECT created_at, quarantine_reason, CASE WHEN quarantine_reason IS NULL THEN substring(entries FROM 1 FOR 1) <= @newest_format END AS readable FROM outbox) o;
