package far

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// choose picks the packs of a compaction, oldest due first. It takes no locks.
func (c *compacting) choose(ctx context.Context) ([]candidate, error) {
	var all []candidate
	var err error
	switch c.req.Kind {
	case task.CompactLevel0:
		all, err = c.level0(ctx)
	case task.CompactPromote:
		all, err = c.promotable(ctx)
	case task.CompactSplit:
		all, err = c.splittable(ctx)
	case task.CompactMerge:
		all, err = c.crowded(ctx)
	}
	c.border = c.out.Now.Add(c.t.Horizon())
	return c.bounded(all), err
}

// bounded cuts a list at the bounds of one transaction.
func (c *compacting) bounded(all []candidate) []candidate {
	tasks, size := 0, int64(0)
	for i, k := range all {
		tasks, size = tasks+k.n, size+k.size
		if i > 0 && (tasks > c.req.MaxTasks || size > compactBytes) || i == compactPacks {
			c.out.More = true
			return all[:i]
		}
	}
	return all
}

func (c *compacting) level0(ctx context.Context) ([]candidate, error) {
	before := c.req.Before
	if before == 0 {
		before = task.Never
	}
	return c.query(ctx, sql.CompactLevel0Packs, int64(before), compactPacks+1)
}

// promotable returns the packs, of all levels, whose buckets begin within the horizon.
func (c *compacting) promotable(ctx context.Context) ([]candidate, error) {
	all, err := c.within(ctx, map[pack.Level]int64{pack.Minute: 0, pack.Hour: 0, pack.Day: 0, pack.Month: 0})
	tasks := tasksByBucket(all)
	for i := range all {
		k := &all[i]
		k.from = source{level: k.bucket.Level, whole: k.bucket.Level == pack.Hour && tasks[k.bucket] <= wholeHour}
	}
	return all, err
}

// splittable returns the packs of coarse buckets that begin soon. Packs of hours with
// few tasks are left out: they are promoted whole.
func (c *compacting) splittable(ctx context.Context) ([]candidate, error) {
	list, err := c.within(ctx, map[pack.Level]int64{pack.Hour: hourLead, pack.Day: dayLead, pack.Month: monthLead})
	tasks := tasksByBucket(list)
	var all []candidate
	for _, k := range list {
		if k.bucket.Level == pack.Hour && tasks[k.bucket] <= wholeHour {
			continue
		}
		k.from = source{level: k.bucket.Level}
		all = append(all, k)
	}
	return all, err
}

// within returns the packs of some levels whose buckets begin within the horizon and the level's lead, in ms.
func (c *compacting) within(ctx context.Context, leads map[pack.Level]int64) ([]candidate, error) {
	var levels []int16
	var ahead []int64
	for level, lead := range leads {
		levels, ahead = append(levels, int16(level)), append(ahead, c.t.Horizon().Milliseconds()+lead)
	}
	all, err := c.query(ctx, sql.CompactBuckets, levels, ahead, compactPacks+1)
	slices.SortFunc(all, compareCandidates)
	return all, err
}

func tasksByBucket(list []candidate) map[pack.Bucket]int {
	tasks := map[pack.Bucket]int{}
	for _, k := range list {
		tasks[k.bucket] += k.n
	}
	return tasks
}

// crowded returns the small packs of the bucket that has the most small packs.
func (c *compacting) crowded(ctx context.Context) ([]candidate, error) {
	const most = 16
	rows, err := sql.CompactCrowded.Query(ctx, c.t.db.Pool(c.d), CrowdedPacks, smallTasks, smallBytes, most)
	if err != nil {
		return nil, err
	}
	var found []pack.Bucket
	var level int16
	var at int64
	_, err = pgx.ForEachRow(rows, []any{&level, &at}, func() error {
		found = append(found, pack.Bucket{Level: pack.Level(level), At: task.Instant(at)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(b pack.Bucket) bool { return time.Now().Before(c.t.movers[c.d].unmerged[b]) })
	if len(found) == 0 {
		return nil, nil
	}
	c.out.More = len(found) > 1
	list, err := c.query(ctx, sql.CompactSmall, int16(found[0].Level), int64(found[0].At), smallTasks, smallBytes, compactPacks+1)
	for i := range list {
		list[i].from = source{keep: found[0]}
	}
	return list, err
}

// noteMerge remembers a bucket if merging hardly reduced the number of its packs: the
// packs are then as large as params of that size allow.
func (c *compacting) noteMerge(chosen []candidate) {
	if c.req.Kind == task.CompactMerge && c.out.Written > c.out.Read/2 {
		c.t.PassOver(c.d, chosen[0].bucket)
	}
}

// PassOver makes merges in database d skip a bucket for an hour. No compaction may be
// under way except the caller's own.
func (t *Tier) PassOver(d int, b pack.Bucket) {
	m := &t.movers[d]
	if len(m.unmerged) > 1000 || m.unmerged == nil {
		m.unmerged = map[pack.Bucket]time.Time{}
	}
	m.unmerged[b] = time.Now().Add(time.Hour)
}

// query reads candidates and the database's clock.
func (c *compacting) query(ctx context.Context, statement *statement.Statement, args ...any) ([]candidate, error) {
	rows, err := statement.Query(ctx, c.t.db.Pool(c.d), args...)
	if err != nil {
		return nil, err
	}
	var out []candidate
	var k candidate
	var level int16
	var at, now int64
	var n int32
	_, err = pgx.ForEachRow(rows, []any{&k.id, &level, &at, &n, &k.size, &now}, func() error {
		k.bucket, k.n = pack.Bucket{Level: pack.Level(level), At: task.Instant(at)}, int(n)
		c.out.Now = task.Instant(now)
		out = append(out, k)
		return nil
	})
	return out, err
}
