-- What the mover does: cuts, demotion, the locator. docs/adr/0007-far-tier.md

-- name: CutArrivals
-- What could be cut now. $1 added before, $2 packs
SELECT -a.first, 0::int2, 0::int8, a.n, (octet_length(a.keys) + octet_length(a.params))::int8, now_ms()
  FROM far_arrival a
 WHERE a.damaged IS NULL AND a.created_at < $1::int8
 ORDER BY a.first
 LIMIT $2;

-- name: CutBuckets
-- Packs of a level, those of the oldest bucket first. $1 level, $2 how far ahead a
-- bucket may begin, $3 packs
SELECT p.id, p.level, p.bucket_at, p.n, (octet_length(p.keys) + octet_length(p.params))::int8, now_ms()
  FROM far_pack p
 WHERE p.damaged IS NULL AND p.level = $1::int2 AND p.bucket_at < now_ms() + $2::int8
 ORDER BY p.level, p.bucket_at
 LIMIT $3;

-- name: CutCrowded
-- Buckets with many small packs. $1 at least so many packs, $2 so few tasks a pack,
-- $3 and of so few bytes, $4 buckets
SELECT p.level, p.bucket_at
  FROM far_pack p
 WHERE p.damaged IS NULL AND p.n < $2::int4 AND octet_length(p.keys) + octet_length(p.params) < $3::int4
 GROUP BY p.level, p.bucket_at
HAVING count(*) >= $1::int4
 ORDER BY count(*) DESC
 LIMIT $4;

-- name: CutSmall
-- Their small packs. $1 level, $2 bucket, $3 tasks, $4 bytes, $5 packs
SELECT p.id, p.level, p.bucket_at, p.n, (octet_length(p.keys) + octet_length(p.params))::int8, now_ms()
  FROM far_pack p
 WHERE p.damaged IS NULL AND p.level = $1::int2 AND p.bucket_at = $2::int8
   AND p.n < $3::int4 AND octet_length(p.keys) + octet_length(p.params) < $4::int4
 ORDER BY p.id
 LIMIT $5;

-- name: CutLockArrivals
-- Locked, and still there. One out of which somebody takes a task just now is
-- passed over: it comes next time. $1 first numbers
SELECT -a.first, a.n, a.keys, a.params
  FROM far_arrival a
 WHERE a.first = ANY ($1::int8[]) AND a.damaged IS NULL
   FOR UPDATE SKIP LOCKED;

-- name: CutLockPacks
-- The same for packs. $1 ids
SELECT p.id, p.n, p.keys, p.params
  FROM far_pack p
 WHERE p.id = ANY ($1::int8[]) AND p.damaged IS NULL
   FOR UPDATE SKIP LOCKED;

-- name: CutOverrides
-- A statement of its own, after the locks: what was void before them is seen.
-- $1 packs
SELECT o.pack, o.id FROM far_override o WHERE o.pack = ANY ($1::int8[]);

-- name: CutDropOverrides
-- $1 packs
DELETE FROM far_override o WHERE o.pack = ANY ($1::int8[]);

-- name: CutDropArrivals
-- $1 first numbers
DELETE FROM far_arrival a WHERE a.first = ANY ($1::int8[]);

-- name: CutDropPacks
-- $1 ids
DELETE FROM far_pack p WHERE p.id = ANY ($1::int8[]);

-- name: PackInsert
-- $1 levels, $2 buckets, $3 numbers of tasks, $4 and $5 tenants, $6 and $7 ids, $8 keys, $9 params
INSERT INTO far_pack (level, bucket_at, n, min_tenant, max_tenant, min_id, max_id, keys, params)
SELECT * FROM unnest($1::int2[], $2::int8[], $3::int4[], $4::int4[], $5::int4[], $6::int8[], $7::int8[], $8::bytea[], $9::bytea[]);

-- name: ArrivalDamaged
-- $1 first number, $2 reason
UPDATE far_arrival SET damaged = $2 WHERE first = $1 AND damaged IS NULL;

