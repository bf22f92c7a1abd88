-- The far tier for callers: adding packs of level 0, looking up a task, recall, lists.

-- fragment: level0_keys
-- The keys of the pack a, empty if PostgreSQL cannot read the pack: then no statement that finds it fails.
CASE WHEN a.quarantine_reason LIKE 'cannot be read:%' THEN ''::bytea ELSE a.keys END AS keys

-- fragment: pack_keys
-- level0_keys for the pack p of a bucket.
CASE WHEN p.quarantine_reason LIKE 'cannot be read:%' THEN ''::bytea ELSE p.keys END AS keys

-- fragment: far_copies
-- The packs that may contain the task u (tenant_id, id), without packs whose copy of it is
-- void. A pack of level 0 is found by its range of numbers. Any other pack is found by the
-- task's minute in the locator, which lies in one bucket of each level. OFFSET 0 keeps the
-- planner from reading all packs of a level first, which it prefers when the tables are
-- empty.
LATERAL (
  SELECT -a.first AS pack, a.quarantine_reason, {{level0_keys}}
    FROM (SELECT a.first, a.last, a.min_tenant, a.max_tenant, a.quarantine_reason, a.keys
            FROM far_level0 a WHERE a.first <= u.id / {{layout.SHARDS}} ORDER BY a.first DESC LIMIT 1) a
   WHERE a.last >= u.id / {{layout.SHARDS}} AND u.tenant_id BETWEEN a.min_tenant AND a.max_tenant
     AND NOT EXISTS (SELECT FROM far_tombstone o WHERE o.pack = -a.first AND o.id = u.id)
   UNION ALL
  SELECT p.id, p.quarantine_reason, p.keys
    FROM (SELECT w.level, l.minute * {{ms.MINUTE}} - l.minute * {{ms.MINUTE}} % w.width AS bucket_at
            FROM (SELECT {{minute_of_task}} AS minute FROM far_locator l WHERE l.page = u.id / {{layout.SHARDS}} / {{locator.PAGE}} OFFSET 0) l
            JOIN {{levels}} ON l.minute > 0
          OFFSET 0) b,
         LATERAL (
           SELECT p.id, p.quarantine_reason, {{pack_keys}} FROM far_pack p
            WHERE p.level = b.level AND p.bucket_at = b.bucket_at
              AND u.tenant_id BETWEEN p.min_tenant AND p.max_tenant AND u.id BETWEEN p.min_id AND p.max_id
              AND NOT EXISTS (SELECT FROM far_tombstone o WHERE o.pack = p.id AND o.id = u.id)
           OFFSET 0) p
) c

-- fragment: levels
-- The levels of buckets and their widths.
(VALUES ({{level.MINUTE}}::int2, {{ms.MINUTE}}::int8), ({{level.HOUR}}::int2, {{ms.HOUR}}::int8),
                         ({{level.DAY}}::int2, {{ms.DAY}}::int8), ({{level.MONTH}}::int2, {{ms.MONTH}}::int8))
                 AS w (level, width)

-- fragment: minute_of_task
-- The minute in the locator: four bytes, big endian, at most the largest int4.
((get_byte(l.minutes, (u.id / {{layout.SHARDS}} % {{locator.PAGE}} * 4)::int4)::int8 << 24) | (get_byte(l.minutes, (u.id / {{layout.SHARDS}} % {{locator.PAGE}} * 4 + 1)::int4) << 16)
  | (get_byte(l.minutes, (u.id / {{layout.SHARDS}} % {{locator.PAGE}} * 4 + 2)::int4) << 8) | get_byte(l.minutes, (u.id / {{layout.SHARDS}} % {{locator.PAGE}} * 4 + 3)::int4))

