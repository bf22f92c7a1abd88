-- Where the logical databases are: package place.

-- name: Read()
-- What this copy of the database is, and the clock of its server.
SELECT number, state, address, target, step, started_at, pause_until, (extract(epoch FROM clock_timestamp()) * 1000)::int8
  FROM database_place;

-- name: Open(number int8)
-- Opens a copy of which the old place has said that it is the new one. It goes on knowing
-- the old place, which has to be cleaned up.
UPDATE database_place SET state = 'open' WHERE number = @number AND state = 'incoming';

-- name: All()
-- What this database knows of the places of all.
SELECT database, number, address, moving FROM placement ORDER BY database;

-- name: Put(database int2, number int8, address text, moving bool)
-- Writes down a place, unless a later one is known.
INSERT INTO placement AS p (database, number, address, moving) VALUES (@database, @number, @address, @moving)
ON CONFLICT (database) DO UPDATE SET number = excluded.number, address = excluded.address, moving = excluded.moving
 WHERE excluded.number >= p.number;
