-- The history of runs: package history.

-- name: EventInsert(
--   at int8, ids int8[], seqs int8[], scheduled_ats int8[], tenants int4[], attempts int4[], events int2[],
--   details text[], timelines bytea[])
-- Inserts events of one instant, given as parallel arrays.
INSERT INTO run_event (at, id, seq, scheduled_at, tenant_id, attempt, event, detail, timeline)
SELECT @at, u.id, u.seq, u.scheduled_at, u.tenant_id, u.attempt, u.event, u.detail, u.timeline
  FROM unnest(@ids, @seqs, @scheduled_ats, @tenants, @attempts, @events, @details, @timelines)
       AS u (id, seq, scheduled_at, tenant_id, attempt, event, detail, timeline);

-- name: EventRead(tenant int4, id int8, at int8, seq int8, attempt int4, event int2, max_rows int8)
-- Events of a task after a position, newest first.
SELECT e.at, e.seq, e.attempt, e.event, e.scheduled_at, e.detail, e.timeline
  FROM run_event e
 WHERE e.id = @id AND e.tenant_id = @tenant AND e.at <= @at
   AND (e.at, e.seq, e.attempt, e.event) < (@at, @seq, @attempt, @event)
 ORDER BY e.at DESC, e.seq DESC, e.attempt DESC, e.event DESC
 LIMIT @max_rows;

-- name: EventDay(days_ahead int4)
-- Makes the first missing partition of today and the next @days_ahead days. Returns whether there
-- was one. While the database is being moved its tables stay what they are; events of days
-- without a partition go to the default partition.
SELECT CASE WHEN EXISTS (SELECT FROM database_place WHERE target <> '') THEN false ELSE EXISTS (
  SELECT FROM generate_series((now_ms() / {{ms.DAY}})::int4, (now_ms() / {{ms.DAY}})::int4 + @days_ahead) g
   WHERE run_event_make_day(g)) END;

-- name: EventDrop(keep_days int4)
-- Drops the partition of the oldest day that ended @keep_days days ago or earlier. Returns
-- whether there was one. It drops none while the database is being moved.
SELECT CASE WHEN EXISTS (SELECT FROM database_place WHERE target <> '') THEN false
            ELSE run_event_drop_before((now_ms() / {{ms.DAY}})::int4 - @keep_days) END;

-- name: EventPurge(keep_days int4, max_rows int8)
-- EventDrop for rows of days without a partition.
DELETE FROM run_event_default
 WHERE ctid = ANY (ARRAY(SELECT e.ctid FROM run_event_default e
                          WHERE e.at < (now_ms() / {{ms.DAY}} - @keep_days) * {{ms.DAY}} LIMIT @max_rows));