-- name: Level0Insert(
--   firsts int8[], lasts int8[], counts int4[], min_tenants int4[], max_tenants int4[], keys bytea[], params bytea[])
-- Inserts the packs of level 0 that a group commit of adds makes.
INSERT INTO far_level0 (first, last, n, created_at, min_tenant, max_tenant, keys, params)
SELECT u.first, u.last, u.n, now_ms(), u.min_tenant, u.max_tenant, u.keys, u.params
  FROM unnest(@firsts, @lasts, @counts, @min_tenants, @max_tenants, @keys, @params)
       AS u (first, last, n, min_tenant, max_tenant, keys, params);

-- name: FarCopies(tenant int4, id int8)
SELECT c.pack, c.quarantine_reason, c.keys FROM (SELECT @tenant AS tenant_id, @id AS id) u, {{far_copies}};

-- name: FarWhere(shards int2[], tenants int4[], ids int8[])
-- The packs that may contain tasks. Pack 0 means that the task is in the near tier or
-- finished. It is one statement, so that it does not miss a task that moves at the same
-- time.
SELECT u.n, c.pack
  FROM (SELECT * FROM unnest(@shards, @tenants, @ids) WITH ORDINALITY AS u (shard, tenant_id, id, n) {{list_first}}) u,
       {{far_copies}}
 UNION ALL
SELECT u.n, 0
  FROM (SELECT *, 0::int8 AS run FROM unnest(@shards, @tenants, @ids) WITH ORDINALITY AS u (shard, tenant_id, id, n) {{list_first}}) u
  JOIN task t ON t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
 UNION ALL
SELECT u.n, 0
  FROM (SELECT * FROM unnest(@shards, @tenants, @ids) WITH ORDINALITY AS u (shard, tenant_id, id, n) {{list_first}}) u
  JOIN task_done d ON d.tenant_id = ANY (ARRAY[u.tenant_id]) AND d.id = u.id;

-- name: FarKeys(packs int8[])
-- Packs with the ids of their void tasks. @packs contains ids of packs, and negated first
-- numbers of packs of level 0.
SELECT p.id, p.quarantine_reason, {{pack_keys}}, (SELECT array_agg(o.id) FROM far_tombstone o WHERE o.pack = p.id) AS void
  FROM far_pack p WHERE p.id = ANY (@packs)
 UNION ALL
SELECT -a.first, a.quarantine_reason, {{level0_keys}}, (SELECT array_agg(o.id) FROM far_tombstone o WHERE o.pack = -a.first)
  FROM far_level0 a WHERE a.first = ANY (SELECT -x FROM unnest(@packs) AS x)
 ORDER BY 1;

-- name: PackParams(id int8)
SELECT p.params FROM far_pack p WHERE p.id = @id;

-- name: Level0Params(first int8)
SELECT a.params FROM far_level0 a WHERE a.first = @first;

-- name: PackHold(id int8)
-- PackParams with a lock, so that the pack stays until the transaction ends.
SELECT p.params FROM far_pack p WHERE p.id = @id FOR SHARE;

-- name: Level0Hold(first int8)
SELECT a.params FROM far_level0 a WHERE a.first = @first FOR SHARE;

-- name: Recall(
--   pack int8, tenant int4, id int8, type int2, params bytea, created_at int8, modeled bool, {{waiting_parameters}}, begin_at int8, end_at int8, interval_ms int8,
--   max_count int8, ack_timeout_ms int4, give_up_after_ms int8, retention_ms int8, kind text, terms bytea)
-- Voids a pack's copy of a task and inserts its row into the near tier. Does nothing if the
-- copy is void already.
WITH void AS (
  INSERT INTO far_tombstone (pack, id) VALUES (@pack, @id) ON CONFLICT DO NOTHING RETURNING id)
INSERT INTO task (shard, tenant_id, id, run, type, params, created_at, modeled, {{waiting_names}}, {{term_columns}})
SELECT v.id % {{layout.SHARDS}}, @tenant, v.id, 0, @type, @params, @created_at, @modeled, {{waiting_values}}, {{term_values}}
  FROM void v;

