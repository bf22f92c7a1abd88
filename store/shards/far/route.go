package far

import (
	"cmp"
	"slices"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// Distances of the timing wheel in milliseconds, and sizes in tasks. A level is used for
// tasks due within the horizon plus its reach. A bucket of the level is opened when it
// begins within the horizon plus its lead.
const (
	minuteReach = 100 * 60_000
	hourReach   = 2 * 24 * 3600_000
	dayReach    = 60 * 24 * 3600_000

	hourLead  = 20 * 60_000
	dayLead   = 2 * 3600_000
	monthLead = 26 * 3600_000

	// packTasks is the most tasks of a pack, and packBytes the most bytes of its
	// params before compression.
	packTasks = 2048
	packBytes = 8 << 20
	// pausedReach is how far ahead paused tasks are packed, whenever they would be due. When
	// their bucket is opened, they move on to a later one, and void copies are dropped.
	pausedReach = 30 * 24 * 3600_000
	// minuteTasks is the fewest tasks for which a pack of one minute is made.
	minuteTasks = 64
	// wholeHour is the most tasks of an hour that is promoted at once.
	wholeHour = 4096
)

// source describes the origin of a row to be routed.
type source struct {
	// level is the level of the opened bucket: its rows go to a finer level, or to the
	// near tier. 0: any level is allowed.
	level pack.Level
	// whole means that the entire bucket goes to the near tier.
	whole bool
	// keep, if its level is set, is the bucket in which rows stay.
	keep pack.Bucket
}

// routing collects rows by destination. It is pure: the same rows lead to the same
// routes.
//
// Rows of an opened bucket go to strictly lower levels, and paused ones to a bucket that is
// not opened for weeks, so no bucket is opened without end. A minute with few rows is not worth a pack. Its rows wait in their hour or, if
// that hour begins within the horizon, in the near tier.
type routing struct {
	// border is now + horizon: rows due before it go to the near tier.
	border task.Instant
	near   []*task.Row
	far    map[pack.Bucket][]*task.Row
	// paused are the rows of far whose bucket does not follow from their due instant.
	paused []*task.Row
}

func newRouting(border task.Instant) *routing {
	return &routing{border: border, far: map[pack.Bucket][]*task.Row{}}
}

// levelOf returns the finest level whose reach covers an instant.
func (r *routing) levelOf(due task.Instant) pack.Level {
	switch ahead := due - r.border; {
	case ahead < minuteReach:
		return pack.Minute
	case ahead < hourReach:
		return pack.Hour
	case ahead < dayReach:
		return pack.Day
	}
	return pack.Month
}

// pausedBucket returns the bucket of paused tasks.
func (r *routing) pausedBucket() pack.Bucket { return pack.BucketOf(r.border+pausedReach, pack.Day) }

// add routes the rows of one source.
func (r *routing) add(rows []*task.Row, from source) {
	for _, row := range rows {
		switch {
		case from.keep.Level != 0:
			r.far[from.keep] = append(r.far[from.keep], row)
		case row.Paused:
			b := r.pausedBucket()
			r.far[b] = append(r.far[b], row)
			r.paused = append(r.paused, row)
		case from.whole, from.level == pack.Minute, row.DueAt < r.border:
			r.near = append(r.near, row)
		default:
			level := r.levelOf(row.DueAt)
			if from.level != 0 {
				level = min(level, from.level-1)
			}
			b := pack.BucketOf(row.DueAt, level)
			r.far[b] = append(r.far[b], row)
		}
	}
}

// settle moves the rows of minutes that have too few for a pack.
func (r *routing) settle() {
	for b, rows := range r.far {
		if b.Level != pack.Minute || len(rows) >= minuteTasks {
			continue
		}
		hour := pack.BucketOf(b.At, pack.Hour)
		delete(r.far, b)
		if hour.At < r.border {
			r.near = append(r.near, rows...)
		} else {
			r.far[hour] = append(r.far[hour], rows...)
		}
	}
}

// packs encodes the rows for packs: those of one bucket together, each pack in the
// order of tenants and ids.
func (r *routing) packs() ([]bucketPack, error) {
	buckets := make([]pack.Bucket, 0, len(r.far))
	for b := range r.far {
		buckets = append(buckets, b)
	}
	slices.SortFunc(buckets, func(a, b pack.Bucket) int { return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.At, b.At)) })
	var out []bucketPack
	for _, b := range buckets {
		rows := r.far[b]
		slices.SortFunc(rows, func(a, b *task.Row) int { return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.ID, b.ID)) })
		for len(rows) > 0 {
			n := fit(rows)
			p, err := pack.Encode(rows[:n], false)
			if err != nil {
				return nil, err
			}
			out = append(out, bucketPack{b, p})
			rows = rows[n:]
		}
	}
	return out, nil
}

// fit returns how many of the leading rows fit into one pack.
func fit(rows []*task.Row) int {
	n := pack.Fit(rows, packTasks)
	bytes := 0
	for i := range n {
		if bytes += len(rows[i].Params); bytes > packBytes && i > 0 {
			return i
		}
	}
	return n
}

// bucketPack is an encoded pack and its bucket.
type bucketPack struct {
	pack.Bucket
	pack.Pack
}
