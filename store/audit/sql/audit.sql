-- Audit events in one database.

-- name: AuditInsert(
--   tenants int4[], ats int8[], ids int8[], names text[], actors text[], operators bool[], sources text[],
--   actions text[], objects text[], results text[], request_ids text[], changes text[])
-- Repeating the statement stores nothing again.
INSERT INTO audit_event (tenant_id, at, id, tenant, actor, operator, source, action, object, result, request_id, changes)
SELECT * FROM unnest(@tenants, @ats, @ids, @names, @actors, @operators, @sources, @actions, @objects, @results, @request_ids, @changes)
    ON CONFLICT DO NOTHING;

-- fragment: audit_columns
a.tenant_id, a.at, a.id, a.tenant, a.actor, a.operator, a.source, a.action, a.object, a.result, a.request_id, a.changes

-- fragment: audit_filter
a.at >= @from_at AND (a.at, a.id) < (@at, @id) AND a.at <= @at
AND (@actor = '' OR a.actor = @actor) AND (@action = '' OR a.action = @action) AND (@object = '' OR a.object = @object)

-- name: AuditOfTenant(tenant int4, actor text, action text, object text, from_at int8, at int8, id int8, max_rows int8)
-- Events of one tenant before a position, newest first.
SELECT {{audit_columns}} FROM audit_event a WHERE a.tenant_id = @tenant AND {{audit_filter}}
 ORDER BY a.at DESC, a.id DESC LIMIT @max_rows;

-- name: AuditOfAll(actor text, action text, object text, from_at int8, at int8, id int8, max_rows int8)
-- Events of all tenants before a position, newest first.
SELECT {{audit_columns}} FROM audit_event a WHERE {{audit_filter}}
 ORDER BY a.at DESC, a.id DESC LIMIT @max_rows;

-- name: AuditPurge(before_at int8, max_rows int8)
WITH gone AS (
  DELETE FROM audit_event
   WHERE ctid = ANY (ARRAY(SELECT a.ctid FROM audit_event a WHERE a.at < @before_at ORDER BY a.at, a.id LIMIT @max_rows)) RETURNING 1)
SELECT count(*) FROM gone;

-- name: AuditTrim(keep int8, max_rows int8)
-- Deletes the oldest events of tenants that have more than @keep. The recursion visits each
-- tenant by one step in the index.
WITH RECURSIVE owner AS (
  (SELECT a.tenant_id FROM audit_event a ORDER BY a.tenant_id LIMIT 1)
  UNION ALL
  SELECT (SELECT a.tenant_id FROM audit_event a WHERE a.tenant_id > o.tenant_id ORDER BY a.tenant_id LIMIT 1)
    FROM owner o WHERE o.tenant_id IS NOT NULL),
gone AS (
  DELETE FROM audit_event
   WHERE ctid = ANY (ARRAY(
     SELECT old.ctid FROM owner o CROSS JOIN LATERAL (
       SELECT a.ctid FROM audit_event a
        WHERE a.tenant_id = o.tenant_id
          AND a.at < (SELECT n.at FROM audit_event n WHERE n.tenant_id = o.tenant_id ORDER BY n.at DESC, n.id DESC OFFSET @keep - 1 LIMIT 1)
        ORDER BY a.at, a.id LIMIT @max_rows) old
     WHERE o.tenant_id IS NOT NULL LIMIT @max_rows)) RETURNING 1)
SELECT count(*) FROM gone;
