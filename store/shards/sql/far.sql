-- The far tier as callers meet it: arrivals, looking a task up, recall, lists.

-- fragment: far_copies
-- The packs that may hold the task u (tenant_id, id), without those whose copy
-- of it is void. An arrival is found by its range of numbers; a pack by the
-- minute in the locator, which lies in one bucket of each level. OFFSET 0 keeps
-- the planner from reading all packs of a level first, as it would like to when
-- the tables are empty.
LATERAL (
  SELECT -a.first AS pack, a.damaged, a.keys
    FROM (SELECT a.first, a.last, a.min_tenant, a.max_tenant, a.damaged, a.keys
            FROM far_arrival a WHERE a.first <= u.id / 512 ORDER BY a.first DESC LIMIT 1) a
   WHERE a.last >= u.id / 512 AND u.tenant_id BETWEEN a.min_tenant AND a.max_tenant
     AND NOT EXISTS (SELECT FROM far_override o WHERE o.pack = -a.first AND o.id = u.id)
   UNION ALL
  SELECT p.id, p.damaged, p.keys
    FROM (SELECT w.level, l.minute * 60000 - l.minute * 60000 % w.width AS bucket_at
            FROM (SELECT {{minute_of_task}} AS minute FROM far_locator l WHERE l.page = u.id / 512 / 256 OFFSET 0) l
            JOIN (VALUES (1::int2, 60000::int8), (2::int2, 3600000::int8), (3::int2, 86400000::int8), (4::int2, 2592000000::int8))
                 AS w (level, width) ON l.minute > 0
          OFFSET 0) b,
         LATERAL (
           SELECT p.id, p.damaged, p.keys FROM far_pack p
            WHERE p.level = b.level AND p.bucket_at = b.bucket_at
              AND u.tenant_id BETWEEN p.min_tenant AND p.max_tenant AND u.id BETWEEN p.min_id AND p.max_id
              AND NOT EXISTS (SELECT FROM far_override o WHERE o.pack = p.id AND o.id = u.id)
           OFFSET 0) p
) c

-- fragment: minute_of_task
-- Four bytes, big endian, never above int4's largest.
((get_byte(l.minutes, (u.id / 512 % 256 * 4)::int4)::int8 << 24) | (get_byte(l.minutes, (u.id / 512 % 256 * 4 + 1)::int4) << 16)
  | (get_byte(l.minutes, (u.id / 512 % 256 * 4 + 2)::int4) << 8) | get_byte(l.minutes, (u.id / 512 % 256 * 4 + 3)::int4))

-- name: ArrivalInsert
-- What a group of adds leaves for later. $1 firsts, $2 lasts, $3 counts,
-- $4 and $5 smallest and largest tenants, $6 keys, $7 params
INSERT INTO far_arrival (first, last, n, created_at, min_tenant, max_tenant, keys, params)
SELECT u.first, u.last, u.n, now_ms(), u.min_tenant, u.max_tenant, u.keys, u.params
  FROM unnest($1::int8[], $2::int8[], $3::int4[], $4::int4[], $5::int4[], $6::bytea[], $7::bytea[])
       AS u (first, last, n, min_tenant, max_tenant, keys, params);

-- name: FarCopies
-- $1 tenant, $2 id
SELECT c.pack, c.damaged, c.keys FROM (SELECT $1::int4 AS tenant_id, $2::int8 AS id) u, {{far_copies}};

-- name: FarWhere
-- In which packs tasks may be; 0: in the near tier, or finished. One statement,
-- so that a task that moves is not missed. $1 shards, $2 tenants, $3 ids
SELECT u.n, c.pack
  FROM (SELECT * FROM unnest($1::int2[], $2::int4[], $3::int8[]) WITH ORDINALITY AS u (shard, tenant_id, id, n) {{list_first}}) u,
       {{far_copies}}
 UNION ALL
SELECT u.n, 0
  FROM (SELECT *, 0::int8 AS run FROM unnest($1::int2[], $2::int4[], $3::int8[]) WITH ORDINALITY AS u (shard, tenant_id, id, n) {{list_first}}) u
  JOIN task t ON t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run
 UNION ALL
SELECT u.n, 0
  FROM (SELECT * FROM unnest($1::int2[], $2::int4[], $3::int8[]) WITH ORDINALITY AS u (shard, tenant_id, id, n) {{list_first}}) u
  JOIN task_done d ON d.tenant_id = ANY (ARRAY[u.tenant_id]) AND d.id = u.id;

-- name: FarKeys
-- Packs and what is void in them. $1: minus first numbers of arrivals, and ids of packs
SELECT p.id, p.damaged, p.keys, (SELECT array_agg(o.id) FROM far_override o WHERE o.pack = p.id) AS void
  FROM far_pack p WHERE p.id = ANY ($1::int8[])
 UNION ALL
SELECT -a.first, a.damaged, a.keys, (SELECT array_agg(o.id) FROM far_override o WHERE o.pack = -a.first)
  FROM far_arrival a WHERE a.first = ANY (SELECT -x FROM unnest($1::int8[]) AS x)
 ORDER BY 1;

-- name: PackParams
-- $1 pack
SELECT p.params FROM far_pack p WHERE p.id = $1;

-- name: ArrivalParams
-- $1 first number
SELECT a.params FROM far_arrival a WHERE a.first = $1;

-- name: PackHold
-- The same, and it stays until the transaction ends. $1 pack
SELECT p.params FROM far_pack p WHERE p.id = $1 FOR SHARE;

