-- A sort that is larger than work_mem of this transaction, so that the server writes it to its disk: about
-- a megabyte. It needs no right, no table, and leaves nothing.
SELECT count(*) FROM (SELECT repeat(md5(n::text), 8) AS line FROM generate_series(1, 4096) AS n ORDER BY line OFFSET 0) AS sorted
