package kernel

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// NumberBlock is how many numbers of ids one call of a database's sequence draws: the
// increment of the sequence.
const NumberBlock = 1024

// NumberOf returns the number in an id.
func NumberOf(id task.ID) int64 { return int64(id) / task.Shards }

// BlockOf returns the block of the sequence that contains a number.
func BlockOf(number int64) int64 { return number / NumberBlock }

// numbers hands out the numbers of ids from blocks of the database's sequence. The rest
// of a block is never used after the process ends.
type numbers struct {
	mu        sync.Mutex
	next, end int64
}

// Draw draws n consecutive numbers of database d, n <= [NumberBlock], and returns
// the first. Call it before a transaction begins: a transaction must not wait for a
// second connection.
func (db *Databases) Draw(ctx context.Context, d, n int) (int64, error) {
	b := &db.numbers[d]
	b.mu.Lock()
	defer b.mu.Unlock()
	return db.drawLocked(ctx, d, n)
}

// DrawGroup draws numbers for a group of n members: size(i) consecutive numbers for
// member i. It calls set with the first of them. Of each block of the sequence the group
// gets one run of consecutive numbers, in the order of the members.
func (db *Databases) DrawGroup(ctx context.Context, d, n int, size func(i int) int, set func(i int, first int64)) error {
	b := &db.numbers[d]
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range n {
		first, err := db.drawLocked(ctx, d, size(i))
		if err != nil {
			return err
		}
		set(i, first)
	}
	return nil
}

// drawLocked returns the first of n consecutive numbers. The caller has locked the
// numbers.
func (db *Databases) drawLocked(ctx context.Context, d, n int) (int64, error) {
	b := &db.numbers[d]
	if b.next+int64(n) > b.end {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var first int64
		if err := sql.NumberBlock.QueryRow(ctx, db.Pool(d)).Scan(&first); err != nil {
			return 0, fmt.Errorf("draw numbers: %w", err)
		}
		b.next, b.end = first, first+NumberBlock
	}
	n0 := b.next
	b.next += int64(n)
	return n0, nil
}

// DrawBlocks draws n blocks of database d, which no other writer has, and returns the
// first number of each.
func (db *Databases) DrawBlocks(ctx context.Context, d, n int) ([]int64, error) {
	list, err := sql.NumberBlocks.Query(ctx, db.Pool(d), int32(n))
	if err != nil {
		return nil, fmt.Errorf("draw numbers: %w", err)
	}
	firsts, err := pgx.CollectRows(list, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("draw numbers: %w", err)
	}
	return firsts, nil
}
