-- Imports: package imports, and rollbacks in package bulk.

-- fragment: import_columns
i.tenant_id, i.id, i.terms, i.created_at, i.state, i.finished_at

-- name: ImportInsert(tenant int4, id int8, terms bytea, body_hash bytea, max_open int8)
-- In the home database. Inserts no row if the tenant already has @max_open open imports.
INSERT INTO import (tenant_id, id, terms, body_hash, created_at)
SELECT @tenant, @id, @terms, @body_hash, now_ms()
 WHERE (SELECT count(*) FROM import i WHERE i.tenant_id = @tenant AND i.state = {{import_state.OPEN}}) < @max_open
   AND NOT EXISTS (SELECT FROM deleted_tenant g WHERE g.id = @tenant)
    ON CONFLICT DO NOTHING;

-- name: ImportHash(tenant int4, id int8)
SELECT i.body_hash FROM import i WHERE i.tenant_id = @tenant AND i.id = @id;

-- name: ImportRead(tenant int4, id int8)
SELECT {{import_columns}} FROM import i WHERE i.tenant_id = @tenant AND i.id = @id;

-- name: ImportList(tenant int4, before_created_at int8, before_id int8, max_rows int8)
-- In the home database, newest first.
SELECT {{import_columns}} FROM import i
 WHERE i.tenant_id = @tenant AND (i.created_at, i.id) < (@before_created_at, @before_id)
 ORDER BY i.created_at DESC, i.id DESC
 LIMIT @max_rows;

-- name: ImportEnd(tenant int4, id int8, state int2)
-- In the home database. Ends an import, or starts its rollback. Returns the state before; no row
-- if the import already had the state or a later one.
UPDATE import i SET state = @state, finished_at = now_ms()
  FROM (SELECT o.state FROM import o WHERE o.tenant_id = @tenant AND o.id = @id FOR UPDATE) o
 WHERE i.tenant_id = @tenant AND i.id = @id
   AND (o.state = {{import_state.OPEN}} OR o.state <> {{import_state.ROLLING_BACK}} AND @state = {{import_state.ROLLING_BACK}})
RETURNING o.state;

-- name: ImportPartInsert(tenant int4, import int8)
INSERT INTO import_part (tenant_id, import_id) VALUES (@tenant, @import) ON CONFLICT DO NOTHING;

-- name: ImportPartHold(tenant int4, import int8)
-- Keeps the import from being closed in this database until the transaction ends.
SELECT p.closed FROM import_part p WHERE p.tenant_id = @tenant AND p.import_id = @import FOR SHARE;

-- name: ImportPartClose(tenant int4, import int8)
-- Waits for the chunks that are being stored in this database. No further one is stored.
INSERT INTO import_part (tenant_id, import_id, closed) VALUES (@tenant, @import, true)
    ON CONFLICT (tenant_id, import_id) DO UPDATE SET closed = true;

-- name: ChunkInsert(
--   tenant int4, import int8, number int8, whole bool, lines int4, added int4, skipped int4, updated int4,
--   rejected int4, checksum int8, numbers int8[], run_counts bytea)
-- Fails if the part of the chunk is stored already.
INSERT INTO import_chunk (tenant_id, import_id, number, whole, lines, added, skipped, updated, rejected, checksum, numbers, run_counts)
VALUES (@tenant, @import, @number, @whole, @lines, @added, @skipped, @updated, @rejected, @checksum, @numbers, @run_counts);

-- name: ChunkRead(tenant int4, import int8, number int8)
-- The marker of a chunk in this database.
SELECT c.whole, c.lines, c.added, c.skipped, c.updated, c.rejected, c.checksum FROM import_chunk c
 WHERE c.tenant_id = @tenant AND c.import_id = @import AND c.number = @number;

-- name: ChunkSums(tenant int4, imports int8[])
-- Sums of the parts in this database. The sum of checksums can exceed an int8.
SELECT c.import_id, count(*) FILTER (WHERE c.whole), sum(c.lines), sum(c.added), sum(c.skipped), sum(c.updated), sum(c.rejected),
       sum(c.checksum)::text
  FROM import_chunk c WHERE c.tenant_id = @tenant AND c.import_id = ANY (@imports)
 GROUP BY c.import_id;

-- name: ChunkSumsOf(tenant int4, import int8, numbers int8[])
-- Sums of the parts of some chunks in this database.
SELECT @import::int8, count(*) FILTER (WHERE c.whole), coalesce(sum(c.lines), 0), coalesce(sum(c.added), 0), coalesce(sum(c.skipped), 0),
       coalesce(sum(c.updated), 0), coalesce(sum(c.rejected), 0), coalesce(sum(c.checksum), 0)::text
  FROM import_chunk c WHERE c.tenant_id = @tenant AND c.import_id = @import AND c.number = ANY (@numbers);

