-- What a server admits. Limits of -1 mean none. reserved_connections is there from PostgreSQL 16 on.
-- Of the sessions of other roles, a role without pg_read_all_stats sees the role alone, so those
-- without one are known to be processes of the server.
SELECT current_setting('max_connections')::int4,
       current_setting('superuser_reserved_connections')::int4 + coalesce(current_setting('reserved_connections', true)::int4, 0),
       (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
       (SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
       current_setting('max_locks_per_transaction')::int4,
       current_setting('max_prepared_transactions')::int4,
       (SELECT count(*) FROM pg_stat_activity
         WHERE usename IS NOT NULL AND usename <> current_user AND coalesce(backend_type, 'client backend') = 'client backend')::int4,
       current_setting('default_transaction_read_only')::bool,
       current_setting('fsync')::bool AND current_setting('full_page_writes')::bool
