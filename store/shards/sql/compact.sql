-- Statements of compaction, demotion and the locator: see docs/adr/0007-far-tier.md.

-- fragment: level0_readable
-- Whether this program knows the version of the pack a, the second byte of its blobs. Only
-- packs in which a program has found a newer version are looked at.
(NOT a.newer OR (substring(a.keys FROM 2 FOR 1) <= {{newest_version}} AND substring(a.params FROM 2 FOR 1) <= {{newest_version}}))

-- fragment: pack_readable
-- level0_readable for the pack p of a bucket.
(NOT p.newer OR (substring(p.keys FROM 2 FOR 1) <= {{newest_version}} AND substring(p.params FROM 2 FOR 1) <= {{newest_version}}))

-- fragment: newest_version
set_byte('\x00'::bytea, 0, {{pack.VERSION}})

-- name: CompactLevel0Packs(added_before int8, max_packs int8)
-- Packs of level 0 that can be compacted now.
SELECT -a.first, 0::int2, 0::int8, a.n, (octet_length(a.keys) + octet_length(a.params))::int8, now_ms()
  FROM far_level0 a
 WHERE a.quarantine_reason IS NULL AND a.created_at < @added_before AND {{level0_readable}}
 ORDER BY a.first
 LIMIT @max_packs;

-- name: CompactBuckets(levels int2[], ahead_ms int8[], max_packs int8)
-- Packs of some levels whose bucket begins at most as far ahead as is given for the level, of each level at most @max_packs, oldest bucket
-- first.
SELECT p.id, p.level, p.bucket_at, p.n, p.size, now_ms()
  FROM unnest(@levels, @ahead_ms) AS u (level, ahead)
 CROSS JOIN LATERAL (
   SELECT p.id, p.level, p.bucket_at, p.n, (octet_length(p.keys) + octet_length(p.params))::int8 AS size
     FROM far_pack p
    WHERE p.quarantine_reason IS NULL AND p.level = u.level AND p.bucket_at < now_ms() + u.ahead AND {{pack_readable}}
    ORDER BY p.level, p.bucket_at
    LIMIT @max_packs) p;

-- name: CompactCrowded(min_packs int4, max_tasks int4, max_bytes int4, max_buckets int8)
-- Buckets with at least @min_packs packs of less than @max_tasks tasks and @max_bytes
-- bytes.
SELECT p.level, p.bucket_at
  FROM far_pack p
 WHERE p.quarantine_reason IS NULL AND p.n < @max_tasks AND octet_length(p.keys) + octet_length(p.params) < @max_bytes AND {{pack_readable}}
 GROUP BY p.level, p.bucket_at
HAVING count(*) >= @min_packs
 ORDER BY count(*) DESC
 LIMIT @max_buckets;

-- name: CompactSmall(level int2, bucket_at int8, max_tasks int4, max_bytes int4, max_packs int8)
-- The small packs of a bucket that CompactCrowded returned.
SELECT p.id, p.level, p.bucket_at, p.n, (octet_length(p.keys) + octet_length(p.params))::int8, now_ms()
  FROM far_pack p
 WHERE p.quarantine_reason IS NULL AND p.level = @level AND p.bucket_at = @bucket_at
   AND p.n < @max_tasks AND octet_length(p.keys) + octet_length(p.params) < @max_bytes AND {{pack_readable}}
 ORDER BY p.id
 LIMIT @max_packs;

-- name: CompactLockLevel0(firsts int8[])
-- Locks and returns the packs that still exist. It skips a pack from which another
-- transaction recalls a task at this moment. A later compaction takes that pack.
SELECT -a.first, a.n, a.keys, a.params
  FROM far_level0 a
 WHERE a.first = ANY (@firsts) AND a.quarantine_reason IS NULL
   FOR UPDATE SKIP LOCKED;

-- name: CompactLockPacks(ids int8[])
-- CompactLockLevel0 for packs of buckets.
SELECT p.id, p.n, p.keys, p.params
  FROM far_pack p
 WHERE p.id = ANY (@ids) AND p.quarantine_reason IS NULL
   FOR UPDATE SKIP LOCKED;

