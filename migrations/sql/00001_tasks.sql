-- One logical database: a schema whose name ends in its number (00 to 15). All
-- instants are int8 milliseconds since 1970-01-01T00:00:00Z. Text in an index has the
-- collation "C". With that of the database, an upgrade of the operating system, or a standby
-- on another one, may change the order of the index: then a key is not found, and its
-- task is added again.

-- +goose Up

-- The only clock of the system. It rounds down, so that no task fires early. date_part
-- returns a float8, which is exact to 0.24 µs. extract returns a numeric, and a call of
-- it takes 1 µs.
CREATE FUNCTION now_ms() RETURNS int8 LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT floor(date_part('epoch', statement_timestamp()) * 1000)::int8 $$;

-- The near tier: tasks (run = 0) and those runs of NON_BLOCKING tasks that have
-- a row of their own (run = their seq). due_at is the only indexed clock.
CREATE TABLE task (
  shard              int2 NOT NULL,
  tenant_id          int4 NOT NULL,
  id                 int8 NOT NULL,
  run                int8 NOT NULL,
  due_at             int8,            -- next run, ack deadline or retry; NULL: the row waits for no instant
  scheduled_at       int8 NOT NULL,   -- of the open run, else of the next run
  anchor             int8 NOT NULL,   -- scheduled_at of run seq: a point of the grid; negative: see task.Row
  begin_at           int8 NOT NULL,
  end_at             int8,            -- NULL: the task has no end
  interval_ms        int8,            -- NULL: ONE_SHOT
  seq                int8 NOT NULL DEFAULT 0,
  max_count          int8,            -- NULL: no limit
  open_runs          int8 NOT NULL DEFAULT 0,  -- bit i is set: run seq - i awaits its result
  first_claim_at     int8,            -- of the open run; NULL: no run is open. With open_runs: of the last late claim
  heard_at           int8,            -- the last word about the open run, a FAIL or a heartbeat; NULL: its first claim
  holder             int8,            -- the listener that has the lease; NULL: there is no lease
  missed             int8 NOT NULL DEFAULT 0,
  give_up_after_ms   int8 NOT NULL,
  retention_ms       int8 NOT NULL,
  created_at         int8 NOT NULL,
  ack_timeout_ms     int4 NOT NULL,
  attempt            int4 NOT NULL DEFAULT 0,
  heard_attempt      int4,            -- the attempt that heard_at is about
  failures           int4 NOT NULL DEFAULT 0,  -- of the open run: FAILs in the low 10 bits, snoozes above them
  open_rows          int4 NOT NULL DEFAULT 0,
  version            int4 NOT NULL DEFAULT 1,
  type               int2 NOT NULL,
  state              int2 NOT NULL,
  paused             bool NOT NULL DEFAULT false,
  out                bool NOT NULL DEFAULT false,  -- an attempt is delivered and awaits its result
  undecided          bool NOT NULL DEFAULT false,  -- the last claim left the decision to package task, which decides in the same transaction
  kind               text NOT NULL,
  params             bytea NOT NULL,  -- wire bytes of perceptor.v1.Params
  modeled            bool NOT NULL DEFAULT false,  -- only package task can compute its instants
  terms              bytea,           -- sealed terms (task.Seal), which no statement compares; NULL: the values that most tasks have
  -- Each statement parses the constraints of all tables that it touches, and each new
  -- version of a row is checked. A full set of constraints took 10 % of a cycle. These
  -- two protect only the place of a row. The tests of package shards check which values
  -- may occur together: their tables have more constraints.
  CONSTRAINT task_id_in_shard    CHECK (id % 512 = shard AND id >= 512),
  CONSTRAINT task_living         CHECK (state IN (1, 2))
) PARTITION BY LIST (shard);

-- Vacuum of one shard table invalidates every cached plan over all 32 shard tables, and
-- making a plan takes milliseconds. Reads of a page prune most of its dead rows.
-- Therefore vacuum runs late. Plans are generic and need no statistics, so analyze is
-- off. Vacuum does not truncate the file: new rows fill it again soon, and truncation
-- takes a lock that blocks all other statements.
-- +goose StatementBegin
DO $$
DECLARE
  first int := substring(current_schema() FROM '\d+$')::int * 32;
BEGIN
  FOR s IN first .. first + 31 LOOP
    EXECUTE format('CREATE TABLE %I PARTITION OF task FOR VALUES IN (%s) WITH (fillfactor = 90,'
      ' autovacuum_vacuum_scale_factor = 0.2, autovacuum_vacuum_threshold = 4000,'
      ' autovacuum_vacuum_insert_threshold = 100000, autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off)',
      'task_' || lpad(s::text, 3, '0'), s);
  END LOOP;
END $$;
-- +goose StatementEnd

