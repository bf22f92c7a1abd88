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

// Numbers are consecutive numbers that were drawn for ids.
type Numbers struct {
	First int64
	// incarnation is that of the database when the numbers were drawn. In a later one they may
	// have been given out again.
	incarnation int64
	database    int
}

// ErrOldNumbers says that the database was adopted after numbers had been drawn. The
// transaction that wanted to use them must be rolled back and repeated with others.
var ErrOldNumbers = task.Errorf(task.ReasonDatabaseUnavailable, "the task's database has failed over; try again")

// numbers hands out the numbers of ids from blocks of the database's sequence. The rest
// of a block is never used after the process ends, or after the database was adopted.
type numbers struct {
	mu                     sync.Mutex
	next, end, incarnation int64
}

// Draw draws n consecutive numbers of database d, n <= [NumberBlock]. Call it before a
// transaction begins: a transaction must not wait for a second connection. The transaction
// that uses the numbers must call [Databases.Begin].
func (db *Databases) Draw(ctx context.Context, d, n int) (Numbers, error) {
	b := &db.numbers[d]
	b.mu.Lock()
	defer b.mu.Unlock()
	first, err := db.drawLocked(ctx, d, n)
	return Numbers{first, b.incarnation, d}, err
}

// DrawGroup draws numbers for a group of n members: size(i) consecutive numbers for
// member i. It calls set with the first of them. Of each block of the sequence the group
// gets one run of consecutive numbers, in the order of the members. The transaction that
// uses the numbers must call [Databases.Begin] with the returned ones, which are the first.
func (db *Databases) DrawGroup(ctx context.Context, d, n int, size func(i int) int, set func(i int, first int64)) (Numbers, error) {
	b := &db.numbers[d]
	b.mu.Lock()
	defer b.mu.Unlock()
	all := Numbers{}
	for i := range n {
		first, err := db.drawLocked(ctx, d, size(i))
		if err != nil {
			return all, err
		}
		if i > 0 && b.incarnation != all.incarnation {
			return all, ErrOldNumbers
		}
		if i == 0 {
			all = Numbers{first, b.incarnation, d}
		}
		set(i, first)
	}
	return all, nil
}

// drawLocked returns the first of n consecutive numbers. The caller has locked the
// numbers.
func (db *Databases) drawLocked(ctx context.Context, d, n int) (int64, error) {
	b := &db.numbers[d]
	if b.next+int64(n) > b.end || b.incarnation < db.Incarnation(d) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		firsts, drawn, err := db.DrawBlocks(ctx, d, 1)
		if err != nil {
			return 0, err
		}
		b.next, b.end, b.incarnation = firsts[0], firsts[0]+NumberBlock, drawn.incarnation
	}
	n0 := b.next
	b.next += int64(n)
	return n0, nil
}

// DrawBlocks draws n blocks of database d, which no other writer has, and returns the
// first number of each. The transaction that uses them must call [Databases.Begin] with drawn.
func (db *Databases) DrawBlocks(ctx context.Context, d, n int) (firsts []int64, drawn Numbers, err error) {
	guard := db.Guard(d)
	for range drawTries {
		before := guard.Drawn() // later calls of the sequence return greater numbers
		if firsts, drawn, err = db.callSequence(ctx, d, n); err != nil {
			return nil, Numbers{}, fmt.Errorf("draw numbers: %w", err)
		}
		if firsts[0] > before {
			guard.SetDrawn(firsts[n-1])
			return firsts, drawn, nil
		}
		if err := db.Readopt(ctx, d, "its numbers went back"); err != nil {
			return nil, Numbers{}, fmt.Errorf("draw numbers: %w", err)
		}
	}
	return nil, Numbers{}, ErrOldNumbers
}

// drawTries bounds the adoptions while numbers are drawn.
const drawTries = 3

func (db *Databases) callSequence(ctx context.Context, d, n int) (firsts []int64, drawn Numbers, err error) {
	rows, err := sql.NumberBlocks.Query(ctx, db.Pool(d), int32(n))
	if err != nil {
		return nil, Numbers{}, err
	}
	var first int64
	_, err = pgx.ForEachRow(rows, []any{&first, &drawn.incarnation}, func() error { firsts = append(firsts, first); return nil })
	if err != nil {
		return nil, Numbers{}, err
	}
	drawn.First, drawn.database = firsts[0], d
	return firsts, drawn, nil
}

// Begin reads the database's clock in a transaction that uses drawn numbers. It fails with
// [ErrOldNumbers] if the database was adopted after they had been drawn.
func (db *Databases) Begin(ctx context.Context, tx pgx.Tx, drawn Numbers) (now task.Instant, err error) {
	b := &pgx.Batch{}
	sql.Begin.Queue(b).QueryRow(func(row pgx.Row) error { now, err = db.ScanBegin(row, drawn); return err })
	return now, tx.SendBatch(ctx, b).Close()
}

// ScanBegin reads the row of the statement Begin, which a caller of it has sent itself.
func (db *Databases) ScanBegin(row pgx.Row, drawn Numbers) (now task.Instant, err error) {
	var incarnation int64
	if err := row.Scan(&now, &incarnation); err != nil {
		return 0, err
	}
	if incarnation != drawn.incarnation {
		db.forgetNumbers(drawn)
		return 0, ErrOldNumbers
	}
	return now, nil
}

// forgetNumbers gives up the rest of a block.
func (db *Databases) forgetNumbers(old Numbers) {
	b := &db.numbers[old.database]
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.incarnation == old.incarnation {
		b.next, b.end = 0, 0
	}
}
