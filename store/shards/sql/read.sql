-- Reading for callers.

-- fragment: done_columns
-- The columns of row_columns, for a finished task.
d.tenant_id, d.id, 0::int8, d.type, d.state, false, false, NULL::int8, d.begin_at, d.begin_at, d.seq, 0::int8,
  0::int4, 0::int4, 0::int4, NULL::int8, NULL::int8, d.missed, d.version, d.params, d.created_at, {{term_columns}}

-- name: TaskRead(shard int2, tenant int4, id int8)
-- A task by its id. One statement over all places of a task, so that a task that moves is
-- not missed: its row, or the packs that may hold it (pack is not 0). Packs are looked for
-- only when there is no row.
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
0::int4, 0::int8, 0::int8, 0::int2, 0::int2, false, false, NULL::int8, 0::int8, 0::int8, 0::int8, 0::int8,
  0::int4, 0::int4, 0::int4, NULL::int8, NULL::int8, 0::int8, 0::int4, NULL::bytea, 0::int8,
  0::int8, NULL::int8, NULL::int8, NULL::int8, 0::int4, 0::int8, 0::int8, ''::text, NULL::bytea

-- name: TaskList(tenant int4, shard int2, after_id int8, kind text, type int2, state int2, max_rows int8)
-- Living tasks of a tenant after a position. Returns every row that it looks at, wanted or
-- not, so that a page has a bounded cost whatever it filters. The index is entered at the
-- pair of shard and id; the shard alone leaves partitions out. Kind '', type 0 and state 0:
-- any.
SELECT {{row_columns}}, NULL::int8 AS finished_at,
       (@kind = '' OR t.kind = @kind) AND (@type = 0 OR t.type = @type) AND (@state = 0 OR t.state = @state) AS wanted
  FROM task t
 WHERE t.tenant_id = @tenant AND t.run = 0 AND (t.shard, t.id) > (@shard, @after_id) AND t.shard >= @shard
 ORDER BY t.shard, t.tenant_id, t.id
 LIMIT @max_rows;

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
--   due_until int8)
-- TaskList of one shard, by due instants in [@due_from, @due_until). Rows of other tenants
-- and of runs are looked at too. At @due_from itself the list begins after @after_id.
SELECT {{row_columns}}, NULL::int8 AS finished_at,
       t.tenant_id = @tenant AND t.run = 0
         AND (@kind = '' OR t.kind = @kind) AND (@type = 0 OR t.type = @type) AND (@state = 0 OR t.state = @state) AS wanted
  FROM task t
 WHERE t.shard = @shard AND t.due_at >= @due_from AND t.due_at < @due_until AND (t.due_at > @due_from OR t.id > @after_id)
 ORDER BY t.due_at, t.id
 LIMIT @max_rows;

-- name: DoneList(tenant int4, after_id int8, kind text, type int2, state int2, max_rows int8)
-- Finished tasks of a tenant after a position.
SELECT {{done_columns}}, d.finished_at,
       (@kind = '' OR d.kind = @kind) AND (@type = 0 OR d.type = @type) AND d.state = @state AND d.expires_at > now_ms() AS wanted
  FROM task_done d
 WHERE d.tenant_id = @tenant AND d.id > @after_id
 ORDER BY d.tenant_id, d.id
 LIMIT @max_rows;

-- name: DoneStates(tenants int4[], ids int8[])
-- Which of these tasks are finished and kept. OFFSET keeps the look-ups apart: while the
-- table had one row, or none, the planner began the join with that table.
SELECT d.tenant_id, d.id
  FROM unnest(@tenants, @ids) AS u (tenant_id, id)
 CROSS JOIN LATERAL (SELECT x.tenant_id, x.id FROM task_done x WHERE x.tenant_id = u.tenant_id AND x.id = u.id OFFSET 0) d;

-- name: Census(tenant int4)
-- Exact numbers of rows, for checks and small installations: it reads every row.
SELECT count(*) FILTER (WHERE t.run = 0 AND t.state = {{state.SCHEDULED}}), count(*) FILTER (WHERE t.run = 0 AND t.state = {{state.RUNNING}}),
       count(*) FILTER (WHERE t.run > 0), (SELECT count(*) FROM task_done d WHERE d.tenant_id = @tenant),
       (SELECT count(*) FROM dead_run x WHERE x.tenant_id = @tenant)
  FROM task t WHERE t.tenant_id = @tenant;