-- int4, int2 and int8 together are aligned to 16 bytes, so the shard takes no space in
-- the key, and with it the partitioned table can declare the key. The shard must not come
-- first: "shard = ANY (..) AND due_at .." would then match this index too. Without
-- statistics the planner chose this index for half of the tables and read those whole: 40
-- pages for each claimed row instead of 14.
ALTER TABLE task ADD CONSTRAINT task_pkey PRIMARY KEY (tenant_id, shard, id, run);
CREATE INDEX task_due ON task (due_at);

-- The numbers in task ids, in blocks: one call of nextval serves 1,024 tasks.
CREATE SEQUENCE task_number INCREMENT BY 1024 MINVALUE 1024 START WITH 1024;

-- The result of an add, so that a retry of the add stores nothing. One row per request.
CREATE TABLE task_key (
  shard      int2 NOT NULL,
  tenant_id  int4 NOT NULL,
  key        text COLLATE "C" NOT NULL,
  first_id   int8 NOT NULL,           -- of consecutive ids in this shard
  n          int4 NOT NULL,           -- number of tasks in the request
  refused    int4[],                  -- indexes of the refused tasks; NULL: no task was refused
  body_hash  bytea NOT NULL,
  expires_at int8 NOT NULL,
  of_task    bool NOT NULL DEFAULT false,  -- an idempotency_key of a single task: the row lives as long as the task
  CONSTRAINT task_key_pkey PRIMARY KEY (shard, tenant_id, key)
) WITH (autovacuum_analyze_threshold = 100000);
-- Rows are inserted in the order of their expiry, so every index entry goes to the last
-- page.
CREATE INDEX task_key_expiry ON task_key (expires_at);

-- Finished tasks, kept for their retention.
CREATE TABLE task_done (
  tenant_id       int4 NOT NULL,
  id              int8 NOT NULL,
  finished_at     int8 NOT NULL,
  expires_at      int8 NOT NULL,
  begin_at        int8 NOT NULL,
  end_at          int8,
  interval_ms     int8,
  seq             int8 NOT NULL,
  max_count       int8,
  missed          int8 NOT NULL,
  give_up_after_ms int8 NOT NULL,
  retention_ms    int8 NOT NULL,
  created_at      int8 NOT NULL,
  ack_timeout_ms  int4 NOT NULL,
  version         int4 NOT NULL,
  type            int2 NOT NULL,
  state           int2 NOT NULL,
  kind            text NOT NULL,
  params          bytea NOT NULL,
  terms           bytea,
  CONSTRAINT task_done_pkey  PRIMARY KEY (tenant_id, id),
  CONSTRAINT task_done_final CHECK (state IN (3, 4, 5))
);
CREATE INDEX task_done_expiry ON task_done (expires_at);

-- Dead runs: runs that were given up. The row has all columns that a replay needs.
CREATE TABLE dead_run (
  tenant_id    int4 NOT NULL,
  id           int8 NOT NULL,
  seq          int8 NOT NULL,
  scheduled_at int8 NOT NULL,
  died_at      int8 NOT NULL,
  give_up_after_ms   int8 NOT NULL,
  retention_ms       int8 NOT NULL,
  attempt      int4 NOT NULL,
  ack_timeout_ms     int4 NOT NULL,
  reason       int2 NOT NULL,
  type         int2 NOT NULL,         -- of the task
  published    bool NOT NULL DEFAULT false,  -- its record is on the dead-letter topic
  kind         text NOT NULL,
  error        text NOT NULL,
  params       bytea NOT NULL,
  terms        bytea,
  CONSTRAINT dead_run_pkey   PRIMARY KEY (tenant_id, id, seq),
  CONSTRAINT dead_run_reason CHECK (reason IN (1, 2, 3, 4))
);
CREATE INDEX dead_run_died ON dead_run (tenant_id, died_at, id, seq);
CREATE INDEX dead_run_unpublished ON dead_run (tenant_id, died_at) WHERE NOT published;

-- The owner of each shard (item = number of the shard) and of this database's chores
-- (item = 512 + number of the database). The epoch only grows. Every claiming transaction
-- asserts the epoch and the nonce under FOR SHARE.
CREATE TABLE owner (
  item        int2 NOT NULL,
  epoch       int8 NOT NULL DEFAULT 0,
  nonce       int8 NOT NULL DEFAULT 0,
  name        text NOT NULL DEFAULT '',
  hint_addr   text NOT NULL DEFAULT '',
  hint_key    bytea NOT NULL DEFAULT '', -- authenticates hints to the owner
  acquired_at int8 NOT NULL DEFAULT 0,
  CONSTRAINT owner_pkey PRIMARY KEY (item)
) WITH (fillfactor = 50, autovacuum_analyze_threshold = 2000000000);

-- +goose StatementBegin
DO $$
DECLARE
  d int := substring(current_schema() FROM '\d+$')::int;
BEGIN
  INSERT INTO owner (item) SELECT generate_series(d * 32, d * 32 + 31);
  INSERT INTO owner (item) VALUES (512 + d);
END $$;
-- +goose StatementEnd

