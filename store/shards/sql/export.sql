-- Exports of dead runs and of the history. Exports of tasks read as listings do.

-- name: DeadExport(tenant int4, after_id int8, after_seq int8, max_rows int8, max_bytes int8)
-- Dead runs with their texts in the order of the key. It ends with the run whose texts reach
-- @max_bytes in total.
SELECT {{dead_columns}}, x.params
  FROM (SELECT d.*, sum(octet_length(d.params) + octet_length(d.error)) OVER (ORDER BY d.id, d.seq ROWS UNBOUNDED PRECEDING) AS bytes_up_to
          FROM (SELECT d.* FROM dead_run d
                 WHERE d.tenant_id = @tenant AND (d.id, d.seq) > (@after_id, @after_seq)
                 ORDER BY d.tenant_id, d.id, d.seq
                 LIMIT @max_rows) d) x
 WHERE x.bytes_up_to - octet_length(x.params) - octet_length(x.error) < @max_bytes
 ORDER BY x.id, x.seq;

-- name: EventExport(tenant int4, id int8, at int8, seq int8, attempt int4, event int2, max_rows int8)
-- Events of all tasks after a position, in the order of (id, at). Returns every row that it
-- reads, of other tenants, too, without their texts, so that the cost of a page is bounded.
SELECT e.tenant_id, e.id, e.at, e.seq, e.attempt, e.event, e.scheduled_at,
       CASE WHEN e.tenant_id = @tenant THEN e.detail ELSE '' END, CASE WHEN e.tenant_id = @tenant THEN e.timeline ELSE '' END
  FROM (SELECT e.* FROM run_event e
         WHERE (e.id, e.at) >= (@id, @at) AND (e.id, e.at, e.seq, e.attempt, e.event) > (@id, @at, @seq, @attempt, @event)
         ORDER BY e.id, e.at, e.seq, e.attempt, e.event
         LIMIT @max_rows) e
 ORDER BY e.id, e.at, e.seq, e.attempt, e.event;

-- name: SnapshotExport()
-- Whether the server is a standby, and the name of this transaction's snapshot.
SELECT pg_is_in_recovery(), pg_export_snapshot();
