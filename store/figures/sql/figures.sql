-- Figures in one database.

-- name: FiguresInsert(at int8, process int8, tenants int4[], data bytea[])
-- Repeating the statement stores nothing again.
INSERT INTO figure (tenant_id, at, process, data)
SELECT u.tenant_id, @at, @process, u.data FROM unnest(@tenants, @data) AS u (tenant_id, data)
    ON CONFLICT DO NOTHING;

-- name: FiguresOf(tenants int4[], from_at int8, max_rows int8)
-- The rows of some tenants from an instant on.
SELECT f.tenant_id, f.at, f.process, f.data
  FROM unnest(@tenants) AS u (tenant_id)
  JOIN LATERAL (SELECT * FROM figure f WHERE f.tenant_id = u.tenant_id AND f.at >= @from_at
                 ORDER BY f.at DESC LIMIT @max_rows) f ON true;

-- name: FiguresSince(from_at int8, max_rows int8)
-- The rows of all tenants from an instant on.
SELECT f.tenant_id, f.at, f.process, f.data FROM figure f WHERE f.at >= @from_at ORDER BY f.at DESC LIMIT @max_rows;

-- name: FiguresActive(from_at int8, max_rows int8)
-- The tenants that have a row from an instant on.
SELECT DISTINCT f.tenant_id FROM figure f WHERE f.at >= @from_at AND f.tenant_id > 0 LIMIT @max_rows;

-- name: FiguresPurge(age_ms int8, max_rows int8)
-- By the clock of the server, because that of one of many processes may be wrong.
WITH gone AS (
  DELETE FROM figure
   WHERE ctid = ANY (ARRAY(SELECT f.ctid FROM figure f WHERE f.at < (extract(epoch FROM statement_timestamp()) * 1000)::int8 - @age_ms ORDER BY f.at LIMIT @max_rows)) RETURNING 1)
SELECT count(*) FROM gone;
