-- All executions. PREFIX stands for what the name of the table begins with. $1 is not used.
SELECT t.task_name, t.task_instance, t.task_data, coalesce(floor(extract(epoch FROM t.execution_time) * 1000)::int8, 0), t.picked,
       coalesce(t.consecutive_failures, 0)::int4
  FROM PREFIXscheduled_tasks t
 WHERE $1::text IS NOT NULL
 ORDER BY t.task_name, t.task_instance