-- name: PackDamaged
-- $1 id, $2 reason
UPDATE far_pack SET damaged = $2 WHERE id = $1 AND damaged IS NULL;

-- name: LocatorRead
-- $1 pages
SELECT l.page, l.minutes FROM far_locator l WHERE l.page = ANY ($1::int8[]);

-- name: LocatorWrite
-- $1 pages, $2 latest minutes, $3 minutes
INSERT INTO far_locator (page, latest, minutes)
SELECT * FROM unnest($1::int8[], $2::int4[], $3::bytea[])
    ON CONFLICT (page) DO UPDATE SET latest = excluded.latest, minutes = excluded.minutes;

-- name: LocatorPurge
-- Pages that can lead to nothing any more. Packs that were set aside keep theirs
-- for $2 ms. $1 pages
DELETE FROM far_locator
 WHERE page = ANY (ARRAY (
  SELECT l.page FROM far_locator l
   WHERE l.latest < least(now_ms(),
           (SELECT p.bucket_at FROM far_pack p WHERE p.level = 1 AND p.damaged IS NULL ORDER BY p.level, p.bucket_at LIMIT 1),
           (SELECT p.bucket_at FROM far_pack p WHERE p.level = 2 AND p.damaged IS NULL ORDER BY p.level, p.bucket_at LIMIT 1),
           (SELECT p.bucket_at FROM far_pack p WHERE p.level = 3 AND p.damaged IS NULL ORDER BY p.level, p.bucket_at LIMIT 1),
           (SELECT p.bucket_at FROM far_pack p WHERE p.level = 4 AND p.damaged IS NULL ORDER BY p.level, p.bucket_at LIMIT 1),
           (SELECT greatest(min(p.bucket_at), now_ms() - $2::int8) FROM far_pack p WHERE p.damaged IS NOT NULL HAVING count(*) > 0)) / 60000
   ORDER BY l.latest LIMIT $1));

-- name: FarStats
SELECT (SELECT count(*) FROM far_arrival a WHERE a.damaged IS NULL),
       (SELECT coalesce(sum(a.n), 0) FROM far_arrival a WHERE a.damaged IS NULL),
       (SELECT count(*) FROM far_pack p WHERE p.damaged IS NULL),
       (SELECT coalesce(sum(p.n), 0) FROM far_pack p WHERE p.damaged IS NULL),
       (SELECT count(*) FROM far_arrival a WHERE a.damaged IS NOT NULL) + (SELECT count(*) FROM far_pack p WHERE p.damaged IS NOT NULL),
       (SELECT coalesce(greatest(now_ms() - min(a.created_at), 1), 0) FROM far_arrival a WHERE a.damaged IS NULL),
       (SELECT coalesce(greatest(now_ms() - min(p.bucket_at), 0), 0) FROM far_pack p WHERE p.damaged IS NULL)
 WHERE $1::int4 = $1::int4;

-- name: OldestSnapshot
-- Of sessions and of prepared transactions. Vacuum itself holds nobody up.
SELECT greatest(0, extract(epoch FROM clock_timestamp() - least(
         (SELECT min(a.xact_start) FROM pg_stat_activity a
           WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'),
         (SELECT min(x.prepared) FROM pg_prepared_xacts x), clock_timestamp())) * 1000)::int8
 WHERE $1::int4 = $1::int4;

-- name: Demote
-- Rows that wait for nothing but a far instant. $1 how far, $2 rows
-- run + 0 keeps the key's index out of the search: it would be read from end to end.
WITH far AS MATERIALIZED (
  SELECT t.shard, t.tenant_id, t.id
    FROM task t
   WHERE t.due_at > now_ms() + $1::int8 AND t.state = 1 AND t.run + 0 = 0 AND NOT t.paused AND t.open_runs = 0 AND t.open_rows = 0
   LIMIT $2
     FOR UPDATE SKIP LOCKED)
DELETE FROM task t
 USING (SELECT *, 0::int8 AS run FROM far u {{list_first}}) u
 WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
RETURNING {{row_columns}};
