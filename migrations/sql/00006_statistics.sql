-- The tables of tasks need no statistics of columns: every plan is generic, and reads by key
-- or by due index. ANALYZE of a partitioned table and its 32 shard tables collects them
-- nevertheless, twice: in the middle of a burst it took seconds of processor time. With a
-- target of 0 it reads a few pages of each table, for its size.
--
-- Those of the far tier would even mislead. They are often analyzed while all packs lie in few buckets. Then
-- a bucket seems to be most of the table, and a generic plan reads all packs instead of one.

-- +goose Up
-- +goose StatementBegin
DO $$
DECLARE
  t regclass;
BEGIN
  FOR t IN SELECT 'task'::regclass UNION ALL SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = 'task'::regclass
    UNION ALL SELECT unnest('{far_level0, far_pack, far_locator, far_tombstone}'::regclass[]) LOOP
    EXECUTE (SELECT format('ALTER TABLE ONLY %s %s', t, string_agg(format('ALTER %I SET STATISTICS 0', a.attname), ', '))
               FROM pg_attribute a WHERE a.attrelid = t AND a.attnum > 0 AND NOT a.attisdropped);
  END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
DECLARE
  t regclass;
BEGIN
  FOR t IN SELECT 'task'::regclass UNION ALL SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = 'task'::regclass
    UNION ALL SELECT unnest('{far_level0, far_pack, far_locator, far_tombstone}'::regclass[]) LOOP
    EXECUTE (SELECT format('ALTER TABLE ONLY %s %s', t, string_agg(format('ALTER %I SET STATISTICS -1', a.attname), ', '))
               FROM pg_attribute a WHERE a.attrelid = t AND a.attnum > 0 AND NOT a.attisdropped);
  END LOOP;
END $$;
-- +goose StatementEnd
