-- Who owns which shard. Epochs come from here and from nowhere else.

-- name: OwnerLock
-- In order, so that two acquirers do not wait for each other. $1 items
SELECT item FROM owner WHERE item = ANY ($1::int2[]) ORDER BY item FOR UPDATE;

-- name: OwnerBump
-- $1 items, $2 nonce, $3 name, $4 hint address
UPDATE owner SET epoch = epoch + 1, nonce = $2, name = $3, hint_addr = $4, acquired_at = now_ms()
 WHERE item = ANY ($1::int2[])
RETURNING item, epoch;

-- name: OwnerRelease
-- $1 items, $2 epochs, $3 nonces
UPDATE owner o SET name = '', hint_addr = ''
  FROM unnest($1::int2[], $2::int8[], $3::int8[]) AS u (item, epoch, nonce)
 WHERE o.item = u.item AND o.epoch = u.epoch AND o.nonce = u.nonce;

-- name: OwnerList
-- $1: only items from this number on
SELECT item, epoch, name, hint_addr, acquired_at FROM owner WHERE item >= $1 ORDER BY item;
