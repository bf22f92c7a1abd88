-- Exact counters, and the history of runs.

-- +goose Up

-- State transitions that are not folded yet. Each transaction writes its own row with
-- parallel arrays: counts[i] tasks of tenants[i] and types[i] went from from_cells[i] to
-- to_cells[i]. Cells (task.Cell): 0 none, 1 SCHEDULED, 2 RUNNING, 3 COMPLETED, 4
-- CANCELLED, 5 FAILED (3 to 5: still kept), 6 to 8 the same but no longer kept, 9 dead
-- runs. The table has no index: a read reads all rows, and a fold takes any rows.
CREATE TABLE counter_delta (
  tenants    int4[] NOT NULL,
  types      int2[] NOT NULL,
  from_cells int2[] NOT NULL,
  to_cells   int2[] NOT NULL,
  counts     int8[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);

-- The sums of the folded transitions. Only a repair can decrease added and died.
CREATE TABLE counter (
  tenant_id        int4 NOT NULL,
  type             int2 NOT NULL,
  added            int8 NOT NULL,     -- the sum of the next eight columns
  scheduled        int8 NOT NULL,
  running          int8 NOT NULL,
  completed        int8 NOT NULL,
  cancelled        int8 NOT NULL,
  failed           int8 NOT NULL,
  purged_completed int8 NOT NULL,
  purged_cancelled int8 NOT NULL,
  purged_failed    int8 NOT NULL,
  dead             int8 NOT NULL,     -- dead runs that are kept
  died             int8 NOT NULL,     -- all dead runs since the beginning
  CONSTRAINT counter_pkey PRIMARY KEY (tenant_id, type),
  CONSTRAINT counter_balance CHECK (added = scheduled + running + completed + cancelled + failed
                                            + purged_completed + purged_cancelled + purged_failed)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Events of runs. The table is append-only. It has one partition for each day, which is
-- made ahead.
CREATE TABLE run_event (
  at           int8 NOT NULL,
  id           int8 NOT NULL,         -- of the task
  seq          int8 NOT NULL,
  scheduled_at int8,                  -- NULL: not known
  tenant_id    int4 NOT NULL,
  attempt      int4 NOT NULL,
  event        int2 NOT NULL,
  detail       text NOT NULL DEFAULT '',
  timeline     bytea NOT NULL DEFAULT '',  -- sealed stages of the attempt (task.Timeline); '': not known
  CONSTRAINT run_event_event CHECK (event BETWEEN 1 AND 8)
) PARTITION BY RANGE (at);
CREATE INDEX run_event_task ON run_event (id, at);

-- Takes the events of days that have no partition.
CREATE TABLE run_event_default PARTITION OF run_event DEFAULT;

-- Makes the partition of a day (days since 1970-01-01). It returns false if the partition
-- exists, or if the default partition has rows of that day, which have to stay there. The
-- partition is created as a separate table and then attached, which blocks no insert into
-- the other partitions.
-- +goose StatementBegin
CREATE FUNCTION run_event_make_day(day int4) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
  name  text := 'run_event_' || to_char(to_timestamp(day * 86400.0) AT TIME ZONE 'UTC', 'YYYYMMDD');
  first int8 := day * 86400000::int8;
BEGIN
  IF to_regclass(quote_ident(name)) IS NOT NULL
     OR EXISTS (SELECT FROM run_event_default e WHERE e.at >= first AND e.at < first + 86400000) THEN
    RETURN false;
  END IF;
  EXECUTE format('CREATE TABLE %I (LIKE run_event INCLUDING ALL) WITH (autovacuum_vacuum_insert_threshold = -1)', name);
  EXECUTE format('ALTER TABLE run_event ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', name, first, first + 86400000);
  RETURN true;
END $$;
-- +goose StatementEnd

-- Drops the oldest partition that lies wholly before a day. It returns whether
-- there was one.
-- +goose StatementBegin
CREATE FUNCTION run_event_drop_before(day int4) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
  name text;
BEGIN
  SELECT c.relname INTO name
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
   WHERE i.inhparent = 'run_event'::regclass
     AND c.relname < 'run_event_' || to_char(to_timestamp(day * 86400.0) AT TIME ZONE 'UTC', 'YYYYMMDD')
     AND c.relname ~ '^run_event_\d{8}$'
   ORDER BY c.relname LIMIT 1;
  IF name IS NULL THEN
    RETURN false;
  END IF;
  EXECUTE format('DROP TABLE %I', name);
  RETURN true;
END $$;
-- +goose StatementEnd

-- The role of the programs may not own the tables. Both functions work with the rights of their
-- owner, and find nothing but what is in this schema.
-- +goose StatementBegin
DO $$
BEGIN
  EXECUTE format('ALTER FUNCTION run_event_make_day(int4) SECURITY DEFINER SET search_path = %I, pg_temp', current_schema());
  EXECUTE format('ALTER FUNCTION run_event_drop_before(int4) SECURITY DEFINER SET search_path = %I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd

-- Figures of the last hour: what one process has counted of one tenant in 10 s (package
-- figures). All rows of an interval are in one database, the next one if that does not answer.
CREATE TABLE figure (
  tenant_id int4 NOT NULL,            -- 0: the sum of all tenants; -1: the process describes itself
  at        int8 NOT NULL,            -- begin of the interval, by the clock of the process
  process   int8 NOT NULL,            -- random
  data      bytea NOT NULL,
  CONSTRAINT figure_pkey PRIMARY KEY (tenant_id, at, process)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
CREATE INDEX figure_at ON figure (at);

-- The load calendar of the tasks of this database (package forecast), as the chores have counted
-- it.
CREATE TABLE forecast (
  part       int2 NOT NULL,           -- -1: all tenants together; else the tenants whose number mod 64 it is
  counted_at int8 NOT NULL,
  data       bytea NOT NULL,
  CONSTRAINT forecast_pkey PRIMARY KEY (part)
) WITH (fillfactor = 50);

-- +goose Down
DROP TABLE forecast, figure;
DROP FUNCTION run_event_drop_before, run_event_make_day;
DROP TABLE run_event, counter, counter_delta;
