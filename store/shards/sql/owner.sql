-- The owners of shards and chores. Epochs are raised here and nowhere else.

-- name: OwnerLock(items int2[])
-- Locks the items in ascending order, so that two acquiring members do not wait for each
-- other.
SELECT item FROM owner WHERE item = ANY (@items) ORDER BY item FOR UPDATE;

-- name: OwnerBump(items int2[], nonce int8, name text, hint_addr text, hint_key bytea)
UPDATE owner SET epoch = epoch + 1, nonce = @nonce, name = @name, hint_addr = @hint_addr, hint_key = @hint_key, acquired_at = now_ms()
 WHERE item = ANY (@items)
RETURNING item, epoch;

-- name: OwnerRelease(items int2[], epochs int8[], nonces int8[])
UPDATE owner o SET name = '', hint_addr = '', hint_key = ''
  FROM unnest(@items, @epochs, @nonces) AS u (item, epoch, nonce)
 WHERE o.item = u.item AND o.epoch = u.epoch AND o.nonce = u.nonce;

-- name: OwnerList(first_item int2)
SELECT item, epoch, name, hint_addr, hint_key, acquired_at FROM owner WHERE item >= @first_item ORDER BY item;
