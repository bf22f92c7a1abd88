-- Where the logical databases are, and moves of this one to another server. Packages
-- store/place and store/move say who writes what.

-- +goose Up

-- What this copy of the database is. The row belongs to the copy: it is not replicated.
CREATE TABLE database_place (
  one         bool NOT NULL DEFAULT true,
  number      int8 NOT NULL DEFAULT 1,        -- of the place; grows with each move
  state       text NOT NULL DEFAULT 'open',
  address     text NOT NULL DEFAULT '',       -- moved: the new place; incoming: the old one; open: the old one until it is cleaned up
  target      text NOT NULL DEFAULT '',       -- open: where the database is being moved to; '': nowhere
  step        text NOT NULL DEFAULT '',       -- of that move
  started_at  int8 NOT NULL DEFAULT 0,        -- of that move, by the real clock, in milliseconds
  pause_until int8 NOT NULL DEFAULT 0,        -- programs begin nothing here until then
  CONSTRAINT database_place_pkey  PRIMARY KEY (one),
  CONSTRAINT database_place_one   CHECK (one),
  CONSTRAINT database_place_state CHECK (state IN ('open', 'incoming', 'moved'))
) WITH (fillfactor = 10);

INSERT INTO database_place DEFAULT VALUES;

-- What this database knows of the places of all databases. No row: as configured.
CREATE TABLE placement (
  database int2 NOT NULL,
  number   int8 NOT NULL,
  address  text NOT NULL,       -- '': as configured
  moving   bool NOT NULL,       -- the database is being moved away from there
  CONSTRAINT placement_pkey PRIMARY KEY (database)
);

-- Written at the old place and replicated: when a mark has arrived, everything that was
-- committed before it has arrived, too.
CREATE TABLE move_mark (
  one  bool NOT NULL DEFAULT true,
  mark int8 NOT NULL DEFAULT 0,
  CONSTRAINT move_mark_pkey PRIMARY KEY (one),
  CONSTRAINT move_mark_one  CHECK (one)
);

INSERT INTO move_mark DEFAULT VALUES;

-- +goose Down
DROP TABLE move_mark, placement, database_place;
