-- Sets the parameters of a session. They are not part of the start of the connection, because a
-- pooler that keeps sessions, such as PgBouncer, refuses parameters that it does not know there.
SELECT set_config(p.name, p.value, false) FROM unnest($1::text[], $2::text[]) AS p (name, value)