-- name: CompactTombstones(packs int8[])
-- A separate statement after the locks, so that it sees all tombstones that were committed
-- before them.
SELECT o.pack, o.id FROM far_tombstone o WHERE o.pack = ANY (@packs);

-- name: CompactDropTombstones(packs int8[])
DELETE FROM far_tombstone o WHERE o.pack = ANY (@packs);

-- name: CompactDropLevel0(firsts int8[])
DELETE FROM far_level0 a WHERE a.first = ANY (@firsts);

-- name: CompactDropPacks(ids int8[])
DELETE FROM far_pack p WHERE p.id = ANY (@ids);

-- name: MoveHold(lock int4, database int4)
-- Comes before the first id of a pack is drawn. Until this transaction ends, no load commits its packs.
SELECT pg_advisory_xact_lock(@lock, @database) FROM set_config('lock_timeout', '5s', true);

-- name: PackInsert(
--   levels int2[], buckets int8[], counts int4[], min_tenants int4[], max_tenants int4[], min_ids int8[],
--   max_ids int8[], keys bytea[], params bytea[])
INSERT INTO far_pack (level, bucket_at, n, min_tenant, max_tenant, min_id, max_id, keys, params)
SELECT * FROM unnest(@levels, @buckets, @counts, @min_tenants, @max_tenants, @min_ids, @max_ids, @keys, @params);

-- name: Level0Quarantine(first int8, reason text)
UPDATE far_level0 SET quarantine_reason = @reason WHERE first = @first AND quarantine_reason IS NULL;

-- name: PackQuarantine(id int8, reason text)
UPDATE far_pack SET quarantine_reason = @reason WHERE id = @id AND quarantine_reason IS NULL;

-- name: Level0Newer(firsts int8[])
UPDATE far_level0 SET newer = true WHERE first = ANY (@firsts);

-- name: PackNewer(ids int8[])
UPDATE far_pack SET newer = true WHERE id = ANY (@ids);

-- name: Level0Restore(firsts int8[])
-- Ends the quarantine of the packs, or of all packs if @firsts is empty.
UPDATE far_level0 SET quarantine_reason = NULL
 WHERE quarantine_reason IS NOT NULL AND (first = ANY (@firsts) OR cardinality(@firsts) = 0);

-- name: PackRestore(ids int8[])
-- Level0Restore for packs of buckets.
UPDATE far_pack SET quarantine_reason = NULL
 WHERE quarantine_reason IS NOT NULL AND (id = ANY (@ids) OR cardinality(@ids) = 0);

-- name: LocatorRead(pages int8[])
SELECT l.page, l.minutes FROM far_locator l WHERE l.page = ANY (@pages);

-- name: LocatorWrite(pages int8[], latest_minutes int4[], minutes bytea[])
INSERT INTO far_locator (page, latest, minutes)
SELECT * FROM unnest(@pages, @latest_minutes, @minutes)
    ON CONFLICT (page) DO UPDATE SET latest = excluded.latest, minutes = excluded.minutes;

-- name: LocatorPurge(max_pages int8, keep_damaged_ms int8)
-- Deletes pages that no longer lead to a pack. Pages of quarantined packs are kept for
-- @keep_damaged_ms.
DELETE FROM far_locator
 WHERE page = ANY (ARRAY (
  SELECT l.page FROM far_locator l
   WHERE l.latest < least(now_ms(),
           (SELECT p.bucket_at FROM far_pack p WHERE p.level = {{level.MINUTE}} AND p.quarantine_reason IS NULL ORDER BY p.level, p.bucket_at LIMIT 1),
           (SELECT p.bucket_at FROM far_pack p WHERE p.level = {{level.HOUR}} AND p.quarantine_reason IS NULL ORDER BY p.level, p.bucket_at LIMIT 1),
           (SELECT p.bucket_at FROM far_pack p WHERE p.level = {{level.DAY}} AND p.quarantine_reason IS NULL ORDER BY p.level, p.bucket_at LIMIT 1),
           (SELECT p.bucket_at FROM far_pack p WHERE p.level = {{level.MONTH}} AND p.quarantine_reason IS NULL ORDER BY p.level, p.bucket_at LIMIT 1),
           (SELECT greatest(min(p.bucket_at), now_ms() - @keep_damaged_ms) FROM far_pack p WHERE p.quarantine_reason IS NOT NULL HAVING count(*) > 0)) / {{ms.MINUTE}}
   ORDER BY l.latest LIMIT @max_pages));

