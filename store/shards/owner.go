package shards

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// bumpLockTimeout is how long an acquisition waits for the transactions of the previous
// owner: longer than any of them may be idle.
const bumpLockTimeout = 4 * time.Second

// Acquire raises the epochs of shards, all of one database, and so ends every older
// ownership of them. It waits for transactions that assert an older ownership.
func (s *Store) Acquire(ctx context.Context, d int, shards []task.Shard, owner task.Owner) ([]task.Ownership, error) {
	nonce, err := newNonce()
	if err != nil {
		return nil, err
	}
	items := items(shards)
	var owned []task.Ownership
	err = s.db.InTx(ctx, d, "acquire", func(tx pgx.Tx) error {
		owned = owned[:0]
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", bumpLockTimeout.Milliseconds())); err != nil {
			return err
		}
		if _, err := sql.OwnerLock.Exec(ctx, tx, items); err != nil {
			return err
		}
		rows, err := sql.OwnerBump.Query(ctx, tx, items, nonce, owner.Name, owner.HintAddr, []byte(owner.HintKey))
		if err != nil {
			return err
		}
		var item int16
		var epoch int64
		_, err = pgx.ForEachRow(rows, []any{&item, &epoch}, func() error {
			owned = append(owned, task.Ownership{Shard: task.Shard(item), Epoch: epoch, Nonce: nonce})
			return nil
		})
		if err != nil {
			return err
		}
		// This owner may be able to read what the last one could not.
		_, err = sql.RowsRetry.Exec(ctx, tx, items, quarantineFor.Milliseconds())
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(owned) != len(shards) {
		return nil, fmt.Errorf("acquire: database %d has %d of %d shards", d, len(owned), len(shards))
	}
	slices.SortFunc(owned, func(a, b task.Ownership) int { return cmp.Compare(a.Shard, b.Shard) })
	return owned, nil
}

// RaiseEpochs adopts a database and acquires all its items, its shards and its chores, in nobody's name:
// so no process relies on what it remembers, and each owner acquires its items once more. Epochs alone
// would leave sequences where restored rows have them, and ids that lost commits had given would be given again.
func (s *Store) RaiseEpochs(ctx context.Context, d int) ([]task.Ownership, error) {
	if err := s.db.Readopt(ctx, d, "its epochs were raised by hand"); err != nil {
		return nil, err
	}
	all := []task.Shard{task.ChoresShard(d)}
	for i := range task.ShardsPerDatabase {
		all = append(all, task.Shard(d*task.ShardsPerDatabase+i))
	}
	return s.Acquire(ctx, d, all, task.Owner{})
}

func newNonce() (int64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("draw nonce: %w", err)
	}
	return int64(binary.LittleEndian.Uint64(b[:])), nil
}

func items(shards []task.Shard) []int16 {
	out := make([]int16, len(shards))
	for i, s := range shards {
		out[i] = int16(s)
	}
	return out
}

// Release clears the name and address of an owner that released shards. The epoch stays.
func (s *Store) Release(ctx context.Context, d int, owned []task.Ownership) error {
	shards, epochs, nonces := kernel.OwnedArgs(owned)
	if _, err := sql.OwnerRelease.Exec(ctx, s.db.Pool(d), shards, epochs, nonces); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

// ItemOwner is the stored ownership of an item, for people and for hints.
type ItemOwner struct {
	// Item is a shard, or 512 + the number of a database for its chores.
	Item  int
	Epoch int64
	task.Owner
	AcquiredAt task.Instant
}

// Owners lists the owners of the items of database d.
func (s *Store) Owners(ctx context.Context, d int) ([]ItemOwner, error) {
	rows, err := sql.OwnerList.Query(ctx, s.db.Pool(d), 0)
	if err != nil {
		return nil, fmt.Errorf("list owners: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (ItemOwner, error) {
		var o ItemOwner
		var item int16
		var key []byte
		err := row.Scan(&item, &o.Epoch, &o.Name, &o.HintAddr, &key, &o.AcquiredAt)
		o.Item, o.HintKey = int(item), string(key)
		return o, err
	})
}
