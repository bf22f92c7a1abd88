package far

import (
	"cmp"
	"slices"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// Distances and sizes of the timing wheel, in milliseconds and tasks. A level is
// used for what is due nearer than the horizon and its reach, and a bucket of it
// is opened when it begins nearer than the horizon and its lead.
const (
	minuteReach = 100 * 60_000
	hourReach   = 2 * 24 * 3600_000
	dayReach    = 60 * 24 * 3600_000

	hourLead  = 20 * 60_000
	dayLead   = 2 * 3600_000
	monthLead = 26 * 3600_000

	// packTasks is how many tasks a pack holds at most, and packBytes how much
	// of params, before compression.
	packTasks = 2048
	packBytes = 8 << 20
	// minuteTasks is how many tasks are worth a pack of one minute.
	minuteTasks = 64
	// wholeHour is up to how many tasks an hour is promoted at one go.
	wholeHour = 4096
)

// source says where a row to be routed comes from.
type source struct {
	// level is that of the opened bucket: its rows go to a finer one, or to the
	// near tier. 0: any level is right.
	level pack.Level
	// whole: all of the bucket goes to the near tier.
	whole bool
	// keep, when its level is set, is the bucket in which rows stay.
	keep pack.Bucket
}

// routing collects rows by where they go. It is pure: the same rows lead to the
// same routes.
//
// Each opened bucket's rows go strictly down, so that nothing is opened for
// ever. A minute that few rows are for is not worth a pack; these rows wait in
// their hour, or, when that begins within the horizon, in the near tier.
type routing struct {
	// border is now + horizon: what is due before it goes to the near tier.
	border task.Instant
	near   []*task.Row
	far    map[pack.Bucket][]*task.Row
}

func newRouting(border task.Instant) *routing {
	return &routing{border: border, far: map[pack.Bucket][]*task.Row{}}
}

// levelOf returns the finest level for an instant at its distance.
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

// add routes the rows of one source.
func (r *routing) add(rows []*task.Row, from source) {
	for _, row := range rows {
		switch {
		case from.keep.Level != 0:
			r.far[from.keep] = append(r.far[from.keep], row)
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

// settle moves the rows of minutes that are worth no pack.
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

// packs encodes what goes into packs, those of one bucket together and each in
// the order of tenants and ids.
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

// fit returns how many of the leading rows go into one pack.
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

// bucketPack is a pack on its way into a bucket.
type bucketPack struct {
	pack.Bucket
	pack.Pack
}
