-- The steps of a move until the new copy follows the old one. All of them may be repeated.

-- fragment: replicated
c.relnamespace = current_schema()::regnamespace AND c.relname NOT IN ('schema_version', 'database_place')

-- fragment: subscription_of_move
s.subname = @name AND s.subdbid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())

-- name: TryLock()
-- One session at a time moves a database.
SELECT pg_try_advisory_lock(hashtextextended('perceptor move ' || current_schema(), 0));

-- name: Tables()
-- The tables that are replicated, with their sizes.
SELECT c.relname::text, pg_total_relation_size(c.oid)
  FROM pg_class c WHERE {{replicated}} AND c.relkind = 'r' ORDER BY c.relname;

-- name: Announce(target text, step text)
UPDATE database_place SET step = @step, pause_until = 0, target = @target,
       started_at = CASE WHEN target = @target THEN started_at ELSE (extract(epoch FROM clock_timestamp()) * 1000)::int8 END
 WHERE state = 'open' AND target IN ('', @target);

-- name: Step(step text, number int8)
-- The place that the move leaves has the number before that of the move.
UPDATE database_place SET step = @step WHERE state = 'open' AND number = @number - 1;

-- name: Abandon()
-- Ends a move that was not decided. No place ever has its number, so its copy is never opened.
UPDATE database_place SET number = number + 2, target = '', step = '', pause_until = 0 WHERE state = 'open' AND target <> '';

-- name: Incoming(number int8, address text)
UPDATE database_place SET state = 'incoming', number = @number, address = @address;

-- name: Days()
-- The days (since 1970-01-01) that have a partition in the history.
SELECT (to_date(right(c.relname, 8), 'YYYYMMDD') - date '1970-01-01')::int4
  FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relname ~ '^run_event_\d{8}$';

-- name: MakeDay(day int4)
SELECT run_event_make_day(@day);

-- name: HasPublication(name text)
SELECT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = @name);

-- name: HasSubscription(name text)
SELECT EXISTS (SELECT FROM pg_subscription s
                WHERE {{subscription_of_move}});

-- name: HasSlot(name text)
SELECT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = @name);

-- name: CreateSlot(name text)
SELECT pg_create_logical_replication_slot(@name, 'pgoutput');

-- name: SubscriptionState(name text)
-- Whether it is enabled, the tables that it has and those that are copied, the bytes of
-- the tables here, and how often applying or copying has failed.
SELECT s.subenabled, count(r.srrelid)::int4, count(r.srrelid) FILTER (WHERE r.srsubstate = 'r')::int4,
       coalesce(sum(pg_total_relation_size(r.srrelid)), 0)::int8,
       coalesce((SELECT t.apply_error_count + t.sync_error_count FROM pg_stat_subscription_stats t WHERE t.subid = s.oid), 0)::int8
  FROM pg_subscription s LEFT JOIN pg_subscription_rel r ON r.srsubid = s.oid
 WHERE {{subscription_of_move}}
 GROUP BY s.oid, s.subenabled;

-- name: CopiedSlots(name text)
-- How the names of the slots begin with which tables that are copied catch up.
SELECT coalesce(array_agg('pg_' || s.oid || '_sync_' || r.srrelid || '_'), '{}')
  FROM pg_subscription s JOIN pg_subscription_rel r ON r.srsubid = s.oid
 WHERE {{subscription_of_move}} AND r.srsubstate = 'f';

-- name: LostSlots(begins text[])
SELECT count(*) FROM unnest(@begins) b WHERE NOT EXISTS (SELECT FROM pg_replication_slots s WHERE starts_with(s.slot_name, b));

-- name: Lag(slot text)
-- The bytes of log that the subscriber has not confirmed, and whether the slot is still good.
SELECT coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn), 0)::int8, coalesce(s.wal_status, '') <> 'lost'
  FROM pg_replication_slots s WHERE s.slot_name = @slot;

-- name: Size()
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8 FROM pg_class c WHERE {{replicated}} AND c.relkind = 'r';

-- fragment: briefly
'SET LOCAL lock_timeout = 100; ALTER TABLE %I REPLICA IDENTITY '

