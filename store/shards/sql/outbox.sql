-- The packed outbox: one row per claiming transaction.

-- name: OutboxInsert
-- $1 shards, $2 entries
INSERT INTO outbox (shards, created_at, entries) VALUES ($1, now_ms(), $2) RETURNING id;

-- name: OutboxDeleteWhole
-- Rows of which no shard is left. $1 rows, $2 shards: parts, side by side.
DELETE FROM outbox o
 USING (SELECT row, array_agg(shard) AS shards FROM unnest($1::int8[], $2::int2[]) AS u (row, shard) GROUP BY row) p
 WHERE o.id = p.row AND o.shards <@ p.shards;

-- name: OutboxTakeOff
-- The list is changed here and never written back from the program: two owners
-- would put each other's entries back.
UPDATE outbox o
   SET shards = ARRAY(SELECT s FROM unnest(o.shards) AS s WHERE s <> ALL (p.shards))
  FROM (SELECT row, array_agg(shard) AS shards FROM unnest($1::int8[], $2::int2[]) AS u (row, shard) GROUP BY row) p
 WHERE o.id = p.row;

-- name: OutboxDeleteEmpty
-- $1 rows
DELETE FROM outbox WHERE id = ANY ($1::int8[]) AND cardinality(shards) = 0;

-- name: OutboxRead
-- $1 shards
SELECT id, shards, entries FROM outbox WHERE shards && $1::int2[] ORDER BY id;

-- name: OutboxStats
SELECT count(*), coalesce(min(created_at), 0), now_ms() FROM outbox WHERE id > $1;
