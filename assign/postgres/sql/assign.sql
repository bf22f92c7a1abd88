-- The environments in which members meet. Touch begins every transaction of a member. It locks
-- the environment, so these transactions take place one after the other, and what follows in
-- them sees all that was written before. Notices say the name of the environment.

-- name: Touch(environment text, member text)
-- Renews the lease of a member, and says whether it has one. If nobody has touched the
-- environment for half a session, or the clock was put back, leases begin anew. Half a session is that of the lease, or that of
-- this member if it is longer: a member of long sessions touches the environment seldom, which keeps no dead member of short ones
-- listed. A caller that has no lease counts as the one with the longest session.
WITH was AS MATERIALIZED (
  SELECT e.touched_at FROM assign_environment e WHERE e.name = @environment FOR UPDATE),
now AS MATERIALIZED (
  SELECT clock_timestamp() AS at, was.touched_at,
         (SELECT coalesce(max(l.session_ms) FILTER (WHERE l.id = @member), max(l.session_ms))
            FROM assign_lease l WHERE l.environment = @environment) AS session_ms
    FROM was),
touched AS (
  UPDATE assign_environment e SET touched_at = now.at FROM now WHERE e.name = @environment),
renewed AS (
  UPDATE assign_lease l SET expires_at = now.at + l.session_ms * interval '1 millisecond'
    FROM now
   WHERE l.environment = @environment
     AND (l.id = @member OR now.at NOT BETWEEN now.touched_at AND now.touched_at + greatest(l.session_ms, now.session_ms) * interval '0.5 milliseconds')
  RETURNING l.id)
SELECT EXISTS (SELECT FROM renewed r WHERE r.id = @member);

-- name: RemoveExpired(environment text)
-- Removes the members whose leases are over or missing, and tells all others if there is one.
WITH gone AS (
  DELETE FROM assign_member m
   WHERE m.environment = @environment
     AND NOT EXISTS (SELECT FROM assign_lease l
                      WHERE l.environment = m.environment AND l.id = m.id AND l.expires_at > clock_timestamp())
  RETURNING m.id)
SELECT pg_notify('assign', @environment)::text FROM gone LIMIT 1;

-- name: Documents(environment text)
SELECT d.kind, d.version, d.data FROM assign_document d WHERE d.environment = @environment;

-- name: Members(environment text)
-- The listed members, with the time that their leases last: not positive if they are over.
SELECT m.id, m.seq, m.leaving, m.version, m.data,
       (extract(epoch FROM l.expires_at - clock_timestamp()) * 1000)::int8
  FROM assign_member m JOIN assign_lease l ON l.environment = m.environment AND l.id = m.id
 WHERE m.environment = @environment
 ORDER BY m.seq;

-- name: Register(environment text, member text, session_ms int8, version int8, data bytea, most int8)
-- Lists a member with a new number, or keeps the number of one that is listed.
WITH numbered AS (
  UPDATE assign_environment e SET last_seq = e.last_seq + 1
   WHERE e.name = @environment
     AND (SELECT count(*) FROM assign_member m WHERE m.environment = @environment AND m.id <> @member) < @most
  RETURNING e.last_seq),
listed AS (
  INSERT INTO assign_member (environment, id, seq, version, data)
  SELECT @environment, @member, n.last_seq, @version, @data FROM numbered n
      ON CONFLICT (environment, id) DO UPDATE SET version = excluded.version, data = excluded.data
  RETURNING seq),
leased AS (
  INSERT INTO assign_lease (environment, id, session_ms, expires_at)
  SELECT @environment, @member, @session_ms, clock_timestamp() + @session_ms * interval '1 millisecond' FROM listed
      ON CONFLICT (environment, id) DO UPDATE SET session_ms = excluded.session_ms, expires_at = excluded.expires_at)
SELECT l.seq, pg_notify('assign', @environment)::text FROM listed l;

-- name: WriteMember(environment text, member text, version int8, next_version int8, data bytea, plan int8, tell bool)
-- Returns a row if it has written.
WITH written AS (
  UPDATE assign_member m SET version = @next_version, data = @data
   WHERE m.environment = @environment AND m.id = @member AND m.version = @version
     AND (@plan < 0 OR EXISTS (SELECT FROM assign_document d
                                WHERE d.environment = @environment AND d.kind = 'plan' AND d.version = @plan))
  RETURNING m.id)