-- name: PackDue(tenant int4, after_pack int8, max_packs int8, due_from int8, due_until int8)
-- Reads up to @max_packs packs in whose buckets tasks may be due in [@due_from,
-- @due_until), in the order of the buckets. Returns the packs that come after @after_pack
-- and may contain tasks of the tenant, the number of packs read, and the largest id read.
-- Tenant 0 means all tenants.
SELECT coalesce(array_agg(p.id) FILTER (WHERE p.id > @after_pack AND (@tenant = 0 OR @tenant BETWEEN p.min_tenant AND p.max_tenant)), '{}'),
       count(*), coalesce(max(p.id), 0)
  FROM (SELECT p.id, p.min_tenant, p.max_tenant
          FROM {{levels}},
               LATERAL (
                 SELECT p.id, p.min_tenant, p.max_tenant FROM far_pack p
                  WHERE p.level = w.level AND p.bucket_at > @due_from - w.width AND p.bucket_at < @due_until
                  ORDER BY p.level, p.bucket_at
                  LIMIT @max_packs) p
         LIMIT @max_packs) p;

-- name: Level0Window(tenant int4, after_first int8, max_packs int8)
-- Reads the next @max_packs packs of level 0 after @after_first. Returns the packs that may
-- contain tasks of the tenant, the number of packs read, and the first number of the last
-- one. Tenant 0 means all tenants.
SELECT coalesce(array_agg(-a.first) FILTER (WHERE @tenant = 0 OR @tenant BETWEEN a.min_tenant AND a.max_tenant), '{}'), count(*), coalesce(max(a.first), 0)
  FROM (SELECT a.first, a.min_tenant, a.max_tenant FROM far_level0 a WHERE a.first > @after_first ORDER BY a.first LIMIT @max_packs) a;

-- fragment: pack_meets
-- Whether the bucket of pack p overlaps [@due_from, @due_until).
p.bucket_at < @due_until
  AND p.bucket_at + CASE p.level WHEN {{level.MINUTE}} THEN {{ms.MINUTE}}::int8 WHEN {{level.HOUR}} THEN {{ms.HOUR}}
                      WHEN {{level.DAY}} THEN {{ms.DAY}} ELSE {{ms.MONTH}} END > @due_from

-- name: FarDue(tenant int4, due_from int8, due_until int8)
-- Returns the number of tasks in packs that may contain tasks of the tenant, and the number
-- of tasks in those of these packs whose tasks may be due in [@due_from, @due_until).
SELECT now_ms(), coalesce(sum(x.n), 0)::int8, coalesce(sum(x.n) FILTER (WHERE x.meets), 0)::int8
  FROM (SELECT p.n, {{pack_meets}} AS meets FROM far_pack p WHERE @tenant BETWEEN p.min_tenant AND p.max_tenant
         UNION ALL
        SELECT a.n, true FROM far_level0 a WHERE @tenant BETWEEN a.min_tenant AND a.max_tenant) x;

-- name: PackWindow(tenant int4, after_pack int8, max_packs int8, due_from int8, due_until int8)
-- Level0Window for packs of far_pack. It returns only packs whose bucket overlaps
-- [@due_from, @due_until).
SELECT coalesce(array_agg(p.id) FILTER (WHERE (@tenant = 0 OR @tenant BETWEEN p.min_tenant AND p.max_tenant) AND {{pack_meets}}), '{}'),
       count(*), coalesce(max(p.id), 0)
  FROM (SELECT p.id, p.min_tenant, p.max_tenant, p.level, p.bucket_at FROM far_pack p WHERE p.id > @after_pack ORDER BY p.id LIMIT @max_packs) p;

-- name: FarDamaged(max_packs int8)
-- Quarantined packs.
SELECT x.pack, x.n, x.quarantine_reason
  FROM (SELECT p.id AS pack, p.n, p.quarantine_reason FROM far_pack p WHERE p.quarantine_reason IS NOT NULL
         UNION ALL
        SELECT -a.first, a.n, a.quarantine_reason FROM far_level0 a WHERE a.quarantine_reason IS NOT NULL) x
 ORDER BY x.pack LIMIT @max_packs;
