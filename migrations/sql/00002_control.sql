-- Tenants and tokens. They are written to all databases and read from any database, so
-- that authentication continues when one server is down.

-- +goose Up
CREATE TABLE tenant (
  id                int4 NOT NULL,
  uid               uuid NOT NULL DEFAULT gen_random_uuid(),  -- tells two tenants apart that got the same id
  name              text COLLATE "C" NOT NULL,
  max_params_bytes  int4 NOT NULL,
  default_retention_ms int8 NOT NULL,
  dead_retention_ms int8,             -- of dead runs; NULL: the default of the installation
  created_at        int8 NOT NULL,
  history           int2 NOT NULL,    -- task.HistoryLevel; rates has its bounds
  rates             jsonb NOT NULL DEFAULT '{}',  -- task.Rates; a missing limit means no limit
  keys              jsonb NOT NULL DEFAULT '[]',  -- control.Key, by id; the secrets are not encrypted; a start of 2^63-1: reserved
  version           int8 NOT NULL,    -- of the settings; the highest version wins
  CONSTRAINT tenant_history CHECK (history BETWEEN 1 AND 5),
  CONSTRAINT tenant_pkey PRIMARY KEY (id),
  CONSTRAINT tenant_uid_key UNIQUE (uid),
  CONSTRAINT tenant_name_key UNIQUE (name),
  CONSTRAINT tenant_name CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
  CONSTRAINT tenant_id CHECK (id > 0)
);

-- Deleted tenants. Their ids are never used again, and a database that still has such a
-- tenant, because it was restored, does not bring it back: it loses the tenant too.
CREATE TABLE deleted_tenant (
  id         int4 NOT NULL,
  deleted_at int8 NOT NULL,
  uid        uuid,                    -- NULL: this database did not have the tenant
  CONSTRAINT deleted_tenant_pkey PRIMARY KEY (id)
);

CREATE TABLE token (
  id          text COLLATE "C" NOT NULL, -- public; the secret begins with it
  secret_hash bytea NOT NULL,         -- SHA-256 of the secret
  scopes      int4 NOT NULL,          -- a bit for each scope: 1 << its number in the API
  tenant_uid  uuid,                   -- NULL: the scopes are those of the installation
  description text NOT NULL,
  created_at  int8 NOT NULL,
  expires_at  int8,
  revoked_at  int8,                   -- in the future: a successor replaces it until then
  CONSTRAINT token_pkey PRIMARY KEY (id),
  -- A tenant's scopes: TENANT, ADD, READ, OPERATE, LISTEN, TENANT_ADMIN. Others: ADMIN, ADMIN_READ, INSPECT.
  CONSTRAINT token_scopes CHECK (scopes <> 0 AND scopes & ~CASE WHEN tenant_uid IS NULL THEN 772 ELSE 250 END = 0),
  CONSTRAINT token_hash CHECK (length(secret_hash) = 32)
);
CREATE INDEX token_tenant ON token (tenant_uid);
CREATE INDEX token_revoked ON token (revoked_at) WHERE revoked_at IS NOT NULL;

-- When tokens were last used. Only database 0 has rows, so that a use is one write. They may
-- be lost.
CREATE TABLE token_use (
  token_id text COLLATE "C" NOT NULL,
  used_at  int8 NOT NULL,
  CONSTRAINT token_use_pkey PRIMARY KEY (token_id),
  CONSTRAINT token_use_token FOREIGN KEY (token_id) REFERENCES token ON DELETE CASCADE
) WITH (fillfactor = 50);

-- The version of all tenants' settings in this database. A transaction that changes a
-- tenant raises the version. It takes, exclusively, the advisory lock that claims share.
CREATE TABLE settings (
  one          bool NOT NULL DEFAULT true,
  version      int8 NOT NULL DEFAULT 1,
  tenant_floor int4 NOT NULL DEFAULT 0,  -- new tenants get greater ids
  compared     int8 NOT NULL DEFAULT 1,  -- the incarnation in which the tenants here were last compared with all copies
  CONSTRAINT settings_pkey PRIMARY KEY (one),
  CONSTRAINT settings_one CHECK (one)
) WITH (fillfactor = 10);
INSERT INTO settings DEFAULT VALUES;

