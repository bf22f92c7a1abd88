-- Operations that were set aside.

-- name: RefusedList(after int8, max_rows int8)
SELECT r.position, r.op, r.form, coalesce(r.key, ''), r.body, r.reason, r.message, r.written_at, r.refused_at
  FROM {{schema}}.refused r WHERE r.position > @after ORDER BY r.position LIMIT @max_rows;

-- name: RefusedRetry(positions int8[])
-- Writes the operations again, at the end: behind later ones of their keys.
WITH gone AS (
    DELETE FROM {{schema}}.refused r WHERE r.position = ANY (@positions) RETURNING r.*
), written AS (
    SELECT count({{schema}}.write(g.op, g.form, ARRAY[coalesce(g.key, '')], ARRAY[g.body])::text) AS n
      FROM (SELECT * FROM gone ORDER BY gone.position) g
)
SELECT (SELECT count(*) FROM gone), (SELECT n FROM written);

-- name: RefusedDiscard(positions int8[])
WITH gone AS (
    DELETE FROM {{schema}}.refused r WHERE r.position = ANY (@positions) RETURNING 1
)
SELECT count(*) FROM gone;
