-- Day calendars in the home database of their tenant.

-- name: CalendarCreate(
--   tenant int4, name text, zone text, expanded_until int8, froms int8[], untils int8[], max_calendars int8)
-- Returns no row if the name exists, or if the tenant has so many calendars. Concurrent calls
-- may exceed the limit by their number.
INSERT INTO day_calendar (tenant_id, name, updated_at, zone, expanded_until, froms, untils)
SELECT @tenant, @name, now_ms(), @zone, @expanded_until, @froms, @untils
 WHERE (SELECT count(*) FROM day_calendar c WHERE c.tenant_id = @tenant) < @max_calendars
    ON CONFLICT DO NOTHING
RETURNING version, updated_at;

-- name: CalendarReplace(
--   tenant int4, name text, zone text, expanded_until int8, froms int8[], untils int8[], if_version int4, before int8)
-- Version 0 means any. From the instant @before on nothing is replaced.
UPDATE day_calendar c SET version = c.version + 1, updated_at = greatest(now_ms(), c.updated_at + 1), zone = @zone,
       expanded_until = @expanded_until, froms = @froms, untils = @untils
 WHERE c.tenant_id = @tenant AND c.name = @name AND @if_version IN (0, c.version) AND now_ms() < @before
RETURNING c.version, c.updated_at;

-- name: CalendarDelete(tenant int4, name text, if_version int4)
DELETE FROM day_calendar c WHERE c.tenant_id = @tenant AND c.name = @name AND @if_version IN (0, c.version)
RETURNING c.version, c.updated_at;

-- name: CalendarsDrop(tenant int4)
DELETE FROM day_calendar c WHERE c.tenant_id = @tenant;

-- name: CalendarGet(tenant int4, name text)
SELECT c.name, c.version, c.updated_at, c.zone, c.expanded_until, cardinality(c.froms), c.froms, c.untils
  FROM day_calendar c WHERE c.tenant_id = @tenant AND c.name = @name;

-- name: CalendarList(tenant int4, max_rows int8)
-- The calendars without their ranges.
SELECT c.name, c.version, c.updated_at, c.zone, c.expanded_until, cardinality(c.froms), NULL::int8[], NULL::int8[]
  FROM day_calendar c WHERE c.tenant_id = @tenant ORDER BY c.name LIMIT @max_rows;

-- name: CalendarVersions(tenants int4[], names text[])
-- What tells whether a calendar has changed.
SELECT c.tenant_id, c.name, c.updated_at
  FROM unnest(@tenants, @names) AS u (tenant_id, name)
  JOIN day_calendar c ON c.tenant_id = u.tenant_id AND c.name = u.name;