-- What this database is, and the server on which it was last adopted. Package
-- store/identity compares it with the server of each new connection.
CREATE TABLE database_identity (
  one               bool NOT NULL DEFAULT true,
  database          int2 NOT NULL,        -- number of this database
  uid               uuid NOT NULL,        -- of this database; never changes, also when it moves to another server
  incarnation       int8 NOT NULL DEFAULT 1, -- grows with each adoption: then it is an instant of the server's clock
  reason            text NOT NULL DEFAULT '', -- of the last adoption
  system_identifier int8 NOT NULL,        -- of the server, like the next two columns
  timeline          int4 NOT NULL,
  started_us        int8 NOT NULL,
  relation          oid NOT NULL,         -- of this table: a restored dump has another one
  CONSTRAINT database_identity_pkey PRIMARY KEY (one),
  CONSTRAINT database_identity_one  CHECK (one)
) WITH (fillfactor = 10);

-- Describes the server and this table. The timeline is 0 on a standby. A restart of the
-- server changes started_us: every copy that is put back needs one.
CREATE FUNCTION server_identity(OUT system_identifier int8, OUT timeline int4, OUT started_us int8, OUT relation oid)
LANGUAGE sql STABLE AS $$
SELECT (SELECT c.system_identifier FROM pg_control_system() c),
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int4 END,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8,
       'database_identity'::regclass::oid $$;

INSERT INTO database_identity (database, uid, system_identifier, timeline, started_us, relation)
SELECT substring(current_schema() FROM '\d+$')::int2, gen_random_uuid(), s.* FROM server_identity() s;

-- Claimed runs that may not be published yet: one row per claim. store/shards defines the
-- packed format of entries. A quarantined row stays when no shard is left in it.
CREATE TABLE outbox (
  id         int8 GENERATED ALWAYS AS IDENTITY,
  shards     int2[] NOT NULL,
  created_at int8 NOT NULL,
  entries    bytea NOT NULL,
  quarantine_reason text,             -- why the entries cannot be read; NULL: the row is not quarantined
  CONSTRAINT outbox_pkey PRIMARY KEY (id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_analyze_threshold = 2000000000, vacuum_truncate = off);

-- Rows of task because of which claims fail. They are deferred again and again.
CREATE TABLE quarantined_row (
  tenant_id int4 NOT NULL,
  id        int8 NOT NULL,
  run       int8 NOT NULL,
  seen      int8 NOT NULL,            -- when the row was last deferred
  reason    text NOT NULL,
  CONSTRAINT quarantined_row_pkey PRIMARY KEY (tenant_id, id, run)
);

-- Tenants whose rows were deferred because Kafka does not accept their records.
CREATE TABLE topic_failure (
  tenant_id int4 NOT NULL,
  since     int8 NOT NULL,
  seen      int8 NOT NULL,            -- when a row was last deferred
  CONSTRAINT topic_failure_pkey PRIMARY KEY (tenant_id)
) WITH (fillfactor = 50);

-- Rules by which claims and reports decide in SQL alone. Package task defines them. Each
-- is a single expression, so that the planner inlines it.

-- Returns the number of grid steps from a fired instant to the next one. The steps skip
-- instants that have passed, which count as missed (FIRE_ONCE).
CREATE FUNCTION grid_steps(scheduled int8, step int8, now int8, last bool) RETURNS int8
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN last THEN 1 ELSE greatest(1, (now - scheduled + step - 1) / step) END $$;

-- Returns the time from a delivery to the next one after "silent" deliveries without an
-- answer.
CREATE FUNCTION silence_ms(ack_timeout int4, silent int4) RETURNS int8
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT least(ack_timeout::int8 << least(silent, 22), greatest(ack_timeout, 3600000)::int8) $$;

-- Returns how late a claim may be so that its instant is not stored.
CREATE FUNCTION claim_tolerance(ack_timeout int4) RETURNS int8
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT least(ack_timeout / 16, 10000)::int8 $$;

-- Returns whether the ack_timeout of a run in open_runs, which is positive, has passed. Bit i
-- was claimed at anchor - i * step, but not before late_at.
CREATE FUNCTION any_silent(open_runs int8, anchor int8, step int8, late_at int8, ack_timeout int4, now int8) RETURNS bool
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(late_at + ack_timeout < now, true)
         AND open_runs >> least(63, greatest(0, (anchor + ack_timeout - now + step) / step))::int4 <> 0 $$;

-- Returns the number of deliveries that had an answer: the sum of both counts in the
-- column failures. A run has at most 1,000 failures, so they need 10 bits. A separate
-- column for snoozes would cost every row four bytes.
CREATE FUNCTION answered(failures int4) RETURNS int4
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT (failures & 1023) + (failures >> 10) $$;

-- +goose Down
DROP FUNCTION answered, any_silent, claim_tolerance, silence_ms, grid_steps;
DROP FUNCTION server_identity;
DROP TABLE topic_failure, quarantined_row, outbox, database_identity, owner, dead_run, task_done, task_key, task;
DROP SEQUENCE task_number;
DROP FUNCTION now_ms;
