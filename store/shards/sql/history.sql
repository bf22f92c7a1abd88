-- The history of runs: see history.go.

-- name: EventInsert
-- $1 instant, then side by side: $2 tasks, $3 seqs, $4 instants they were scheduled for,
-- $5 tenants, $6 attempts, $7 events, $8 details ('': none)
INSERT INTO run_event (at, id, seq, scheduled_at, tenant_id, attempt, event, detail)
SELECT $1, u.id, u.seq, u.scheduled_at, u.tenant_id, u.attempt, u.event, nullif(u.detail, '')
  FROM unnest($2::int8[], $3::int8[], $4::int8[], $5::int4[], $6::int4[], $7::int2[], $8::text[])
       AS u (id, seq, scheduled_at, tenant_id, attempt, event, detail);

-- name: EventRead
-- Newest first, after a place. $1 tenant, $2 task, $3 instant, $4 seq, $5 attempt, $6 event, $7 rows
SELECT e.at, e.seq, e.attempt, e.event, e.scheduled_at, coalesce(e.detail, '')
  FROM run_event e
 WHERE e.id = $2 AND e.tenant_id = $1 AND e.at <= $3
   AND (e.at, e.seq, e.attempt, e.event) < ($3::int8, $4::int8, $5::int4, $6::int2)
 ORDER BY e.at DESC, e.seq DESC, e.attempt DESC, e.event DESC
 LIMIT $7;

-- name: EventDays
-- Makes the partitions from today on; how many are new. $1 days ahead
SELECT count(*) FILTER (WHERE run_event_make_day(g))
  FROM generate_series((now_ms() / 86400000)::int4, (now_ms() / 86400000)::int4 + $1::int4) g;

-- name: EventDrop
-- Drops the oldest day that has ended $1 days ago or earlier; whether there was one.
SELECT run_event_drop_before((now_ms() / 86400000)::int4 - $1::int4);

-- name: EventPurge
-- The same for rows that came on a day without a partition. $1 days, $2 rows
DELETE FROM run_event_default
 WHERE ctid = ANY (ARRAY(SELECT e.ctid FROM run_event_default e
                          WHERE e.at < (now_ms() / 86400000 - $1::int4) * 86400000 LIMIT $2));
