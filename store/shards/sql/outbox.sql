-- The packed outbox: one row per claiming transaction.

-- name: OutboxInsert(shards int2[], entries bytea)
INSERT INTO outbox (shards, created_at, entries) VALUES (@shards, now_ms(), @entries) RETURNING id;

-- name: OutboxDeleteWhole(rows int8[], shards int2[])
-- Deletes rows whose remaining parts are all given. @rows and @shards name parts, as
-- parallel arrays.
DELETE FROM outbox o
 USING (SELECT row, array_agg(shard) AS shards FROM unnest(@rows, @shards) AS u (row, shard) GROUP BY row) p
 WHERE o.id = p.row AND o.shards <@ p.shards;

-- name: OutboxAcknowledge(rows int8[], shards int2[])
-- Removes parts, given as parallel arrays. The list of shards is changed here and never
-- written back from the program: otherwise two owners could restore each other's parts.
UPDATE outbox o
   SET shards = ARRAY(SELECT s FROM unnest(o.shards) AS s WHERE s <> ALL (p.shards))
  FROM (SELECT row, array_agg(shard) AS shards FROM unnest(@rows, @shards) AS u (row, shard) GROUP BY row) p
 WHERE o.id = p.row;

-- name: OutboxDeleteEmpty(rows int8[])
DELETE FROM outbox WHERE id = ANY (@rows) AND cardinality(shards) = 0;

-- name: OutboxRead(shards int2[])
SELECT id, shards, entries FROM outbox WHERE shards && @shards ORDER BY id;

-- name: OutboxStats()
SELECT count(*), coalesce(min(created_at), 0), now_ms() FROM outbox;
