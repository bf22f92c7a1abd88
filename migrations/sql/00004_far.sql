-- The far tier: tasks that are due beyond the horizon, many in one row.
-- docs/adr/0007-far-tier.md describes the protocol, store/pack the blobs.

-- +goose Up

-- Level 0: what group commits have added and no compaction has taken yet. All numbers (id / 512)
-- lie in first .. last, and no two rows overlap.
CREATE TABLE far_level0 (
  first      int8 NOT NULL,
  last       int8 NOT NULL,
  n          int4 NOT NULL,
  created_at int8 NOT NULL,
  min_tenant int4 NOT NULL,
  max_tenant int4 NOT NULL,
  quarantine_reason text,             -- why it is quarantined; NULL: it is not
  keys       bytea NOT NULL,
  params     bytea NOT NULL,
  CONSTRAINT far_level0_pkey  PRIMARY KEY (first),
  CONSTRAINT far_level0_range CHECK (first <= last AND n BETWEEN 1 AND last - first + 1)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Packs of one bucket of due time each.
CREATE TABLE far_pack (
  id         int8 GENERATED ALWAYS AS IDENTITY,
  bucket_at  int8 NOT NULL,           -- where the bucket begins
  level      int2 NOT NULL,           -- 1 minutes, 2 hours, 3 days, 4 months of 30 days
  n          int4 NOT NULL,
  min_tenant int4 NOT NULL,
  max_tenant int4 NOT NULL,
  min_id     int8 NOT NULL,
  max_id     int8 NOT NULL,
  quarantine_reason text,
  keys       bytea NOT NULL,
  params     bytea NOT NULL,
  CONSTRAINT far_pack_pkey  PRIMARY KEY (id),
  CONSTRAINT far_pack_level CHECK (level BETWEEN 1 AND 4),
  CONSTRAINT far_pack_n     CHECK (n > 0)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX far_pack_bucket ON far_pack (level, bucket_at);

-- Which packs are quarantined is asked often, and there should be none.
CREATE INDEX far_level0_quarantine ON far_level0 (first) WHERE quarantine_reason IS NOT NULL;
CREATE INDEX far_pack_quarantine   ON far_pack (id)      WHERE quarantine_reason IS NOT NULL;

-- The blobs are compressed already.
ALTER TABLE far_level0 ALTER keys SET STORAGE EXTERNAL, ALTER params SET STORAGE EXTERNAL;
ALTER TABLE far_pack    ALTER keys SET STORAGE EXTERNAL, ALTER params SET STORAGE EXTERNAL;

-- Tasks whose copy in a pack is void. pack is the id of a row of far_pack, or
-- minus the first number of a row of far_level0.
CREATE TABLE far_tombstone (
  pack int8 NOT NULL,
  id   int8 NOT NULL,
  CONSTRAINT far_tombstone_pkey PRIMARY KEY (pack, id)
);

-- In which minute each task of far_pack is due: 256 numbers a page, four bytes
-- each, big endian; 0: not there. An entry may outlive its task's stay in a pack.
CREATE TABLE far_locator (
  page    int8 NOT NULL,              -- number / 256
  latest  int4 NOT NULL,              -- the largest minute in it: after that the page is of no use
  minutes bytea NOT NULL,
  CONSTRAINT far_locator_pkey  PRIMARY KEY (page),
  CONSTRAINT far_locator_whole CHECK (length(minutes) = 1024)
);
CREATE INDEX far_locator_latest ON far_locator (latest);
ALTER TABLE far_locator ALTER minutes SET STORAGE PLAIN;

-- +goose Down
DROP TABLE far_locator, far_tombstone, far_pack, far_level0;
