-- Operations on many tasks: one row in each database, which says what to do and
-- how far it has come here. docs/adr/0018-bulk-operations.md has the protocol.

-- +goose Up
CREATE TABLE bulk_operation (
  tenant_id   int4 NOT NULL,
  id          int8 NOT NULL,
  action      int2 NOT NULL,          -- task.BulkAction
  terms       bytea NOT NULL,         -- task.BulkTerms as JSON
  body_hash   bytea NOT NULL,
  created_at  int8 NOT NULL,          -- by the clock of the tenant's home database
  wanted      int2 NOT NULL DEFAULT 1, -- 1 goes on, 2 paused, 3 aborted
  version     int4 NOT NULL DEFAULT 1, -- of what is wanted: the highest counts
  replicated_version int4 NOT NULL,   -- that all databases have; in the home database it may lag behind
  state       int2 NOT NULL DEFAULT 1, -- here: 1 running, 3 done, 4 aborted
  at_rows     bool NOT NULL DEFAULT false, -- it goes through the near tier
  position    text NOT NULL DEFAULT '',
  matched     int8 NOT NULL DEFAULT 0,
  done        int8 NOT NULL DEFAULT 0,
  failed      int8 NOT NULL DEFAULT 0,
  next_at     int8 NOT NULL DEFAULT 0, -- nothing is done before
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

-- Tasks that an operation has changed which must not change one twice.
CREATE TABLE bulk_seen (
  tenant_id int4 NOT NULL,
  operation int8 NOT NULL,
  id        int8 NOT NULL,
  CONSTRAINT bulk_seen_pkey PRIMARY KEY (tenant_id, operation, id)
);

-- +goose Down
DROP TABLE bulk_seen, bulk_operation;
