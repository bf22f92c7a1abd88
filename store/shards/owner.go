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

	"github.com/perceptor/perceptor/task"
)

// bumpLockTimeout is how long an acquisition waits for the transactions of the
// owner before: longer than any of them may idle.
const bumpLockTimeout = 4 * time.Second

// Acquire raises the epochs of shards, all of one database, and so ends every
// older ownership of them. It waits for transactions that assert one.
func (s *Store) Acquire(ctx context.Context, d int, shards []task.Shard, owner task.Owner) ([]task.Ownership, error) {
	nonce, err := newNonce()
	if err != nil {
		return nil, err
	}
	items := items(shards)
	var owned []task.Ownership
	err = s.inTx(ctx, d, "acquire", func(tx pgx.Tx) error {
		owned = owned[:0]
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", bumpLockTimeout.Milliseconds())); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sql.Get("OwnerLock"), items); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sql.Get("OwnerBump"), items, nonce, owner.Name, owner.HintAddr)
		if err != nil {
			return err
		}
		var item int16
		var epoch int64
		_, err = pgx.ForEachRow(rows, []any{&item, &epoch}, func() error {
			owned = append(owned, task.Ownership{Shard: task.Shard(item), Epoch: epoch, Nonce: nonce})
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(owned) != len(shards) {
		return nil, fmt.Errorf("acquire: database %d knows %d of %d shards", d, len(owned), len(shards))
	}
	slices.SortFunc(owned, func(a, b task.Ownership) int { return cmp.Compare(a.Shard, b.Shard) })
	return owned, nil
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

// ownedArgs spreads ownerships over the arrays that statements take.
func ownedArgs(owned []task.Ownership) (shards []int16, epochs, nonces []int64) {
	for _, o := range owned {
		shards = append(shards, int16(o.Shard))
		epochs = append(epochs, o.Epoch)
		nonces = append(nonces, o.Nonce)
	}
	return shards, epochs, nonces
}

// lostOf returns the shards whose ownership the rows of AssertOwned do not
// confirm.
func lostOf(rows pgx.Rows, owned []task.Ownership) ([]task.Shard, error) {
	current, err := pgx.CollectRows(rows, pgx.RowTo[int16])
	if err != nil || len(current) == len(owned) {
		return nil, err
	}
	var lost []task.Shard
	for _, o := range owned {
		if !slices.Contains(current, int16(o.Shard)) {
			lost = append(lost, o.Shard)
		}
	}
	return lost, nil
}

// assertOwned returns the shards that are no longer owned; until the
// transaction ends nobody can take the others over.
func assertOwned(ctx context.Context, tx pgx.Tx, owned []task.Ownership) ([]task.Shard, error) {
	shards, epochs, nonces := ownedArgs(owned)
	var lost []task.Shard
	b := &pgx.Batch{} // BEGIN goes with it
	b.Queue(sql.Get("AssertOwned"), shards, epochs, nonces).Query(func(rows pgx.Rows) (err error) {
		lost, err = lostOf(rows, owned)
		return err
	})
	err := tx.SendBatch(ctx, b).Close()
	return lost, err
}

// inOwnedTx is inTx for a step that only the owner may take: f runs when all of
// owned is still owned, and nobody can take it over meanwhile. Else nothing
// happens, and what was lost is returned.
func (s *Store) inOwnedTx(ctx context.Context, d int, step string, owned []task.Ownership, f func(pgx.Tx) error) (lost []task.Shard, err error) {
	err = s.inTx(ctx, d, step, func(tx pgx.Tx) (err error) {
		if lost, err = assertOwned(ctx, tx, owned); err != nil {
			return err
		}
		if len(lost) > 0 {
			return errNothing
		}
		return f(tx)
	})
	return lost, err
}

// Release forgets name and address of an owner that let go. The epoch stays.
func (s *Store) Release(ctx context.Context, d int, owned []task.Ownership) error {
	shards, epochs, nonces := ownedArgs(owned)
	if _, err := s.cluster.Pool(d).Exec(ctx, sql.Get("OwnerRelease"), shards, epochs, nonces); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

// ItemOwner is the ownership of an item as it is stored, for people and for hints.
type ItemOwner struct {
	// Item is a shard, or 512 + a database's number for its chores.
	Item  int
	Epoch int64
	task.Owner
	AcquiredAt task.Instant
}

// Owners lists who owns the items of database d.
func (s *Store) Owners(ctx context.Context, d int) ([]ItemOwner, error) {
	rows, err := s.cluster.Pool(d).Query(ctx, sql.Get("OwnerList"), 0)
	if err != nil {
		return nil, fmt.Errorf("list owners: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (ItemOwner, error) {
		var o ItemOwner
		var item int16
		err := row.Scan(&item, &o.Epoch, &o.Name, &o.HintAddr, &o.AcquiredAt)
		o.Item = int(item)
		return o, err
	})
}
