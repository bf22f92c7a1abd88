-- The bulk path: see load.go.

-- name: NumberBlocks
-- Blocks of numbers in one go. $1 how many
SELECT nextval('task_number') FROM generate_series(1, $1::int4);

-- name: DumpPacks
-- Every pack, with what is void in it. $1 is not used; see NumberBlock
SELECT p.id, p.damaged, p.keys, p.params, (SELECT array_agg(o.id) FROM far_override o WHERE o.pack = p.id) AS void
  FROM far_pack p WHERE $1::int4 = $1::int4
 UNION ALL
SELECT -a.first, a.damaged, a.keys, a.params, (SELECT array_agg(o.id) FROM far_override o WHERE o.pack = -a.first)
  FROM far_arrival a;

-- name: DumpRows
SELECT {{row_columns}} FROM task t WHERE t.run = 0 AND $1::int4 = $1::int4;
