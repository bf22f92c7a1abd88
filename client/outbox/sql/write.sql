-- What writers execute in the transaction of the caller.

-- name: WriteOne(op int2, form int2, body bytea)
-- An operation without a key needs no lock.
INSERT INTO {{schema}}.operation (part, op, form, body) VALUES (1 + 3 * floor(random() * 2), @op, @form, @body);

-- name: WriteKeyed(op int2, form int2, key text, body bytea)
SELECT {{schema}}.write(@op, @form, ARRAY[@key], ARRAY[@body]);

-- name: WriteMany(op int2, form int2, keys text, bodies text)
-- Arrays travel as text, because not every driver of database/sql knows them. An array of bytea has no
-- element that needs quotes.
SELECT {{schema}}.write(@op, @form, ARRAY(SELECT convert_from(k, 'UTF8') FROM unnest(@keys::bytea[]) WITH ORDINALITY AS u (k, n) ORDER BY n), @bodies::bytea[]);
