-- What relays execute. Each statement is a transaction of its own, so that a relay that hangs holds no
-- locks: the server ends the statement without it.

-- name: Installed()
SELECT coalesce(max(version), 0) FROM {{schema}}.installed;

-- name: Renew(id text, name text, lease_ms int8, drop_parts int2[])
-- Announces the relay, gives parts up, prolongs the leases that it holds and takes free parts, up to its
-- share. Leases that other statements lock at this moment are left for the next time.
WITH me AS (
    INSERT INTO {{schema}}.relay AS r (id, name, seen_at) VALUES (@id, @name, clock_timestamp())
        ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp()
), live AS (
    SELECT 1 + count(*) AS relays FROM {{schema}}.relay r
     WHERE r.id <> @id AND r.seen_at > clock_timestamp() - @lease_ms * interval '1 ms'
), mine AS (
    SELECT l.part FROM {{schema}}.lease l WHERE l.holder = @id AND l.part <> ALL (@drop_parts)
), free AS (
    SELECT l.part FROM {{schema}}.lease l
     WHERE (l.holder IS NULL OR l.until < clock_timestamp()) AND l.holder IS DISTINCT FROM @id AND l.part <> ALL (@drop_parts)
     ORDER BY l.part LIMIT greatest(0, (SELECT ceil(6.0 / relays)::int8 FROM live) - (SELECT count(*) FROM mine))
       FOR UPDATE SKIP LOCKED
), changed AS (
    UPDATE {{schema}}.lease l
       SET holder = CASE WHEN l.part <> ALL (@drop_parts) THEN @id END,
           until = CASE WHEN l.part <> ALL (@drop_parts) THEN clock_timestamp() + @lease_ms * interval '1 ms' ELSE '-infinity' END
     WHERE l.part IN (SELECT part FROM free) OR l.holder = @id
    RETURNING l.part, l.holder
)
SELECT (SELECT ceil(6.0 / relays)::int8 FROM live), coalesce(array_agg(c.part ORDER BY c.part) FILTER (WHERE c.holder = @id), '{}') FROM changed c;

-- name: Leave(id text)
WITH left_parts AS (
    UPDATE {{schema}}.lease SET holder = NULL, until = '-infinity' WHERE holder = @id
), gone AS (
    DELETE FROM {{schema}}.relay WHERE id = @id OR seen_at < clock_timestamp() - interval '1 day'
)
SELECT 1;

-- name: Batches(part int2)
-- The open batches of a part, and the last one, which is its cursor.
SELECT b.number, b.id, b.positions, b.low, b.seen::text, b.upto::text, extract(epoch FROM clock_timestamp() - b.claimed_at)::float8
  FROM {{schema}}.batch b WHERE b.part = @part ORDER BY b.number;

-- Sums such as part + 0 keep a condition out of the choice of an index: operations of a transaction are found by the
-- index of transactions, because behind the cursor the other one may have many entries of removed rows.

-- name: Pending(parts int2[], lows int8[], seen text[], upto text[])
-- The parts that have operations after their cursors.
SELECT c.part FROM unnest(@parts, @lows, @seen, @upto) AS c (part, low, seen, upto)
 WHERE EXISTS (SELECT 1 FROM {{schema}}.operation o WHERE o.part = c.part AND o.position > c.low)
    OR EXISTS (SELECT 1 FROM {{schema}}.operation o
                WHERE o.xid = ANY (ARRAY(SELECT pg_snapshot_xip(c.seen::pg_snapshot))) AND o.part + 0 = c.part AND o.position + 0 <= c.low)
    OR EXISTS (SELECT 1 FROM {{schema}}.operation o
                WHERE o.xid >= pg_snapshot_xmax(c.seen::pg_snapshot) AND o.xid < c.upto::xid8 AND o.part + 0 = c.part AND o.position + 0 <= c.low);

