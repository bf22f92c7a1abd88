-- PostgreSQL servers: the log and the disk.

-- name: ServerLoad()
-- Bytes of log: written since the redo point of the last checkpoint; max_wal_size; not archived yet, 0 without
-- an archive; kept for the slot that is furthest behind; not replayed by the slowest standby. Standbys are 0 if
-- this user may not see them.
SELECT greatest(pg_wal_lsn_diff(l.at, c.redo_lsn), 0)::int8, pg_size_bytes(current_setting('max_wal_size')),
       CASE WHEN current_setting('archive_mode') = 'off' THEN 0 ELSE greatest(pg_wal_lsn_diff(l.at, '0/0')::int8 - a.archived, 0) END,
       coalesce((SELECT max(pg_wal_lsn_diff(l.at, s.restart_lsn)) FROM pg_replication_slots s), 0)::int8,
       coalesce((SELECT max(pg_wal_lsn_diff(l.at, r.replay_lsn)) FROM pg_stat_replication r), 0)::int8
  FROM (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS at) l,
       pg_control_checkpoint() c,
       -- The end of the last archived segment. A name is 8 digits of the timeline, then 16 of the position, of
       -- which the last 8 count segments.
       (SELECT CASE WHEN s.last_archived_wal ~ '^[0-9A-F]{24}'
                    THEN ('x' || substr(s.last_archived_wal, 9, 8))::bit(32)::int8 * 4294967296
                         + (('x' || substr(s.last_archived_wal, 17, 8))::bit(32)::int8 + 1) * pg_size_bytes(current_setting('wal_segment_size'))
                    ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::int8 END AS archived
          FROM pg_stat_archiver s) a;

-- name: ServerSpace()
-- The bytes of all databases that this user may connect to; whether it may read the size of the log;
-- max_wal_size; the directory of the server's data, '' if this user may not know it; the server's port and start.
SELECT coalesce(sum(pg_database_size(d.oid)), 0)::int8, has_function_privilege('pg_ls_waldir()', 'EXECUTE'),
       pg_size_bytes(current_setting('max_wal_size')),
       coalesce((SELECT s.setting FROM pg_settings s WHERE s.name = 'data_directory'), ''),
       current_setting('port'), extract(epoch FROM pg_postmaster_start_time())::int8
  FROM pg_database d WHERE has_database_privilege(d.oid, 'CONNECT');

-- name: ServerLogBytes()
SELECT coalesce(sum(w.size), 0)::int8 FROM pg_ls_waldir() w;