-- name: ArrivalHold
-- $1 first number
SELECT a.params FROM far_arrival a WHERE a.first = $1 FOR SHARE;

-- name: Recall
-- Voids a pack's copy of a task and makes its row in the near tier, or does
-- nothing if the copy is void already. $1 pack, $2 tenant, $3 id
WITH void AS (
  INSERT INTO far_override (pack, id) VALUES ($1, $3) ON CONFLICT DO NOTHING RETURNING id)
INSERT INTO task (shard, tenant_id, id, run, due_at, scheduled_at, anchor, begin_at, end_at, interval_ms, seq, max_count, missed,
                  version, type, state, stop_on_failure, kind, params, give_up_after_ms, retention_ms, created_at, ack_timeout_ms,
                  initial_backoff_ms, max_backoff_ms, max_attempts, multiplier, jitter, modeled, extra)
SELECT v.id % 512, $2::int4, v.id, 0, $4::int8, $5::int8, $6::int8, $7::int8, $8::int8, $9::int8, $10::int8, $11::int8, $12::int8,
       $13::int4, $14::int2, 1, $15::bool, $16::text, $17::bytea, $18::int8, $19::int8, $20::int8, $21::int4,
       $22::int4, $23::int4, $24::int2, $25::int2, $26::int2, $27::bool, $28::bytea
  FROM void v;

-- name: PackDue
-- The packs in whose buckets something may be due in a range, by their buckets: how
-- many there are, up to $3, and which of them may hold tasks of a tenant and come
-- after a pack. $1 tenant (0: any), $2 pack (exclusive), $3 how many to look at,
-- $4 due from, $5 due until (exclusive)
SELECT coalesce(array_agg(p.id) FILTER (WHERE p.id > $2::int8 AND ($1::int4 = 0 OR $1::int4 BETWEEN p.min_tenant AND p.max_tenant)), '{}'),
       count(*), coalesce(max(p.id), 0)
  FROM (SELECT p.id, p.min_tenant, p.max_tenant
          FROM (VALUES (1::int2, 60000::int8), (2::int2, 3600000::int8), (3::int2, 86400000::int8), (4::int2, 2592000000::int8))
               AS w (level, width),
               LATERAL (
                 SELECT p.id, p.min_tenant, p.max_tenant FROM far_pack p
                  WHERE p.level = w.level AND p.bucket_at > $4::int8 - w.width AND p.bucket_at < $5::int8
                  ORDER BY p.level, p.bucket_at
                  LIMIT $3) p
         LIMIT $3) p;

-- name: ArrivalWindow
-- The next $3 arrivals after a number, which of them may hold tasks of a tenant,
-- and the last one. $1 tenant (0: any), $2 first number (exclusive), $3 how many to look at
SELECT coalesce(array_agg(-a.first) FILTER (WHERE $1::int4 = 0 OR $1::int4 BETWEEN a.min_tenant AND a.max_tenant), '{}'), count(*), coalesce(max(a.first), 0)
  FROM (SELECT a.first, a.min_tenant, a.max_tenant FROM far_arrival a WHERE a.first > $2 ORDER BY a.first LIMIT $3) a;

-- fragment: pack_meets
-- Whether something may be due in the bucket of pack p in a range: $4 due from, $5 due until (exclusive).
p.bucket_at < $5::int8
  AND p.bucket_at + CASE p.level WHEN 1 THEN 60000::int8 WHEN 2 THEN 3600000 WHEN 3 THEN 86400000 ELSE 2592000000 END > $4::int8

-- name: FarDue
-- How many tasks lie in packs that may have some of a tenant, and in those of them
-- whose tasks may be due in a range. $1 tenant, $2 and $3 not used, $4 due from, $5 due until (exclusive)
SELECT now_ms(), coalesce(sum(x.n), 0)::int8, coalesce(sum(x.n) FILTER (WHERE x.meets), 0)::int8
  FROM (SELECT p.n, {{pack_meets}} AS meets FROM far_pack p WHERE $1::int4 BETWEEN p.min_tenant AND p.max_tenant
         UNION ALL
        SELECT a.n, true FROM far_arrival a WHERE $1::int4 BETWEEN a.min_tenant AND a.max_tenant) x
 WHERE $2::int4 = $3::int4;

-- name: PackWindow
-- The same of packs, in whose buckets something may be due in a range.
-- $1 tenant, $2 pack (exclusive), $3 how many to look at, $4 due from, $5 due until (exclusive)
SELECT coalesce(array_agg(p.id) FILTER (WHERE ($1::int4 = 0 OR $1::int4 BETWEEN p.min_tenant AND p.max_tenant) AND {{pack_meets}}), '{}'),
       count(*), coalesce(max(p.id), 0)
  FROM (SELECT p.id, p.min_tenant, p.max_tenant, p.level, p.bucket_at FROM far_pack p WHERE p.id > $2 ORDER BY p.id LIMIT $3) p;

-- name: FarDamaged
-- Packs that were set aside. $1 how many at most
SELECT x.pack, x.n, x.damaged
  FROM (SELECT p.id AS pack, p.n, p.damaged FROM far_pack p WHERE p.damaged IS NOT NULL
         UNION ALL
        SELECT -a.first, a.n, a.damaged FROM far_arrival a WHERE a.damaged IS NOT NULL) x
 ORDER BY x.pack LIMIT $1;
