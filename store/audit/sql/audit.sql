-- Audit events in one database.

-- name: AuditInsert(
--   tenants int4[], ats int8[], ids int8[], names text[], actors text[], operators bool[], sources text[],
--   actions text[], objects text[], results text[], request_ids text[], changes text[])
-- Repeating the statement stores nothing again.
WITH added AS (
  INSERT INTO audit_event (tenant_id, at, id, tenant, actor, operator, source, action, object, result, request_id, changes)
  SELECT * FROM unnest(@tenants, @ats, @ids, @names, @actors, @operators, @sources, @actions, @objects, @results, @request_ids, @changes)
      ON CONFLICT DO NOTHING RETURNING tenant_id)
INSERT INTO audit_count AS c (tenant_id, events) SELECT a.tenant_id, count(*) FROM added a {{add_counts}};

-- fragment: add_counts
-- All statements lock the counts by tenant, so that none waits for another in a circle.
GROUP BY 1 ORDER BY 1 ON CONFLICT (tenant_id) DO UPDATE SET events = c.events + excluded.events

-- fragment: audit_columns
a.tenant_id, a.at, a.id, a.tenant, a.actor, a.operator, a.source, a.action, a.object, a.result, a.request_id, a.changes

-- fragment: audit_filter
a.at >= @from_at AND (a.at, a.id) < (@at, @id) AND a.at <= @at
AND (@actor = '' OR a.actor = @actor) AND (@action = '' OR a.action = @action) AND (@object = '' OR a.object = @object)

-- name: AuditOfTenant(tenant int4, own bool, actor text, action text, object text, from_at int8, at int8, id int8, max_rows int8)
-- Events of one tenant before a position, newest first.
SELECT {{audit_columns}} FROM audit_event a WHERE a.tenant_id = @tenant AND NOT (@own AND a.operator AND @actor <> '') AND {{audit_filter}}
 ORDER BY a.at DESC, a.id DESC LIMIT @max_rows;

-- name: AuditOfAll(actor text, action text, object text, from_at int8, at int8, id int8, max_rows int8)
-- Events of all tenants before a position, newest first.
SELECT {{audit_columns}} FROM audit_event a WHERE {{audit_filter}}
 ORDER BY a.at DESC, a.id DESC LIMIT @max_rows;

-- fragment: counted
counted AS (INSERT INTO audit_count AS c (tenant_id, events) SELECT g.tenant_id, -count(*) FROM gone g {{add_counts}})

-- name: AuditPurge(age_ms int8, max_rows int8)
-- By the clock of the server: that of one of many processes may be wrong by years, and what it deleted would be gone.
WITH gone AS (
  DELETE FROM audit_event
   WHERE ctid = ANY (ARRAY(SELECT a.ctid FROM audit_event a WHERE a.at < (extract(epoch FROM statement_timestamp()) * 1000)::int8 - @age_ms ORDER BY a.at, a.id LIMIT @max_rows)) RETURNING tenant_id),
{{counted}}
SELECT count(*) FROM gone;

-- name: AuditTrim(keep int8, max_rows int8)
-- Deletes the oldest events of tenants that have more than @keep. It reads the counts of all
-- tenants, and of the events only those that it deletes.
WITH gone AS (
  DELETE FROM audit_event
   WHERE ctid = ANY (ARRAY(
     SELECT old.ctid FROM audit_count n CROSS JOIN LATERAL (
       SELECT a.ctid FROM audit_event a WHERE a.tenant_id = n.tenant_id ORDER BY a.at, a.id LIMIT least(n.events - @keep, @max_rows)) old
      WHERE n.events > @keep LIMIT @max_rows)) RETURNING tenant_id),
forgotten AS (DELETE FROM audit_count n WHERE n.events = 0),
{{counted}}
SELECT count(*) FROM gone;