-- The used tokens of tenants with a rate, in their home database. tat_us is the
-- theoretical arrival time of GCRA (ITU-T I.371), in microseconds since 1970: the instant
-- at which the rate has made up for all granted tokens.
CREATE TABLE token_bucket (
  tenant_id int4 NOT NULL,
  purpose   int2 NOT NULL,            -- 1 claims; the others are rates of task.Quota
  tat_us    int8 NOT NULL,
  CONSTRAINT token_bucket_pkey PRIMARY KEY (tenant_id, purpose),
  CONSTRAINT token_bucket_purpose CHECK (purpose BETWEEN 1 AND 7)
) WITH (fillfactor = 10);

-- The processes of the API, in databases 0 and 8. They share the rate of a tenant whose
-- bucket does not answer. seen_at is real time, also with a virtual clock.
CREATE TABLE taskd (
  name    text COLLATE "C" NOT NULL,
  seen_at int8 NOT NULL,
  CONSTRAINT taskd_pkey PRIMARY KEY (name)
) WITH (fillfactor = 10);

-- Cap leases, in the tenant's home database. A cap lease is the right to claim runs of a
-- capped kind. epoch numbers the leases of a kind and only grows. shared_epoch is the last
-- lease after which each database could have its part of the cap.
CREATE TABLE cap_lease (
  tenant_id    int4 NOT NULL,
  kind         text COLLATE "C" NOT NULL,
  epoch        int8 NOT NULL,
  shared_epoch int8 NOT NULL DEFAULT -1,
  expires_at   int8 NOT NULL,
  CONSTRAINT cap_lease_pkey PRIMARY KEY (tenant_id, kind)
) WITH (fillfactor = 50);

-- The newest cap lease under which the open runs of this database were counted. Claims
-- under older leases fail. part is the part of the cap that this database may use without a
-- lease. It follows from the cap that the lease knew, and from what databases have lent. It
-- is NULL if that lease has taken it back.
CREATE TABLE cap_fence (
  tenant_id int4 NOT NULL,
  kind      text COLLATE "C" NOT NULL,
  epoch     int8 NOT NULL,
  part      int4,
  cap       int4 NOT NULL,
  CONSTRAINT cap_fence_pkey PRIMARY KEY (tenant_id, kind)
) WITH (fillfactor = 50);

-- Claimed runs of capped kinds. A row stays after its run has ended, until the runs of
-- the kind are checked.
CREATE TABLE capped_run (
  tenant_id int4 NOT NULL,
  kind      text COLLATE "C" NOT NULL,
  id        int8 NOT NULL,
  seq       int8 NOT NULL,
  CONSTRAINT capped_run_pkey PRIMARY KEY (tenant_id, kind, id, seq)
);

-- Audit events: who changed what. An event is in the tenant's home database, or in another
-- one if that did not answer. at is of the clock of the process that recorded the event.
CREATE TABLE audit_event (
  tenant_id  int4 NOT NULL,           -- 0: the installation, -1: refused logins
  at         int8 NOT NULL,
  id         int8 NOT NULL,           -- random
  tenant     text NOT NULL,           -- its name; '' for none
  actor      text NOT NULL,
  operator   bool NOT NULL,           -- the actor does not belong to the tenant
  source     text NOT NULL,
  action     text NOT NULL,
  object     text NOT NULL,
  result     text NOT NULL,
  request_id text NOT NULL,
  changes    text NOT NULL,           -- list of task.AuditChange as JSON; '' for none
  CONSTRAINT audit_event_pkey PRIMARY KEY (tenant_id, at, id)
);
CREATE INDEX audit_event_at ON audit_event (at, id);

-- The number of events of each tenant in this database. A transaction that adds or deletes
-- events changes it.
CREATE TABLE audit_count (
  tenant_id int4 NOT NULL,
  events    int8 NOT NULL,
  CONSTRAINT audit_count_pkey PRIMARY KEY (tenant_id)
) WITH (fillfactor = 50);

-- +goose Down
DROP TABLE audit_count, audit_event, capped_run, cap_fence, cap_lease, taskd, token_bucket, settings, token_use, token, deleted_tenant, tenant;
