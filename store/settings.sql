-- Sets the parameters of a session. They are not part of the start of the connection, because a
-- pooler that keeps sessions, such as PgBouncer, refuses parameters that it does not know there.
-- With synchronous_commit = off, which a server, a database or a role may have for other
-- programs, a crash of the server would lose calls that were answered. Every other value waits for
-- the disk, and how much it waits for standbys is up to the operator.
SELECT set_config(p.name, p.value, false) FROM unnest($1::text[], $2::text[]) AS p (name, value)
 UNION ALL
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
