-- The switch: what happens while programs wait.

-- name: Pause(pause_ms int8)
UPDATE database_place SET pause_until = (extract(epoch FROM clock_timestamp()) * 1000)::int8 + @pause_ms WHERE state = 'open';

-- name: EndPause()
UPDATE database_place SET pause_until = 0 WHERE state = 'open';

-- name: LockLimits(lock_ms text, transaction_ms text, deadlock_ms text)
-- If the session or its program dies, the locks end all the same. Whoever waits for deadlock_timeout
-- ends an autovacuum that is in the way, and is the one that fails in a deadlock; roles that may not
-- set it wait for the server's second.
SELECT set_config('lock_timeout', @lock_ms, true), set_config('idle_in_transaction_session_timeout', @transaction_ms, true),
       set_config('statement_timeout', @transaction_ms, true),
       CASE WHEN has_parameter_privilege('deadlock_timeout', 'SET') THEN set_config('deadlock_timeout', @deadlock_ms, true) END,
       CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN set_config('synchronous_commit', 'on', true) END;

-- name: CommandLock()
-- EXCLUSIVE waits for all who write or lock rows, and lets readers read. The partitioned
-- tables are locked themselves, because a statement that waits for a partition alone would not
-- look it up again.
SELECT 'LOCK TABLE ' || string_agg(quote_ident(c.relname), ', ' ORDER BY c.relname) || ' IN EXCLUSIVE MODE'
  FROM pg_class c
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND c.relname NOT IN ('schema_version', 'database_place', 'move_mark');

-- name: Mark(mark int8)
UPDATE move_mark SET mark = @mark;

-- name: Marked()
SELECT mark FROM move_mark;

-- name: Sequences()
-- The sequences, and the last number of each: 0 if none was drawn.
SELECT sequencename::text, coalesce(last_value, 0) FROM pg_sequences WHERE schemaname = current_schema() ORDER BY 1;

-- name: SetSequence(name text, value int8, number int8)
-- Sets a sequence of a copy, unless it was opened or is that of another move. Nobody can open it meanwhile.
SELECT setval(format('%I.%I', current_schema(), @name)::regclass, @value)
  FROM (SELECT FROM database_place WHERE state = 'incoming' AND number = @number FOR UPDATE) p;

-- name: Ready(step text, number int8)
-- A synchronous commit: with it all that was applied before is on the disk of the new server.
UPDATE database_place SET step = @step WHERE state = 'incoming' AND number = @number
RETURNING number;

-- name: CommandMoveAway(schema text, away text)
SELECT format('ALTER SCHEMA %I RENAME TO %I', @schema, @away);
