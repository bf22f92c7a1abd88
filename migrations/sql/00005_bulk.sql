-- Bulk operations. Each has a row in every database, with its action and its progress in
-- that database. docs/adr/0018-bulk-operations.md describes the protocol.

-- +goose Up
CREATE TABLE bulk_operation (
  tenant_id   int4 NOT NULL,
  id          int8 NOT NULL,
  action      int2 NOT NULL,          -- task.BulkAction
  terms       bytea NOT NULL,         -- task.BulkTerms as JSON
  body_hash   bytea NOT NULL,
  created_at  int8 NOT NULL,          -- by the clock of the tenant's home database
  wanted      int2 NOT NULL DEFAULT 1, -- 1 run, 2 pause, 3 abort
  version     int4 NOT NULL DEFAULT 1, -- of wanted; the highest version wins
  replicated_version int4 NOT NULL,   -- the version that all databases have; in the home database it may lag behind version
  state       int2 NOT NULL DEFAULT 1, -- in this database: 1 running, 3 done, 4 aborted
  at_rows     bool NOT NULL DEFAULT false, -- the operation walks through the near tier
  position    text NOT NULL DEFAULT '',
  matched     int8 NOT NULL DEFAULT 0,
  done        int8 NOT NULL DEFAULT 0,
  failed      int8 NOT NULL DEFAULT 0,
  next_at     int8 NOT NULL DEFAULT 0, -- instant before which no step is executed
  started_at  int8,
  finished_at int8,
  error       text NOT NULL DEFAULT '',
  CONSTRAINT bulk_operation_pkey   PRIMARY KEY (tenant_id, id),
  CONSTRAINT bulk_operation_wanted CHECK (wanted IN (1, 2, 3)),
  CONSTRAINT bulk_operation_state  CHECK (state IN (1, 3, 4) AND (state = 1) = (finished_at IS NULL)),
  CONSTRAINT bulk_operation_counts CHECK (done + failed <= matched)
) WITH (fillfactor = 50);
CREATE INDEX bulk_operation_open   ON bulk_operation (next_at) WHERE state = 1;
CREATE INDEX bulk_operation_unreplicated ON bulk_operation (tenant_id) WHERE replicated_version < version;

-- Tasks that an operation has changed, for operations that must not change a task twice.
CREATE TABLE bulk_seen (
  tenant_id int4 NOT NULL,
  operation int8 NOT NULL,
  id        int8 NOT NULL,
  CONSTRAINT bulk_seen_pkey PRIMARY KEY (tenant_id, operation, id)
);

-- +goose Down
DROP TABLE bulk_seen, bulk_operation;
