-- The identity of one database: package identity.

-- name: Read()
-- Returns the stored identity, that of the server, whether the server is a standby, and the
-- position in its log.
SELECT i.database, i.uid::text, i.incarnation, i.reason,
       i.system_identifier, i.timeline, i.started_us, i.relation::int8,
       s.system_identifier, s.timeline, s.started_us, s.relation::int8,
       pg_is_in_recovery(),
       CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8 END
  FROM database_identity i, server_identity() s;

-- name: LastAdoption()
SELECT incarnation, reason FROM database_identity;

-- name: SetTimeouts(timeout_ms text)
SELECT set_config('lock_timeout', @timeout_ms, true), set_config('statement_timeout', @timeout_ms, true);

-- name: Lock()
SELECT incarnation FROM database_identity FOR UPDATE;

-- name: LockOwners()
SELECT item FROM owner ORDER BY item FOR UPDATE;

-- name: RaiseEpochs(nonce int8)
-- Ends every ownership.
UPDATE owner SET epoch = epoch + 1, nonce = @nonce, name = '', hint_addr = '', hint_key = '';

-- name: LeapSequences()
-- Moves each sequence beyond all numbers that may have been drawn and forgotten. A database
-- may go back to the same copy twice, even within a second. So the clock with its
-- microseconds decides as long as fewer than 2^20 numbers are drawn per second: later
-- incarnations draw greater numbers. Nothing may be added to the clock, for a copy knows the
-- same sum in each of its lives. Only a sequence that is beyond the clock leaps from where it
-- is. The sequences keep their step, because the numbers of tasks are drawn in aligned blocks.
SELECT setval(format('%I.%I', q.schemaname, q.sequencename)::regclass,
              CASE WHEN n.last < n.clock THEN n.clock ELSE n.last + 4294967296 END / q.increment_by * q.increment_by)
  FROM pg_sequences q,
       LATERAL (SELECT coalesce(q.last_value, q.min_value) AS last, (extract(epoch FROM clock_timestamp()) * 1048576)::int8 AS clock) n
 WHERE q.schemaname = current_schema() AND q.data_type = 'int8'::regtype;

-- name: RaiseSettings()
-- Makes claims read the settings again, and moves the numbers of later tenants beyond those
-- that may be forgotten. There, too, the clock decides, in seconds since 2026.
UPDATE settings s SET version = greatest(s.version + 1, (extract(epoch FROM clock_timestamp()) * 1000)::int8),
  tenant_floor = CASE WHEN n.last < n.clock THEN n.clock ELSE n.last + 1024 END
  FROM (SELECT greatest((SELECT coalesce(max(id), 0) FROM tenant), (SELECT coalesce(max(id), 0) FROM deleted_tenant),
                        (SELECT tenant_floor FROM settings)) AS last,
               extract(epoch FROM clock_timestamp() - timestamptz '2026-01-01Z')::int4 AS clock) n;

-- name: Adopt(reason text, known_incarnation int8)
-- The new incarnation is greater than all former ones, also than those that are forgotten.
-- The parts of concurrency caps that this database knew may have been taken back since.
WITH parts AS (UPDATE cap_fence SET part = 0)
UPDATE database_identity i
   SET incarnation = greatest(i.incarnation + 1, @known_incarnation + 1, (extract(epoch FROM clock_timestamp()) * 1000)::int8),
       reason = @reason, system_identifier = s.system_identifier, timeline = s.timeline, started_us = s.started_us, relation = s.relation
  FROM server_identity() s
RETURNING i.incarnation;
