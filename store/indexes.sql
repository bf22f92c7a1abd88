-- The tables of a database, with '', and its valid indexes, with their tables. Partitions and their indexes have names of
-- their own and are parts of these.
SELECT c.relname, '' FROM pg_class c
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
UNION ALL
SELECT t.relname, c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
 WHERE c.relnamespace = current_schema()::regnamespace AND i.indisvalid AND NOT c.relispartition