-- name: CommandsIdentity()
-- Without a key the whole row says which one a change is about. While such a command waits for whoever reads the table, programs
-- wait behind it, so it waits less long than they do.
SELECT format({{briefly}} || 'FULL', c.relname)
  FROM pg_class c
 WHERE {{replicated}} AND c.relkind = 'r' AND c.relreplident <> 'f'
   AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary);

-- name: CommandsPlainIdentity()
SELECT format({{briefly}} || 'DEFAULT', c.relname) FROM pg_class c WHERE {{replicated}} AND c.relkind = 'r' AND c.relreplident = 'f';

-- name: CommandTruncate(number int8)
-- Empties a copy, unless it was opened: a command may be suspended just before this while another one ends the move. Nobody can
-- open it meanwhile, because its row is locked.
SELECT format($text$DO $$ BEGIN
  PERFORM FROM database_place WHERE state = 'incoming' AND number = %s FOR UPDATE;
  IF NOT FOUND THEN RAISE 'the copy is not that of this move any more: it is in use, or was made again'; END IF;
  TRUNCATE %s;
END $$ $text$, @number, string_agg(quote_ident(c.relname), ', ')) FROM pg_class c WHERE {{replicated}} AND c.relkind IN ('r', 'p');

-- name: CommandTakeName(made text, name text)
-- Gives a new copy the name of its database. What has the name must be the row of a copy that
-- has moved, or a copy that was never opened. Functions with the rights of their owner name the schema.
SELECT format('DROP SCHEMA IF EXISTS %I CASCADE; ALTER SCHEMA %I RENAME TO %1$I', @name, @made)
  || coalesce(string_agg(format('; ALTER FUNCTION %I.%I(%s) SET search_path = %1$I, pg_temp', @name, p.proname, pg_get_function_identity_arguments(p.oid)), ''), '')
  FROM pg_proc p WHERE p.pronamespace = to_regnamespace(@made) AND p.prosecdef;

-- name: CommandDropCopy(schema text)
SELECT format('DROP SCHEMA IF EXISTS %I CASCADE', @schema);

-- name: CommandStub(schema text, number int8, address text)
-- A schema that says where its database is, and has nothing else.
SELECT format($$CREATE SCHEMA %1$I; CREATE TABLE %1$I.database_place (one bool PRIMARY KEY DEFAULT true, number int8 NOT NULL, state text NOT NULL,
  address text NOT NULL, target text NOT NULL DEFAULT '', step text NOT NULL DEFAULT '', started_at int8 NOT NULL DEFAULT 0, pause_until int8 NOT NULL DEFAULT 0);
  INSERT INTO %1$I.database_place (number, state, address) VALUES (%2$s, 'moved', %3$L);
  GRANT USAGE ON SCHEMA %1$I TO PUBLIC; GRANT SELECT ON %1$I.database_place TO PUBLIC$$, @schema, @number, @address);

-- name: CommandPublish(name text)
SELECT format('CREATE PUBLICATION %I FOR TABLE ', @name) || string_agg(quote_ident(c.relname), ', ')
  FROM pg_class c WHERE {{replicated}} AND c.relkind = 'r';

-- name: CommandSubscribe(name text, source text)
-- It is not disabled on errors, because a lost connection is one of them.
SELECT format('CREATE SUBSCRIPTION %I CONNECTION %L PUBLICATION %1$I WITH (create_slot = false, slot_name = %1$L, streaming = off)', @name, @source);

-- name: CommandGrants(schema text)
-- The rights of roles besides the owners, for a schema of another name.
SELECT string_agg(format('GRANT %s ON %s TO %s', o.privilege, o.object, o.grantee), '; ')
  FROM (SELECT a.privilege_type AS privilege, CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || quote_ident(c.relname) AS object,
               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee
          FROM pg_class c, aclexplode(c.relacl) a
         WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p', 'S') AND a.grantee <> c.relowner
        UNION ALL
        SELECT a.privilege_type, 'SCHEMA ' || quote_ident(@schema), CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
          FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.oid = current_schema()::regnamespace AND a.grantee <> n.nspowner) o;
