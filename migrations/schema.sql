-- Questions about a schema that may have no tables yet.

-- name: ServerVersion()
SELECT current_setting('server_version_num')::int4, current_setting('server_encoding');

-- name: SchemaForm()
-- Whether the schema has the table of applied versions, and whether it has any table.
-- Both are false for a schema that does not exist. A schema that the role must not use has no
-- tables for it; so the third says whether it is that.
SELECT to_regclass('schema_version') IS NOT NULL,
       EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = to_regnamespace(current_schema()::text)),
       EXISTS (SELECT FROM pg_namespace n
                WHERE n.nspname = current_setting('search_path') AND NOT has_schema_privilege(n.oid, 'USAGE'));

-- name: SchemaVersion()
SELECT coalesce(max(version_id), 0) FROM schema_version WHERE is_applied;

-- name: SetSession(schema text)
-- Makes a session work in a schema, with time for the slowest step. It waits for a lock briefly.
SELECT set_config('search_path', @schema, false), set_config('statement_timeout', '300s', false), set_config('lock_timeout', '2s', false);
