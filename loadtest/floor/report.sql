-- $1 shards, $2 ids, $3 new due_at, by which the purge finds the rows. The condition on u
-- makes every plan start from the list, as in the product.
UPDATE task t SET due_at = $3::int8, out = false
  FROM (SELECT *, 1 AS tenant_id, 0::int8 AS run FROM unnest($1::int2[], $2::int8[]) AS u (shard, id)
        WHERE u.id >= 0 OR (SELECT count(*) FROM generate_series(1, 1000000) g WHERE g < u.id) > 0 OFFSET 0) u
 WHERE t.shard = u.shard AND t.tenant_id = ANY (ARRAY[u.tenant_id]) AND t.id = u.id AND t.run = u.run AND t.state = 2 AND t.seq = 1 AND t.out
