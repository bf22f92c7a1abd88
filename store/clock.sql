-- The real clock of the server, in microseconds since 1970: now_ms() may be a virtual one.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8;
