-- Who owns which item, if dispatchers do not meet in ZooKeeper. Package assign/postgres says
-- who writes what. Only the tables of database 0 are used.

-- +goose Up

-- A cluster of members. Every exchange of a member locks this row and updates touched_at, so
-- pages have room for that.
CREATE TABLE assign_environment (
  name       text COLLATE "C" PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 64),
  format     int4 NOT NULL DEFAULT 1,
  last_seq   int8 NOT NULL DEFAULT 0,
  touched_at timestamptz NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 500);

-- The plan and the strategy of an environment. Empty data: never written.
CREATE TABLE assign_document (
  environment text COLLATE "C" NOT NULL REFERENCES assign_environment ON DELETE CASCADE,
  kind        text COLLATE "C" NOT NULL CHECK (kind IN ('plan', 'strategy')),
  version     int8 NOT NULL CHECK (version >= 0),
  data        bytea NOT NULL CHECK (octet_length(data) <= 1048576),
  PRIMARY KEY (environment, kind)
);

-- The listed members, with what they publish: who they are and which items they have.
CREATE TABLE assign_member (
  environment text COLLATE "C" NOT NULL REFERENCES assign_environment ON DELETE CASCADE,
  id          text COLLATE "C" NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 64),
  seq         int8 NOT NULL,
  leaving     bool NOT NULL DEFAULT false,
  version     int8 NOT NULL CHECK (version >= 0),
  data        bytea NOT NULL CHECK (octet_length(data) <= 1048576),
  PRIMARY KEY (environment, id)
) WITH (fillfactor = 30, autovacuum_vacuum_threshold = 500);

-- Until when a member is listed unless it renews its lease, by the clock of the server.
CREATE TABLE assign_lease (
  environment text COLLATE "C" NOT NULL,
  id          text COLLATE "C" NOT NULL,
  session_ms  int8 NOT NULL CHECK (session_ms BETWEEN 1 AND 3600000),
  expires_at  timestamptz NOT NULL,
  PRIMARY KEY (environment, id),
  FOREIGN KEY (environment, id) REFERENCES assign_member ON DELETE CASCADE
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 500);

-- Where dispatchers agree since the last move between ZooKeeper and these tables. No row: as
-- configured.
CREATE TABLE assign_authority (
  one        bool PRIMARY KEY DEFAULT true CHECK (one),
  place      text NOT NULL CHECK (octet_length(place) BETWEEN 1 AND 64),
  version    int8 NOT NULL CHECK (version > 0),
  changed_at timestamptz NOT NULL
);

-- +goose Down
DROP TABLE assign_authority;
DROP TABLE assign_lease;
DROP TABLE assign_member;
DROP TABLE assign_document;
DROP TABLE assign_environment;