SELECT CASE WHEN @tell THEN pg_notify('assign', @environment)::text END FROM written;

-- name: WriteDocument(environment text, kind text, version int8, next_version int8, data bytea, member text)
-- Returns a row if it has written. A version of -1 stands for any, an empty member for a caller
-- that is none.
WITH written AS (
  UPDATE assign_document d SET version = @next_version, data = @data
   WHERE d.environment = @environment AND d.kind = @kind AND (@version < 0 OR d.version = @version)
     AND (@member = '' OR EXISTS (SELECT FROM assign_member m WHERE m.environment = @environment AND m.id = @member))
  RETURNING d.kind)
SELECT pg_notify('assign', @environment)::text FROM written;

-- name: Leave(environment text, member text)
WITH left_now AS (
  UPDATE assign_member m SET leaving = true
   WHERE m.environment = @environment AND m.id = @member AND NOT m.leaving
  RETURNING m.id)
SELECT pg_notify('assign', @environment)::text FROM left_now;

-- name: RemoveMember(environment text, member text)
WITH gone AS (
  DELETE FROM assign_member m WHERE m.environment = @environment AND m.id = @member RETURNING m.id)
SELECT pg_notify('assign', @environment)::text FROM gone;

-- name: CreateEnvironment(environment text)
INSERT INTO assign_environment (name, touched_at) VALUES (@environment, clock_timestamp()) ON CONFLICT DO NOTHING;

-- name: CreateDocuments(environment text, version int8)
INSERT INTO assign_document (environment, kind, version, data)
SELECT @environment, k, @version, '' FROM unnest(ARRAY['plan', 'strategy']) AS k
    ON CONFLICT DO NOTHING;

-- name: Format(environment text)
SELECT e.format FROM assign_environment e WHERE e.name = @environment;

-- name: Environments()
SELECT e.name, (SELECT count(*) FROM assign_lease l WHERE l.environment = e.name AND l.expires_at > clock_timestamp())
  FROM assign_environment e ORDER BY e.name LIMIT 1000;

-- fragment: touched_us
(extract(epoch FROM e.touched_at) * 1000000)::int8

-- name: IdleEnvironments(environment text, stale_ms int8)
-- Returns other environments in which nobody has done anything for long, and when somebody did.
SELECT e.name, {{touched_us}} FROM assign_environment e
 WHERE e.name <> @environment AND e.touched_at < clock_timestamp() - @stale_ms * interval '1 millisecond'
   AND NOT EXISTS (SELECT FROM assign_lease l WHERE l.environment = e.name AND l.expires_at > clock_timestamp())
 ORDER BY e.name LIMIT 1000;

-- name: RemoveEnvironments(names text[], touched_us int8[])
-- Removes environments in which nobody has done anything since.
DELETE FROM assign_environment e USING unnest(@names, @touched_us) AS u (name, touched) WHERE e.name = u.name AND {{touched_us}} = u.touched
RETURNING e.name;

-- name: Authority()
SELECT a.place, a.version, (extract(epoch FROM clock_timestamp() - a.changed_at) * 1000)::int8 FROM assign_authority a;

-- name: MoveAuthority(place text, version int8)
-- Returns a row if it has replaced what has the version; 0 stands for no row.
INSERT INTO assign_authority (place, version, changed_at) VALUES (@place, @version + 1, clock_timestamp())
    ON CONFLICT (one) DO UPDATE SET place = excluded.place, version = excluded.version, changed_at = excluded.changed_at
 WHERE assign_authority.version = @version
RETURNING version;

-- name: Configure(lock_timeout_ms text)
-- Each statement must see what was committed before it, not before its transaction. Everybody
-- waits for the row of the environment, so a wait for it may take as long as an exchange.
SELECT set_config('lock_timeout', @lock_timeout_ms, false), set_config('default_transaction_isolation', 'read committed', false);

-- name: Listen()
LISTEN assign;
