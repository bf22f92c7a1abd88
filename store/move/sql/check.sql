-- What both servers must have before a database is moved.

-- name: Server()
SELECT (SELECT system_identifier FROM pg_control_system()), current_setting('server_version_num')::int4, pg_is_in_recovery(),
       current_setting('wal_level'), current_setting('server_encoding'),
       current_setting('max_replication_slots')::int4 - (SELECT count(*) FROM pg_replication_slots)::int4,
       current_setting('max_wal_senders')::int4 - (SELECT count(*) FROM pg_stat_replication)::int4,
       coalesce((SELECT CASE WHEN s.setting::int8 < 0 THEN -1 ELSE s.setting::int8 * 1048576 END
                   FROM pg_settings s WHERE s.name = 'max_slot_wal_keep_size'), -1),
       current_setting('max_logical_replication_workers')::int4 - (SELECT count(*) FROM pg_stat_activity a WHERE a.backend_type LIKE 'logical replication%')::int4,
       coalesce(current_setting('max_active_replication_origins', true), current_setting('max_replication_slots'))::int4
         - (SELECT count(*) FROM pg_replication_origin)::int4,
       (SELECT count(*) FROM pg_prepared_xacts)::int4,
       (SELECT s.setting::int8 FROM pg_settings s WHERE s.name = 'statement_timeout');

-- name: Clock()
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8;

-- name: Rights()
-- Whether the role may create schemas and publications in this PostgreSQL database, is a
-- superuser, may replicate, may subscribe, and owns the tables of the schema. Managed services
-- give these rights to members of roles of their own, without the attributes.
SELECT has_database_privilege(current_database(), 'CREATE'), r.rolsuper,
       r.rolsuper OR r.rolreplication OR EXISTS (SELECT FROM pg_roles s WHERE s.rolname = 'rds_replication' AND pg_has_role(r.oid, s.oid, 'USAGE')),
       r.rolsuper OR EXISTS (SELECT FROM pg_roles s WHERE pg_has_role(r.oid, s.oid, 'USAGE')
                                AND s.rolname IN ('pg_create_subscription', 'rds_superuser', 'cloudsqlsuperuser', 'azure_pg_admin')),
       NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = to_regnamespace(current_schema()::text) AND NOT pg_has_role(r.oid, c.relowner, 'USAGE'))
  FROM pg_roles r WHERE r.rolname = current_user;

-- name: Used()
-- The bytes of all databases that this role may connect to, and the log at its largest.
SELECT coalesce(sum(pg_database_size(d.oid)), 0)::int8 + pg_size_bytes(current_setting('max_wal_size'))
  FROM pg_database d WHERE has_database_privilege(d.oid, 'CONNECT');

-- name: Copies(schema text)
-- Whether there is a schema of this name, and how many tables it has.
SELECT to_regnamespace(@schema) IS NOT NULL,
       (SELECT count(*) FROM pg_class c WHERE c.relnamespace = to_regnamespace(@schema) AND c.relkind IN ('r', 'p'))::int4;

-- name: Roles()
-- The roles that have rights here besides the owners.
SELECT DISTINCT a.grantee::regrole::text
  FROM (SELECT c.relacl AS acl, c.relowner AS owner FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace
        UNION ALL SELECT n.nspacl, n.nspowner FROM pg_namespace n WHERE n.oid = current_schema()::regnamespace) o,
       aclexplode(o.acl) a
 WHERE a.grantee NOT IN (0, o.owner);

-- name: NoRoles(names text[])
SELECT n FROM unnest(@names) n WHERE to_regrole(n) IS NULL;

-- name: Owner()
-- The role that owns the tables, which runs the migrations.
SELECT pg_get_userbyid(relowner)::text FROM pg_class WHERE oid = 'database_place'::regclass;

-- name: ActAs(owner text)
-- Whether there is a role of this name besides that of the session, whether the session may act
-- as it, and whether it may create schemas.
SELECT r.oid IS NOT NULL, coalesce(pg_has_role(r.oid, 'MEMBER'), false), coalesce(has_database_privilege(r.oid, current_database(), 'CREATE'), false)
  FROM (SELECT) one LEFT JOIN pg_roles r ON r.rolname = @owner AND r.rolname <> current_user;
