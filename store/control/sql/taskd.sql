-- The processes of the API: the table taskd.

-- name: TaskdSeen(name text, alive_ms int8)
-- Records that a process is alive, and returns the number of those that were alive within
-- @alive_ms. Forgets processes that were not for ten times as long, and those that were seen
-- later than now: the clock was set back since, and those that live are seen again soon.
WITH clock AS (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS now),
gone AS (
  DELETE FROM taskd WHERE name IN (
    SELECT t.name FROM taskd t, clock WHERE t.seen_at NOT BETWEEN clock.now - 10 * @alive_ms AND clock.now + @alive_ms AND t.name <> @name LIMIT 100 FOR UPDATE OF t SKIP LOCKED)),
own AS (
  INSERT INTO taskd AS t (name, seen_at) SELECT @name, clock.now FROM clock
      ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at)
SELECT 1 + count(*) FROM taskd t, clock WHERE t.seen_at > clock.now - @alive_ms AND t.seen_at <= clock.now + @alive_ms AND t.name <> @name;

-- name: TaskdGone(name text)
DELETE FROM taskd WHERE name = @name;
