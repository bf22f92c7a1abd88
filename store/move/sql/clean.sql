-- What is removed after a move, or when one is aborted.

-- name: CommandDetach(name text)
-- Ends a subscription without asking the other server.
SELECT format('ALTER SUBSCRIPTION %1$I DISABLE; ALTER SUBSCRIPTION %1$I SET (slot_name = NONE); DROP SUBSCRIPTION %1$I', @name);

-- name: CommandDropPublished(name text)
SELECT format('DROP PUBLICATION IF EXISTS %I', @name);

-- fragment: slots_of_move
s.database = current_database() AND (s.slot_name = @name OR starts_with(s.slot_name, @sync))

-- name: SyncSlots(name text)
-- How the names of the slots begin that a subscription has at the other server while it copies.
SELECT 'pg_' || s.oid || '_sync_' FROM pg_subscription s
 WHERE {{subscription_of_move}};

-- name: FurtherSlots()
-- The slots with which subscriptions of other servers copy tables of this PostgreSQL database. Of which subscription one is, only its
-- server knows.
SELECT coalesce(string_agg(s.slot_name::text, ', ' ORDER BY s.slot_name), '') FROM pg_replication_slots s
 WHERE s.database = current_database() AND s.slot_name ~ '^pg_[0-9]+_sync_';

-- name: EndSlots(name text, sync text)
-- Ends who uses the slots of a move.
SELECT count(pg_terminate_backend(s.active_pid)) FROM pg_replication_slots s WHERE {{slots_of_move}} AND s.active_pid IS NOT NULL;

-- name: DropSlots(name text, sync text)
-- Drops the slots of a move that nobody uses. Returns how many are left.
SELECT count(CASE WHEN s.active_pid IS NULL THEN pg_drop_replication_slot(s.slot_name)::text END),
       count(*) FILTER (WHERE s.active_pid IS NOT NULL)
  FROM pg_replication_slots s WHERE {{slots_of_move}};

-- name: Cleaned(number int8)
-- The place may be the one that the next move leaves: the step is then of that one.
UPDATE database_place SET address = '', step = CASE WHEN target = '' THEN '' ELSE step END WHERE state = 'open' AND number = @number;

-- name: HasSchema(schema text)
SELECT to_regnamespace(@schema) IS NOT NULL;

-- name: CommandDropOld(schema text)
SELECT format('DROP SCHEMA %I CASCADE', @schema);

-- name: CommandCount(schema text, name text)
SELECT format('SELECT count(*) FROM %I.%I', @schema, @name);
