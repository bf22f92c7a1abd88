-- All executions. PREFIX stands for what the name of the table begins with. $1 is not used. The greatest number stands for
-- an infinite instant.
SELECT t.task_name, t.task_instance, t.task_data,
       CASE WHEN t.execution_time IS NULL THEN 0
            WHEN isfinite(t.execution_time) THEN floor(extract(epoch FROM t.execution_time) * 1000)::int8
            ELSE 9223372036854775807 END,
       t.picked, coalesce(t.consecutive_failures, 0)::int4
  FROM PREFIXscheduled_tasks t
 WHERE $1::text IS NOT NULL
 ORDER BY t.task_name, t.task_instance
