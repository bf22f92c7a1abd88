-- The sessions of this role by the name of their program.
SELECT coalesce(application_name, ''), count(*)::int4 FROM pg_stat_activity
 WHERE usename = current_user AND backend_type = 'client backend'
 GROUP BY 1 ORDER BY 1
