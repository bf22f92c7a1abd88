-- Imports of many tasks. docs/adr/0046-imports.md describes the protocol.

-- +goose Up

-- An import, in the home database of its tenant.
CREATE TABLE import (
  tenant_id   int4 NOT NULL,
  id          int8 NOT NULL,
  terms       bytea NOT NULL,         -- JSON of task.ImportTerms
  body_hash   bytea NOT NULL,         -- of the request; a repeated request has the same one
  created_at  int8 NOT NULL,
  state       int2 NOT NULL DEFAULT 1, -- 1 open, 2 finished, 3 aborted, 4 a rollback was started
  finished_at int8,
  CONSTRAINT import_pkey  PRIMARY KEY (tenant_id, id),
  CONSTRAINT import_state CHECK (state BETWEEN 1 AND 4 AND (state = 1) = (finished_at IS NULL))
);
CREATE INDEX import_finished ON import (finished_at) WHERE finished_at IS NOT NULL;

-- An import in a database that has some of its chunks. Each chunk holds a shared lock of the
-- row while it is stored.
CREATE TABLE import_part (
  tenant_id int4 NOT NULL,
  import_id int8 NOT NULL,
  closed    bool NOT NULL DEFAULT false, -- no further chunk is stored here
  CONSTRAINT import_part_pkey PRIMARY KEY (tenant_id, import_id)
);

-- The markers of stored chunks, each in the database that has the tasks.
CREATE TABLE import_chunk (
  tenant_id  int4 NOT NULL,
  import_id  int8 NOT NULL,
  number     int8 NOT NULL,
  whole      bool NOT NULL,           -- all parts of the chunk are stored, here and in other databases
  lines      int4 NOT NULL,           -- the counts are those of this part
  added      int4 NOT NULL,
  skipped    int4 NOT NULL,
  updated    int4 NOT NULL,
  rejected   int4 NOT NULL,
  checksum   int8 NOT NULL,
  numbers    int8[] NOT NULL,         -- of the ids that were drawn: pairs of the first and the last one
  run_counts bytea,                   -- for tasks that have had runs elsewhere: a uvarint for each number
  CONSTRAINT import_chunk_pkey PRIMARY KEY (tenant_id, import_id, number)
);

-- +goose Down
DROP TABLE import_chunk, import_part, import;
