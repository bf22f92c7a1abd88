-- All jobs that have not ended. PREFIX stands for what the name of the table begins with. $1 is a queue; ''
-- stands for all. The greatest number stands for an infinite instant.
SELECT j.id, j.kind, j.state::text, j.queue,
       CASE WHEN isfinite(j.scheduled_at) THEN floor(extract(epoch FROM j.scheduled_at) * 1000)::int8 ELSE 9223372036854775807 END,
       j.attempt::int4, j.max_attempts::int4,
       j.args::text, j.tags, j.priority::int4
  FROM PREFIXriver_job j
 WHERE j.finalized_at IS NULL AND ($1 = '' OR j.queue = $1)
 ORDER BY j.id
