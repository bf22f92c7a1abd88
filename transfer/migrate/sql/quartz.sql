-- All triggers of a scheduler with their jobs and schedules. PREFIX stands for the prefix of the
-- tables. $1 is the name of the scheduler; '' stands for all. The last column is the first scheduler with a trigger of
-- the same name, unless it is this one.
SELECT t.trigger_group, t.trigger_name, t.job_group, t.job_name, t.trigger_state, t.trigger_type, coalesce(t.calendar_name, ''),
       coalesce(t.next_fire_time, 0), coalesce(t.prev_fire_time, 0), t.start_time, coalesce(t.end_time, 0),
       coalesce(t.priority, 5)::int4, coalesce(t.misfire_instr, 0)::int2, j.is_nonconcurrent, t.job_data, j.job_data,
       coalesce(s.repeat_count, 0), coalesce(s.repeat_interval, 0), coalesce(s.times_triggered, p.int_prop_2, 0),
       coalesce(c.cron_expression, ''), coalesce(c.time_zone_id, ''),
       coalesce(p.str_prop_1, ''), coalesce(p.str_prop_2, ''), coalesce(p.int_prop_1, 0)::int8,
       coalesce(p.bool_prop_1, false), coalesce(p.bool_prop_2, false),
       coalesce(nullif(first_value(t.sched_name) OVER (PARTITION BY t.trigger_group, t.trigger_name ORDER BY t.sched_name), t.sched_name), '')
  FROM PREFIXtriggers t
  JOIN PREFIXjob_details j ON j.sched_name = t.sched_name AND j.job_name = t.job_name AND j.job_group = t.job_group
  LEFT JOIN PREFIXsimple_triggers s ON s.sched_name = t.sched_name AND s.trigger_name = t.trigger_name AND s.trigger_group = t.trigger_group
  LEFT JOIN PREFIXcron_triggers c ON c.sched_name = t.sched_name AND c.trigger_name = t.trigger_name AND c.trigger_group = t.trigger_group
  LEFT JOIN PREFIXsimprop_triggers p ON p.sched_name = t.sched_name AND p.trigger_name = t.trigger_name AND p.trigger_group = t.trigger_group
 WHERE $1 = '' OR t.sched_name = $1
 ORDER BY t.sched_name, t.trigger_group, t.trigger_name
