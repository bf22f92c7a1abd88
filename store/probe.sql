-- The smallest transaction that has to be written, and copied to standbys, before it commits.
SELECT pg_logical_emit_message(true, 'perceptor', '')
