-- The valid indexes of a database. Those of partitions have names of their own and are parts of these.
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE c.relnamespace = current_schema()::regnamespace AND i.indisvalid AND NOT c.relispartition
