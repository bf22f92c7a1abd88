-- The tables of the service, and what it does with them.

-- name: CreateTables()
CREATE TABLE added (n int8 PRIMARY KEY);
CREATE TABLE cell (id int4 PRIMARY KEY, gen int4 NOT NULL) WITH (fillfactor = 50);
CREATE TABLE life (key text PRIMARY KEY, v int4 NOT NULL, triggers int4 NOT NULL, ended bool NOT NULL) WITH (fillfactor = 50);
CREATE TABLE drawn (key text, seq int4, v int4, PRIMARY KEY (key, seq));

-- name: InsertAdded(numbers int8[])
INSERT INTO added SELECT unnest(@numbers);

-- name: InsertCells(cells int4)
INSERT INTO cell SELECT i, 0 FROM generate_series(0, @cells - 1) i;

-- name: LockCell(id int4)
SELECT gen FROM cell WHERE id = @id FOR UPDATE;

-- name: NextCell(id int4)
UPDATE cell SET gen = gen + 1 WHERE id = @id;

-- name: InsertLife(key text)
INSERT INTO life VALUES (@key, 0, 0, false);

-- name: ChangeLife(key text)
UPDATE life SET v = v + 1 WHERE key = @key RETURNING v;

-- name: TriggerLife(key text)
WITH l AS (UPDATE life SET triggers = triggers + 1 WHERE key = @key RETURNING key, triggers, v)
INSERT INTO drawn SELECT key, triggers, v FROM l;

-- name: EndLife(key text)
UPDATE life SET ended = true WHERE key = @key;

-- name: CountLeft()
SELECT count(*) FROM (SELECT 1 FROM perceptor_outbox.operation LIMIT 1000) o;

-- name: CountTables()
SELECT (SELECT count(*) FROM added), (SELECT count(*) FROM drawn), (SELECT count(*) FROM life), (SELECT count(*) FROM perceptor_outbox.refused);

-- name: ListAdded()
SELECT n FROM added;

-- name: ListLives()
SELECT key, v, triggers, ended FROM life;

-- name: ListDrawn()
SELECT key, seq, v FROM drawn;
