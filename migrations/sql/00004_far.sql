-- The far tier: tasks that are due beyond the horizon, many in one row.
-- docs/adr/0007-far-tier.md describes the protocol, store/pack the blobs.

-- +goose Up

-- Level 0: packs that group commits have added and that are not compacted yet. The
-- numbers (id / 512) of a pack's tasks lie in first .. last, and no two ranges overlap.
CREATE TABLE far_level0 (
  first      int8 NOT NULL,
  last       int8 NOT NULL,
  n          int4 NOT NULL,
  created_at int8 NOT NULL,
  min_tenant int4 NOT NULL,
  max_tenant int4 NOT NULL,
  newer      bool NOT NULL DEFAULT false,  -- a program found a version that it cannot read
  quarantine_reason text,             -- why the pack is quarantined; NULL: it is not
  keys       bytea NOT NULL,
  params     bytea NOT NULL,
  CONSTRAINT far_level0_pkey  PRIMARY KEY (first),
  CONSTRAINT far_level0_range CHECK (first <= last AND n BETWEEN 1 AND last - first + 1)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Packs. All tasks of a pack are due in one bucket.
CREATE TABLE far_pack (
  id         int8 GENERATED ALWAYS AS IDENTITY,
  bucket_at  int8 NOT NULL,           -- begin of the bucket
  level      int2 NOT NULL,           -- 1 minutes, 2 hours, 3 days, 4 months of 30 days
  n          int4 NOT NULL,
  min_tenant int4 NOT NULL,
  max_tenant int4 NOT NULL,
  min_id     int8 NOT NULL,
  max_id     int8 NOT NULL,
  newer      bool NOT NULL DEFAULT false,
  quarantine_reason text,
  keys       bytea NOT NULL,
  params     bytea NOT NULL,
  CONSTRAINT far_pack_pkey  PRIMARY KEY (id),
  CONSTRAINT far_pack_level CHECK (level BETWEEN 1 AND 4),
  CONSTRAINT far_pack_n     CHECK (n > 0)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX far_pack_bucket ON far_pack (level, bucket_at);

-- Queries look for packs of newer versions and for quarantined packs often, and usually
-- there are none.
CREATE INDEX far_level0_newer ON far_level0 (first) WHERE newer;
CREATE INDEX far_pack_newer   ON far_pack (id)      WHERE newer;
CREATE INDEX far_level0_quarantine ON far_level0 (first) WHERE quarantine_reason IS NOT NULL;
CREATE INDEX far_pack_quarantine   ON far_pack (id)      WHERE quarantine_reason IS NOT NULL;

-- The blobs are compressed already.
ALTER TABLE far_level0 ALTER keys SET STORAGE EXTERNAL, ALTER params SET STORAGE EXTERNAL;
ALTER TABLE far_pack    ALTER keys SET STORAGE EXTERNAL, ALTER params SET STORAGE EXTERNAL;

-- Tasks whose copy in a pack is void. pack is the id of a row of far_pack, or the negated
-- first number of a row of far_level0.
CREATE TABLE far_tombstone (
  pack int8 NOT NULL,
  id   int8 NOT NULL,
  CONSTRAINT far_tombstone_pkey PRIMARY KEY (pack, id)
);

-- The locator: the minute in which each task of far_pack is due. A page covers 256 task
-- numbers. It has four bytes for each, big endian; 0 means that the task is in no pack.
-- An entry may remain after its task has left the pack.
CREATE TABLE far_locator (
  page    int8 NOT NULL,              -- number / 256
  latest  int4 NOT NULL,              -- the largest minute in the page; after it the page has no use
  minutes bytea NOT NULL,
  CONSTRAINT far_locator_pkey  PRIMARY KEY (page),
  CONSTRAINT far_locator_whole CHECK (length(minutes) = 1024)
);
CREATE INDEX far_locator_latest ON far_locator (latest);
ALTER TABLE far_locator ALTER minutes SET STORAGE PLAIN;

-- +goose Down
DROP TABLE far_locator, far_tombstone, far_pack, far_level0;
