package kernel

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// OwnedArgs converts ownerships into the arrays that statements take.
func OwnedArgs(owned []task.Ownership) (items []int16, epochs, nonces []int64) {
	for _, o := range owned {
		items = append(items, int16(o.Shard))
		epochs = append(epochs, o.Epoch)
		nonces = append(nonces, o.Nonce)
	}
	return items, epochs, nonces
}

// LostOf returns the shards whose ownership the rows of AssertOwned do not
// confirm.
func LostOf(rows pgx.Rows, owned []task.Ownership) ([]task.Shard, error) {
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

// assertOwned returns the shards that are no longer owned. Until the transaction ends,
// no other process can acquire the remaining shards.
func assertOwned(ctx context.Context, tx pgx.Tx, owned []task.Ownership) ([]task.Shard, error) {
	items, epochs, nonces := OwnedArgs(owned)
	var lost []task.Shard
	b := &pgx.Batch{} // BEGIN travels with this batch
	sql.AssertOwned.Queue(b, items, epochs, nonces).Query(func(rows pgx.Rows) (err error) {
		lost, err = LostOf(rows, owned)
		return err
	})
	err := tx.SendBatch(ctx, b).Close()
	return lost, err
}

// InOwnedTx is [Databases.InTx] for a step that only the owner may take. It runs f if
// all of owned is still owned; no other process can acquire it until the transaction
// ends. Otherwise it does nothing and returns the lost shards. It ends when the server
// stalls, as nobody waits for the outcome of such a step but others wait for its turn.
func (db *Databases) InOwnedTx(ctx context.Context, d int, step string, owned []task.Ownership, f func(pgx.Tx) error) (lost []task.Shard, err error) {
	ctx, cancel := db.UntilStalled(ctx, d)
	defer cancel()
	err = db.InTx(ctx, d, step, func(tx pgx.Tx) (err error) {
		if lost, err = assertOwned(ctx, tx, owned); err != nil {
			return err
		}
		if len(lost) > 0 {
			return ErrNothing
		}
		return f(tx)
	})
	return lost, err
}
