-- Loading many new tasks at once: far/load.go.

-- name: NumberBlocks(blocks int4)
-- Returns blocks of numbers for ids, and the incarnation in which they may be used.
SELECT nextval('task_number'), i.incarnation FROM database_identity i, generate_series(1, @blocks);

-- name: MoveAwait(lock int4, database int4)
-- Comes after the ids of packs were drawn, just before the commit. Waits for the move that may have drawn lower ones.
SELECT pg_advisory_xact_lock_shared(@lock, @database) FROM set_config('lock_timeout', '5s', true);

-- name: DumpPacks()
-- All packs, with the ids of their void tasks.
SELECT p.id, p.quarantine_reason, p.keys, p.params, (SELECT array_agg(o.id) FROM far_tombstone o WHERE o.pack = p.id) AS void
  FROM far_pack p
 UNION ALL
SELECT -a.first, a.quarantine_reason, a.keys, a.params, (SELECT array_agg(o.id) FROM far_tombstone o WHERE o.pack = -a.first)
  FROM far_level0 a;

-- name: DumpRows()
SELECT {{row_columns}} FROM task t WHERE t.run = 0;
