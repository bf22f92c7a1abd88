package far

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// The locator stores, for each task that went into far_pack, the minute in which
// it is due, and for a paused task a minute of its bucket: 256 numbers a page. Only the owner of a database's chores writes it,
// one transaction at a time, so this package may read a page, change it and write it
// back. Numbers come in blocks of 1024, so a load of whole blocks writes whole pages.

const (
	pageNumbers = pack.LocatorPage
	pageBytes   = pageNumbers * 4
)

// pageOf returns the position of a task's entry: the page, and the byte in it.
func pageOf(id task.ID) (page int64, offset int) {
	number := int64(id) / task.Shards
	return number / pageNumbers, int(number%pageNumbers) * 4
}

// locatorPage is a page that is being changed.
type locatorPage struct {
	page    int64
	set     int // how many entries were written, each number once
	minutes []byte
}

// locate stores the minutes of tasks in the locator. It does not read pages of which it
// writes every entry.
func locate(ctx context.Context, tx pgx.Tx, rows map[pack.Bucket][]*task.Row) error {
	pages := map[int64]*locatorPage{}
	for bucket, list := range rows {
		for _, r := range list {
			due := r.DueAt
			if r.Paused {
				due = bucket.At // due never
			}
			page, offset := pageOf(r.ID)
			p := pages[page]
			if p == nil {
				p = &locatorPage{page: page, minutes: make([]byte, pageBytes)}
				pages[page] = p
			}
			p.set++
			binary.BigEndian.PutUint32(p.minutes[offset:], uint32(pack.MinuteOf(due)))
		}
	}
	if len(pages) == 0 {
		return nil
	}
	if err := mergePages(ctx, tx, pages); err != nil {
		return err
	}
	return writePages(ctx, tx, pages)
}

// mergePages copies the entries that are not written from the stored pages.
func mergePages(ctx context.Context, tx pgx.Tx, pages map[int64]*locatorPage) error {
	var partial []int64
	for _, p := range pages {
		if p.set < pageNumbers {
			partial = append(partial, p.page)
		}
	}
	if len(partial) == 0 {
		return nil
	}
	slices.Sort(partial)
	rows, err := sql.LocatorRead.Query(ctx, tx, partial)
	if err != nil {
		return err
	}
	var page int64
	var stored []byte
	_, err = pgx.ForEachRow(rows, []any{&page, &stored}, func() error {
		if len(stored) != pageBytes {
			return fmt.Errorf("locator page %d has %d bytes", page, len(stored))
		}
		mine := pages[page].minutes
		for i := 0; i < pageBytes; i += 4 {
			if binary.BigEndian.Uint32(mine[i:]) == 0 {
				copy(mine[i:i+4], stored[i:])
			}
		}
		return nil
	})
	return err
}

func writePages(ctx context.Context, tx pgx.Tx, pages map[int64]*locatorPage) error {
	sorted := make([]*locatorPage, 0, len(pages))
	for _, p := range pages {
		sorted = append(sorted, p)
	}
	slices.SortFunc(sorted, func(a, b *locatorPage) int { return cmp.Compare(a.page, b.page) })
	for chunk := range slices.Chunk(sorted, 4096) {
		numbers, latest, minutes := make([]int64, len(chunk)), make([]int32, len(chunk)), make([][]byte, len(chunk))
		for i, p := range chunk {
			numbers[i], latest[i], minutes[i] = p.page, p.latest(), p.minutes
		}
		if _, err := sql.LocatorWrite.Exec(ctx, tx, numbers, latest, minutes); err != nil {
			return err
		}
	}
	return nil
}

func (p *locatorPage) latest() (latest int32) {
	for i := 0; i < pageBytes; i += 4 {
		latest = max(latest, int32(binary.BigEndian.Uint32(p.minutes[i:])))
	}
	return latest
}

// keepDamaged is how long the locator keeps entries of quarantined packs.
const keepDamaged = 90 * 24 * time.Hour

// PurgeLocator removes at most limit pages that lead to no pack any more. It changes
// nothing if own is no longer the ownership of the database's chores.
func (t *Tier) PurgeLocator(ctx context.Context, d int, own task.Ownership, limit int) (purged int, err error) {
	defer t.movers[d].moving()()
	_, err = t.db.InOwnedTx(ctx, d, "purge locator", []task.Ownership{own}, func(tx pgx.Tx) error {
		tag, err := sql.LocatorPurge.Exec(ctx, tx, limit, keepDamaged.Milliseconds())
		purged = int(tag.RowsAffected())
		return err
	})
	return purged, err
}