-- name: FarStats()
SELECT (SELECT count(*) FROM far_level0 a WHERE a.quarantine_reason IS NULL),
       (SELECT coalesce(sum(a.n), 0) FROM far_level0 a WHERE a.quarantine_reason IS NULL),
       (SELECT count(*) FROM far_pack p WHERE p.quarantine_reason IS NULL),
       (SELECT coalesce(sum(p.n), 0) FROM far_pack p WHERE p.quarantine_reason IS NULL),
       (SELECT count(*) FROM far_level0 a WHERE a.quarantine_reason IS NOT NULL) + (SELECT count(*) FROM far_pack p WHERE p.quarantine_reason IS NOT NULL),
       (SELECT count(*) FROM far_level0 a WHERE a.newer AND a.quarantine_reason IS NULL AND NOT {{level0_readable}})
       + (SELECT count(*) FROM far_pack p WHERE p.newer AND p.quarantine_reason IS NULL AND NOT {{pack_readable}}),
       (SELECT coalesce(greatest(now_ms() - min(a.created_at), 1), 0) FROM far_level0 a WHERE a.quarantine_reason IS NULL AND {{level0_readable}}),
       (SELECT coalesce(greatest(now_ms() - min(p.bucket_at), 0), 0) FROM far_pack p WHERE p.quarantine_reason IS NULL AND {{pack_readable}})
;

-- name: FarVoid()
-- The void copies among the tasks that FarStats counts. There may be very many.
SELECT (SELECT count(*) FROM far_tombstone o JOIN far_pack p ON p.id = o.pack WHERE p.quarantine_reason IS NULL)
       + (SELECT count(*) FROM far_tombstone o JOIN far_level0 a ON a.first = -o.pack WHERE a.quarantine_reason IS NULL);

