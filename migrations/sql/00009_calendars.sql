-- Day calendars of tenants, in the tenant's home database: named sets of ranges of instants
-- that schedules exclude or are limited to.

-- +goose Up
CREATE TABLE day_calendar (
  tenant_id      int4 NOT NULL,
  name           text COLLATE "C" NOT NULL,
  version        int4 NOT NULL DEFAULT 1,
  updated_at     int8 NOT NULL,
  zone           text NOT NULL,
  expanded_until int8,             -- recurring events were expanded until then; NULL: none was
  froms          int8[] NOT NULL,  -- the ranges, sorted; they do not touch each other
  untils         int8[] NOT NULL,
  CONSTRAINT day_calendar_pkey PRIMARY KEY (tenant_id, name)
);

-- +goose Down
DROP TABLE day_calendar;