-- name: ChunkNumbers(tenant int4, import int8)
-- The numbers of the chunks whose last part is in this database.
SELECT c.number FROM import_chunk c WHERE c.tenant_id = @tenant AND c.import_id = @import AND c.whole ORDER BY c.number;

-- name: ChunkIDs(tenant int4, import int8)
-- The numbers of the ids that the chunks have drawn in this database.
SELECT c.number, c.numbers, c.run_counts IS NOT NULL FROM import_chunk c WHERE c.tenant_id = @tenant AND c.import_id = @import;

-- name: ChunkRunCounts(tenant int4, import int8, number int8)
SELECT c.run_counts FROM import_chunk c WHERE c.tenant_id = @tenant AND c.import_id = @import AND c.number = @number;

-- name: ImportPacks(tenant int4, after_pack int8, max_packs int8, first_id int8, last_id int8)
-- PackWindow for the packs that have ids in @first_id .. @last_id, with the range of ids of each.
SELECT coalesce(array_agg(p.id ORDER BY p.id) FILTER (WHERE p.meets), '{}'), count(*), coalesce(max(p.id), 0),
       coalesce(array_agg(p.min_id ORDER BY p.id) FILTER (WHERE p.meets), '{}'), coalesce(array_agg(p.max_id ORDER BY p.id) FILTER (WHERE p.meets), '{}')
  FROM (SELECT p.id, p.min_id, p.max_id, @tenant BETWEEN p.min_tenant AND p.max_tenant AND p.max_id >= @first_id AND p.min_id <= @last_id AS meets
          FROM far_pack p WHERE p.id > @after_pack ORDER BY p.id LIMIT @max_packs) p;

-- name: ImportRows(tenant int4, shard int2, after_id int8, last_id int8, max_rows int8)
-- Unfinished tasks of a tenant in a shard, in the order of their ids.
SELECT {{row_columns}} FROM task t
 WHERE t.shard = @shard AND t.tenant_id = @tenant AND t.id > @after_id AND t.id <= @last_id AND t.run = 0
 ORDER BY t.shard, t.tenant_id, t.id
 LIMIT @max_rows;

-- name: KeysRead(shards int2[], tenants int4[], keys text[])
-- The known ones of some keys, by their positions from 1.
SELECT u.id, k.first_id, k.body_hash
  FROM (SELECT * FROM unnest(@shards, @tenants, @keys) WITH ORDINALITY AS u (shard, tenant_id, key, id) {{list_first}}) u
  JOIN task_key k ON k.shard = u.shard AND k.tenant_id = ANY (ARRAY[u.tenant_id]) AND k.key = u.key;

-- name: UpsertsDone(shards int2[], tenant int4, from_key text, until_key text)
-- The keys that tell which upserts of a chunk were done.
SELECT k.key FROM task_key k WHERE k.shard = ANY (@shards) AND k.tenant_id = @tenant AND k.key >= @from_key AND k.key < @until_key;

-- name: KeysDrop(shards int2[], tenants int4[], keys text[], first_ids int8[])
-- KeyDrop for some keys.
DELETE FROM task_key k
 USING (SELECT * FROM unnest(@shards, @tenants, @keys, @first_ids) AS u (shard, tenant_id, key, id) {{list_first}}) u
 WHERE k.shard = u.shard AND k.tenant_id = ANY (ARRAY[u.tenant_id]) AND k.key = u.key AND k.first_id = u.id;

-- name: ImportsExist()
-- Whether the schema has the tables of imports: programs work on the schema before them, too.
SELECT to_regclass('import_chunk') IS NOT NULL;

-- name: ImportsExpired(keep_ms int8, max_rows int8)
-- In the home database.
SELECT i.tenant_id, i.id FROM import i WHERE i.finished_at < now_ms() - @keep_ms ORDER BY i.finished_at LIMIT @max_rows;

-- name: ImportDropParts(tenant int4, id int8)
WITH parts AS (DELETE FROM import_part p WHERE p.tenant_id = @tenant AND p.import_id = @id)
DELETE FROM import_chunk c WHERE c.tenant_id = @tenant AND c.import_id = @id;

-- name: ImportDrop(tenant int4, id int8)
DELETE FROM import i WHERE i.tenant_id = @tenant AND i.id = @id;

-- name: TenantImports(tenant int4)
-- Deletes all imports of a tenant in this database.
WITH imports AS (DELETE FROM import i WHERE i.tenant_id = @tenant),
parts AS (DELETE FROM import_part p WHERE p.tenant_id = @tenant)
DELETE FROM import_chunk c WHERE c.tenant_id = @tenant;
