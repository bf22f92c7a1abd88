-- Reads for callers.

-- fragment: done_columns
-- The columns of row_columns, for a finished task.
d.tenant_id, d.id, 0::int8, d.type, d.params, d.created_at, {{state_finished}}, {{term_columns}}

-- name: TaskRead(shard int2, tenant int4, id int8)
-- A task by its id: its row, or the packs that may contain it (pack is not 0). One
-- statement reads all places of a task, so that it does not miss a task that moves at the
-- same time. It looks for packs only if there is no row.
WITH here AS MATERIALIZED (
  SELECT {{row_columns}}, NULL::int8 AS finished_at
    FROM task t WHERE t.shard = @shard AND t.tenant_id = @tenant AND t.id = @id AND t.run = 0
   UNION ALL
  SELECT {{done_columns}}, d.finished_at
    FROM task_done d WHERE d.tenant_id = @tenant AND d.id = @id AND d.expires_at > now_ms())
SELECT h.*, 0::int8 AS pack, NULL::text AS quarantine_reason, NULL::bytea AS keys FROM here h
 UNION ALL
SELECT {{no_row}}, NULL, c.pack, c.quarantine_reason, c.keys
  FROM (SELECT @tenant AS tenant_id, @id AS id) u, {{far_copies}}
 WHERE NOT EXISTS (SELECT FROM here);

-- fragment: no_row
-- As many columns as row_columns has, of the same types.
0::int4, 0::int8, 0::int8, 0::int2, NULL::bytea, 0::int8, {{state_none}},
  0::int8, NULL::int8, NULL::int8, NULL::int8, 0::int4, 0::int8, 0::int8, ''::text, NULL::bytea

-- name: TaskList(
--   tenant int4, shard int2, after_id int8, kind text, type int2, state int2, max_rows int8, max_bytes int8)
-- Unfinished tasks of a tenant after a position. Returns every row that it reads, and in
-- wanted whether the row matches the filter, so that the cost of a page is bounded for
-- every filter. It ends with the row whose params reach @max_bytes in total; the size of params
-- is known without reading them. The condition on (shard, id) says where the index scan begins. The
-- condition on the shard alone excludes partitions. Kind '', type 0 and state 0 match all.
SELECT {{row_columns}}, NULL::int8 AS finished_at,
       (@kind = '' OR t.kind = @kind) AND (@type = 0 OR t.type = @type) AND (@state = 0 OR t.state = @state) AS wanted
  FROM (SELECT t.*, sum(octet_length(t.params)) OVER (ORDER BY t.shard, t.id ROWS UNBOUNDED PRECEDING) AS bytes_up_to
          FROM (SELECT t.* FROM task t
                 WHERE t.tenant_id = @tenant AND t.run = 0 AND (t.shard, t.id) > (@shard, @after_id) AND t.shard >= @shard
                 ORDER BY t.shard, t.tenant_id, t.id
                 LIMIT @max_rows) t) t
 WHERE t.bytes_up_to - octet_length(t.params) < @max_bytes
 ORDER BY t.shard, t.id;

-- name: DueShard(first_shard int4, due_from int8, due_until int8)
-- The first shard from @first_shard on, within its database, that has a row due in
-- [@due_from, @due_until).
SELECT g.shard::int2
  FROM generate_series(@first_shard, @first_shard / {{layout.SHARDS_PER_DATABASE}} * {{layout.SHARDS_PER_DATABASE}} + {{layout.SHARDS_PER_DATABASE}} - 1) AS g (shard)
 WHERE EXISTS (SELECT FROM task t WHERE t.shard = g.shard AND t.due_at >= @due_from AND t.due_at < @due_until)
 ORDER BY g.shard
 LIMIT 1;

-- name: TaskListDue(
--   tenant int4, shard int2, after_id int8, kind text, type int2, state int2, max_rows int8, due_from int8,
--   due_until int8, max_bytes int8)
-- TaskList of one shard, in the order of due instants in [@due_from, @due_until). It also
-- reads rows of other tenants and run rows. At @due_from itself the list begins after
-- @after_id.
SELECT {{row_columns}}, NULL::int8 AS finished_at,
       t.tenant_id = @tenant AND t.run = 0
         AND (@kind = '' OR t.kind = @kind) AND (@type = 0 OR t.type = @type) AND (@state = 0 OR t.state = @state) AS wanted
  FROM (SELECT t.*, sum(octet_length(t.params)) OVER (ORDER BY t.due_at, t.id ROWS UNBOUNDED PRECEDING) AS bytes_up_to
          FROM (SELECT t.* FROM task t
                 WHERE t.shard = @shard AND t.due_at >= @due_from AND t.due_at < @due_until AND (t.due_at > @due_from OR t.id > @after_id)
                 ORDER BY t.due_at, t.id
                 LIMIT @max_rows) t) t
 WHERE t.bytes_up_to - octet_length(t.params) < @max_bytes
 ORDER BY t.due_at, t.id;

-- name: DoneList(tenant int4, after_id int8, kind text, type int2, state int2, max_rows int8, max_bytes int8)
-- Finished tasks of a tenant after a position.
SELECT {{done_columns}}, d.finished_at,
       (@kind = '' OR d.kind = @kind) AND (@type = 0 OR d.type = @type) AND d.state = @state AND d.expires_at > now_ms() AS wanted
  FROM (SELECT d.*, sum(octet_length(d.params)) OVER (ORDER BY d.id ROWS UNBOUNDED PRECEDING) AS bytes_up_to
          FROM (SELECT d.* FROM task_done d
                 WHERE d.tenant_id = @tenant AND d.id > @after_id
                 ORDER BY d.tenant_id, d.id
                 LIMIT @max_rows) d) d
 WHERE d.bytes_up_to - octet_length(d.params) < @max_bytes
 ORDER BY d.id;

-- name: DoneStates(tenants int4[], ids int8[])
-- Returns which of these tasks are finished and kept. OFFSET 0 makes the planner look up
-- each task separately. Without it the planner began the join with task_done while that
-- table had at most one row.
SELECT d.tenant_id, d.id
  FROM unnest(@tenants, @ids) AS u (tenant_id, id)
 CROSS JOIN LATERAL (SELECT x.tenant_id, x.id FROM task_done x WHERE x.tenant_id = u.tenant_id AND x.id = u.id OFFSET 0) d;

-- name: Census(tenant int4)
-- Exact numbers of rows, for checks and small installations. It reads every row of the
-- tenant.
SELECT count(*) FILTER (WHERE t.run = 0 AND t.state = {{state.SCHEDULED}}), count(*) FILTER (WHERE t.run = 0 AND t.state = {{state.RUNNING}}),
       count(*) FILTER (WHERE t.run > 0), (SELECT count(*) FROM task_done d WHERE d.tenant_id = @tenant),
       (SELECT count(*) FROM dead_run x WHERE x.tenant_id = @tenant)
  FROM task t WHERE t.tenant_id = @tenant;