-- name: OldestSnapshot()
-- Returns the age of the oldest snapshot of sessions and prepared transactions, in ms.
-- Autovacuum workers are left out, because their snapshots delay no cleanup.
SELECT greatest(0, extract(epoch FROM clock_timestamp() - least(
         (SELECT min(a.xact_start) FROM pg_stat_activity a
           WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'),
         (SELECT min(x.prepared) FROM pg_prepared_xacts x), clock_timestamp())) * 1000)::int8
;

-- name: ForecastPacks()
-- The names of all packs that are not quarantined, with the number of their void copies.
SELECT x.pack, (SELECT count(*) FROM far_tombstone o WHERE o.pack = x.pack)
  FROM (SELECT p.id AS pack FROM far_pack p WHERE p.quarantine_reason IS NULL
         UNION ALL
        SELECT -a.first FROM far_level0 a WHERE a.quarantine_reason IS NULL) x;

-- fragment: by_interval
-- Whether the row t has all its instants from its interval, or has only one. The terms of a row
-- with day calendars have the byte 20 or 21, the numbers of their fields (task/seal.go). Some
-- rows without calendars have these bytes, too.
(t.type = {{type.ONE_SHOT}} OR (t.interval_ms IS NOT NULL
  AND (NOT t.modeled OR t.terms IS NULL OR (position('\x14'::bytea IN t.terms) = 0 AND position('\x15'::bytea IN t.terms) = 0))))

-- name: ForecastNear()
-- Counts the SCHEDULED tasks of the near tier that have all their instants from an interval, by
-- tenant, minute of the next instant, interval, and the day of the last instant (NULL: there is
-- none). The bounds keep the product within its type: no calendar reaches that far.
SELECT t.tenant_id, t.scheduled_at / {{ms.MINUTE}} AS minute, coalesce(t.interval_ms, 0) AS step,
       least(t.end_at, t.scheduled_at + least(t.max_count - t.seq - 1, 100000000) * least(t.interval_ms, 8000000000) + 1) / {{ms.DAY}} AS last_day,
       count(*)
  FROM task t
 WHERE t.run = 0 AND t.state = {{state.SCHEDULED}} AND NOT t.paused AND {{by_interval}}
 GROUP BY 1, 2, 3, 4;

-- name: ForecastRows(max_rows int8)
-- The other SCHEDULED tasks of the near tier.
SELECT {{row_columns}} FROM task t
 WHERE t.run = 0 AND t.state = {{state.SCHEDULED}} AND NOT t.paused AND NOT {{by_interval}}
 LIMIT @max_rows;

-- name: ForecastStore(counted_at int8, parts int2[], data bytea[])
-- Replaces the calendars. It removes those of tenants that have no task any more.
WITH gone AS (DELETE FROM forecast WHERE part <> ALL (@parts))
INSERT INTO forecast (part, counted_at, data) SELECT u.part, @counted_at, u.data FROM unnest(@parts, @data) AS u (part, data)
    ON CONFLICT (part) DO UPDATE SET counted_at = excluded.counted_at, data = excluded.data;

-- name: ForecastRead(part int2)
-- When the calendars were counted, and those of a part.
SELECT t.counted_at, (SELECT f.data FROM forecast f WHERE f.part = @part), now_ms() FROM forecast t WHERE t.part = -1;

-- name: DatabaseSize()
-- Returns the size of all tables of the database with their indexes and large values, in bytes.
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8 FROM pg_class c
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r';

-- name: DueByTenant(late_ms int8, max_rows int8)
-- Counts, by tenant and type, the rows that have been due for more than @late_ms. It reads at most
-- @max_rows rows, those that have been due for longest. Returns for each tenant and type the
-- number and the age of the oldest row.
SELECT d.tenant_id, d.type, count(*), now_ms() - min(d.due_at)
  FROM (SELECT t.tenant_id, t.type, t.due_at FROM task t WHERE t.due_at < now_ms() - @late_ms ORDER BY t.due_at LIMIT @max_rows) d
 GROUP BY d.tenant_id, d.type;

-- name: Demote(beyond_ms int8, max_rows int8)
-- Deletes and returns rows that wait only for an instant more than @beyond_ms ahead.
-- run + 0 keeps the planner from using the index of the key, which it would read from end
-- to end.
WITH far AS MATERIALIZED (
  SELECT t.shard, t.tenant_id, t.id
    FROM task t
   WHERE t.due_at > now_ms() + @beyond_ms AND t.state = {{state.SCHEDULED}} AND t.run + 0 = 0 AND NOT t.paused AND t.open_runs = 0 AND t.open_rows = 0
   LIMIT @max_rows
     FOR UPDATE SKIP LOCKED)
DELETE FROM task t
 USING (SELECT *, 0::int8 AS run FROM far u {{list_first}}) u
 WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
RETURNING {{row_columns}};

-- name: DemotePaused(beyond_ms int8, max_rows int8)
-- Deletes and returns paused rows that would be due more than @beyond_ms ahead, or were due
-- so long ago: those have been paused for as long.
WITH far AS MATERIALIZED (
  SELECT t.shard, t.tenant_id, t.id
    FROM task t
   WHERE t.due_at IS NULL AND t.paused AND t.state = {{state.SCHEDULED}} AND t.run + 0 = 0 AND t.open_runs = 0 AND t.open_rows = 0
     AND (t.scheduled_at < now_ms() - @beyond_ms OR (t.scheduled_at > now_ms() + @beyond_ms AND t.scheduled_at < {{instant.NEVER}}))
   LIMIT @max_rows
     FOR UPDATE SKIP LOCKED)
DELETE FROM task t
 USING (SELECT *, 0::int8 AS run FROM far u {{list_first}}) u
 WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
RETURNING {{row_columns}};
