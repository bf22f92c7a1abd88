-- The tables of an outbox, in the caller's database. The package comment explains the protocol.
-- Running this again changes nothing.

SELECT pg_advisory_xact_lock(hashtext('{{schema_name}}'), 0); -- one migration at a time

CREATE SCHEMA IF NOT EXISTS {{schema}};

CREATE TABLE IF NOT EXISTS {{schema}}.installed (
    version     int4 PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT now()
);

CREATE SEQUENCE IF NOT EXISTS {{schema}}.position_seq AS int8 CACHE 1;

-- Operations with keys are in the parts 0, 2, 3 and 5, by the hash of the key; those without are in 1 and 4.
CREATE TABLE IF NOT EXISTS {{schema}}.operation (
    part       int2 NOT NULL CHECK (part BETWEEN 0 AND 5),
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    position   int8 NOT NULL DEFAULT nextval(CASE WHEN pg_current_xact_id() IS NOT NULL THEN '{{schema}}.position_seq'::regclass END),
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    op         int2 NOT NULL CHECK (op BETWEEN 1 AND 5),
    form       int2 NOT NULL CHECK (form > 0),
    key        text CHECK (octet_length(key) BETWEEN 1 AND 128),
    body       bytea NOT NULL CHECK (octet_length(body) <= 4194304),
    PRIMARY KEY (part, position)
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX IF NOT EXISTS operation_xid ON {{schema}}.operation (xid);

CREATE TABLE IF NOT EXISTS {{schema}}.batch (
    part       int2 NOT NULL,
    number     int8 NOT NULL,
    id         text NOT NULL,
    positions  int8[] NOT NULL,
    low        int8 NOT NULL,
    seen       pg_snapshot NOT NULL,
    upto       xid8 NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (part, number)
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE IF NOT EXISTS {{schema}}.lease (
    part   int2 PRIMARY KEY,
    holder text,
    until  timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500);

INSERT INTO {{schema}}.lease (part) SELECT generate_series(0, 5) ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS {{schema}}.relay (
    id      text PRIMARY KEY,
    name    text NOT NULL,
    seen_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500);

CREATE TABLE IF NOT EXISTS {{schema}}.refused (
    position   int8 PRIMARY KEY,
    written_at timestamptz NOT NULL,
    op         int2 NOT NULL,
    form       int2 NOT NULL,
    key        text,
    body       bytea NOT NULL,
    reason     text NOT NULL,
    message    text NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- write adds operations of one kind. It locks their keys until the end of the transaction, before it
-- draws positions, so that positions of one key have the order of commits. An empty key is none.
CREATE OR REPLACE FUNCTION {{schema}}.write(op int2, form int2, keys text[], bodies bytea[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    k int4;
BEGIN
    FOR k IN SELECT DISTINCT hashtext(u.key) FROM unnest(keys) AS u (key) WHERE u.key <> '' ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(hashtext('{{schema_name}}'), k);
    END LOOP;
    INSERT INTO {{schema}}.operation (part, op, form, key, body)
    SELECT CASE WHEN u.key <> '' THEN ('{0, 2, 3, 5}'::int2[])[1 + (hashtext(u.key) & 3)] ELSE 1 + 3 * floor(random() * 2) END, $1, $2, nullif(u.key, ''), u.body
      FROM unnest(keys, bodies) WITH ORDINALITY AS u (key, body, n) ORDER BY u.n;
END $$;

-- write_json is write for a body in the JSON of the HTTP API.
CREATE OR REPLACE FUNCTION {{schema}}.write_json(op int2, key text, body jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {{schema}}.write($1, 2::int2, ARRAY[coalesce($2, '')], ARRAY[convert_to($3::text, 'UTF8')]);
END $$;

-- task_json returns a task in the JSON of the HTTP API, for the function of a name.
CREATE OR REPLACE FUNCTION {{schema}}.task_json(caller text, kind text, params jsonb, begin_time timestamptz, options jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    task jsonb;
BEGIN
    IF coalesce(kind, '') = '' OR octet_length(kind) > 100 THEN
        RAISE EXCEPTION '%: kind has % bytes; 1 to 100 are allowed', caller, octet_length(coalesce(kind, ''))
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(coalesce(params, '{}')) <> 'object' OR jsonb_typeof(coalesce(options, '{}')) <> 'object' THEN
        RAISE EXCEPTION '%: params and options are JSON objects, not % and %', caller, jsonb_typeof(params), jsonb_typeof(options)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    task := '{"type": "ONE_SHOT"}' || coalesce(options, '{}') || jsonb_build_object('kind', kind,
        'params', (SELECT coalesce(jsonb_object_agg(p.key, coalesce(p.value, 'null')), '{}') FROM jsonb_each_text(coalesce(params, '{}')) AS p));
    IF begin_time IS NOT NULL THEN
        -- to_char has no text for infinity, which many tables use for never, and drops the BC of a year.
        IF begin_time NOT BETWEEN '1970-01-01 00:00:00Z' AND '9000-01-01 00:00:00Z' THEN
            RAISE EXCEPTION '%: begin_time % is not between 1970-01-01T00:00:00Z and 9000-01-01T00:00:00Z', caller, begin_time
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        task := task || jsonb_build_object('beginTime', to_char(begin_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'));
    END IF;
    RETURN task;
END $$;

CREATE OR REPLACE FUNCTION {{schema}}.key_of(task jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(task ->> 'idempotencyKey', task ->> 'idempotency_key')
$$;

-- perceptor_add adds a task within the transaction. params is an object; its values that are no strings
-- become their JSON text. options are further fields of the task in the JSON of the HTTP API, such as
-- {"type": "NON_BLOCKING", "interval": "60s", "idempotencyKey": "order-17"}. Without a type the task is a
-- ONE_SHOT; without begin_time it begins when it is moved.
CREATE OR REPLACE FUNCTION {{schema}}.perceptor_add(
    kind text, params jsonb DEFAULT '{}', begin_time timestamptz DEFAULT NULL, options jsonb DEFAULT '{}'
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    task jsonb := {{schema}}.task_json('perceptor_add', kind, params, begin_time, options);
BEGIN
    PERFORM {{schema}}.write_json(1::int2, {{schema}}.key_of(task), jsonb_build_object('task', task));
END $$;

-- perceptor_upsert is perceptor_add for a task with an idempotency key that may exist: the unfinished task of the key gets
-- all terms of the call, but it keeps its begin_time if there is none.
CREATE OR REPLACE FUNCTION {{schema}}.perceptor_upsert(
    kind text, params jsonb DEFAULT '{}', begin_time timestamptz DEFAULT NULL, options jsonb DEFAULT '{}'
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    task jsonb := {{schema}}.task_json('perceptor_upsert', kind, params, begin_time, options);
BEGIN
    PERFORM {{schema}}.write_json(5::int2, {{schema}}.required_key({{schema}}.key_of(task)), jsonb_build_object('task', task));
END $$;

-- perceptor_cancel ends the task with an idempotency key.
CREATE OR REPLACE FUNCTION {{schema}}.perceptor_cancel(key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {{schema}}.write_json(2::int2, {{schema}}.required_key(key), jsonb_build_object('idempotencyKey', key));
END $$;

-- perceptor_update changes fields of the task with an idempotency key: those that changes has.
CREATE OR REPLACE FUNCTION {{schema}}.perceptor_update(key text, changes jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(changes) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'perceptor_update: changes is not a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM {{schema}}.write_json(3::int2, {{schema}}.required_key(key), jsonb_build_object('task', changes || jsonb_build_object('idempotencyKey', key)));
END $$;

-- perceptor_trigger opens a run of the task with an idempotency key now.
CREATE OR REPLACE FUNCTION {{schema}}.perceptor_trigger(key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {{schema}}.write_json(4::int2, {{schema}}.required_key(key), jsonb_build_object('idempotencyKey', key));
END $$;

CREATE OR REPLACE FUNCTION {{schema}}.required_key(key text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF coalesce(key, '') = '' THEN
        RAISE EXCEPTION 'perceptor: the idempotency key is missing' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN key;
END $$;

-- announce notifies the relays that listen. A transaction notifies once, when it commits.
CREATE OR REPLACE FUNCTION {{schema}}.announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('{{schema_name}}', '');
    RETURN NULL;
END $$;

-- perceptor_announce makes each commit that has written operations notify the relays, or ends that.
CREATE OR REPLACE FUNCTION {{schema}}.perceptor_announce(announced bool) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF announced = EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = '{{schema}}.operation'::regclass AND t.tgname = 'announce') THEN
        RETURN;
    END IF;
    IF announced THEN
        CREATE TRIGGER announce AFTER INSERT ON {{schema}}.operation FOR EACH STATEMENT EXECUTE FUNCTION {{schema}}.announce();
    ELSE
        DROP TRIGGER announce ON {{schema}}.operation;
    END IF;
END $$;

INSERT INTO {{schema}}.installed (version) VALUES (1) ON CONFLICT DO NOTHING;