-- name: Claim(part int2, holder text, number int8, id text, low int8, seen text, upto text, closed int8[], max_rows int8, max_bytes int8)
-- Makes a batch of the next operations of a part: first the late ones, of transactions that were open when
-- the cursor passed their positions, then those after the cursor. One snapshot decides what is visible and
-- becomes the cursor's. Without operations there is no batch.
WITH held AS MATERIALIZED (
    SELECT l.part FROM {{schema}}.lease l WHERE l.part = @part AND l.holder = @holder AND l.until > clock_timestamp() FOR SHARE
), late AS MATERIALIZED (
    (SELECT o.position, octet_length(o.body) AS bytes FROM {{schema}}.operation o
      WHERE o.xid = ANY (ARRAY(SELECT pg_snapshot_xip(@seen::pg_snapshot))) AND o.part + 0 = @part AND o.position + 0 <= @low
     UNION ALL
     SELECT o.position, octet_length(o.body) FROM {{schema}}.operation o
      WHERE o.xid >= pg_snapshot_xmax(@seen::pg_snapshot) AND o.xid < @upto::xid8 AND o.part + 0 = @part AND o.position + 0 <= @low)
    ORDER BY position LIMIT @max_rows + 1
), fresh AS MATERIALIZED (
    SELECT o.position, octet_length(o.body) AS bytes FROM {{schema}}.operation o
     WHERE o.part = @part AND o.position > @low ORDER BY o.position LIMIT @max_rows
), numbered AS (
    SELECT u.position, row_number() OVER w AS n, sum(u.bytes) OVER w AS total
      FROM (SELECT * FROM late UNION ALL SELECT * FROM fresh) u WINDOW w AS (ORDER BY u.position)
), taken AS (
    SELECT array_agg(x.position ORDER BY x.position) AS positions, max(x.position) AS last,
           count(*) FILTER (WHERE x.position <= @low) = (SELECT count(*) FROM late) AS all_late
      FROM numbered x WHERE x.n <= @max_rows AND (x.total <= @max_bytes OR x.n = 1)
), made AS (
    INSERT INTO {{schema}}.batch (part, number, id, positions, low, seen, upto)
    SELECT h.part, @number, @id, t.positions,
           CASE WHEN t.all_late THEN greatest(t.last, @low) ELSE @low END,
           CASE WHEN t.all_late THEN pg_current_snapshot() ELSE @seen::pg_snapshot END,
           CASE WHEN t.all_late THEN pg_current_xact_id() ELSE @upto::xid8 END
      FROM held h, taken t WHERE t.positions IS NOT NULL
    RETURNING positions, low, seen, upto
), closed AS (
    DELETE FROM {{schema}}.batch b WHERE b.part = @part AND b.number = ANY (@closed) AND EXISTS (SELECT 1 FROM made)
)
SELECT EXISTS (SELECT 1 FROM held), m.positions, m.low, m.seen::text, m.upto::text FROM (SELECT 1) AS one LEFT JOIN made m ON true;

-- name: Read(part int2, positions int8[])
SELECT o.position, o.op, o.form, coalesce(o.key, ''), o.body, extract(epoch FROM clock_timestamp() - o.written_at)::float8
  FROM {{schema}}.operation o WHERE o.part = @part AND o.position = ANY (@positions) ORDER BY o.position;

-- name: Keys(part int2, positions int8[])
SELECT o.position, coalesce(o.key, '') FROM {{schema}}.operation o
 WHERE o.part = @part AND o.position = ANY (@positions) ORDER BY o.position;

-- name: Finish(part int2, done int8[], refused int8[], reasons text[], messages text[])
-- Removes operations that were moved, and sets those aside that were refused. Repeating it changes nothing.
WITH gone AS (
    DELETE FROM {{schema}}.operation o WHERE o.part = @part AND o.position = ANY (@done || @refused) RETURNING o.*
)
INSERT INTO {{schema}}.refused (position, written_at, op, form, key, body, reason, message)
SELECT g.position, g.written_at, g.op, g.form, g.key, g.body, u.reason, u.message
  FROM gone g JOIN unnest(@refused, @reasons, @messages) AS u (position, reason, message) USING (position)
    ON CONFLICT DO NOTHING;

-- name: Listen()
LISTEN {{schema}};

-- name: Announced()
-- Whether commits are announced.
SELECT EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = '{{schema}}.operation'::regclass AND t.tgname = 'announce');

-- name: Announce(announced bool)
SELECT {{schema}}.perceptor_announce(@announced);

-- name: Backlog(max_rows int8)
-- The figures of an outbox. The age is that of the oldest operation that is found without reading removed rows:
-- of those in batches and of the first ones after the cursors.
WITH cursors AS (
    SELECT l.part, coalesce((SELECT b.low FROM {{schema}}.batch b WHERE b.part = l.part ORDER BY b.number DESC LIMIT 1), 0) AS low FROM {{schema}}.lease l
), waiting AS (
    SELECT o.written_at FROM cursors c CROSS JOIN LATERAL (
        SELECT o.written_at FROM {{schema}}.operation o WHERE o.part = c.part AND o.position > c.low ORDER BY o.position LIMIT @max_rows) o
    UNION ALL
    SELECT o.written_at FROM {{schema}}.batch b CROSS JOIN LATERAL unnest(b.positions) AS p (position)
      JOIN {{schema}}.operation o ON o.part = b.part AND o.position = p.position
)
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(w.written_at)), 0)::float8, (SELECT count(*) FROM (SELECT 1 FROM {{schema}}.refused LIMIT @max_rows) r)
  FROM waiting w;

-- name: Settings()
-- The tables are small when plans are made and may be large later, so no plan may scan them, or sort what an index
-- has in order. A claim is
-- durable before its rows are sent, and with it the transactions that wrote them.
SELECT set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false), set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
       set_config('default_transaction_isolation', 'read committed', false), set_config('statement_timeout', '10s', false),
       set_config('lock_timeout', '3s', false), set_config('jit', 'off', false);
