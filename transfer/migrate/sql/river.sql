-- All jobs that have not ended. PREFIX stands for what the name of the table begins with. $1 is a queue; ''
-- stands for all.
SELECT j.id, j.kind, j.state::text, j.queue, floor(extract(epoch FROM j.scheduled_at) * 1000)::int8, j.attempt::int4, j.max_attempts::int4,
       j.args::text, j.tags, j.priority::int4
  FROM PREFIXriver_job j
 WHERE j.finalized_at IS NULL AND ($1 = '' OR j.queue = $1)
 ORDER BY j.id
