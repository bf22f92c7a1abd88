package figures

import (
	"cmp"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Stored is a row as it was stored.
type Stored struct {
	Tenant  int32
	At      task.Instant
	Process int64
	Data    []byte
}

// Point is the sum of all processes in one interval.
type Point struct {
	At task.Instant
	Figures
}

// Of are the figures of one tenant, or of all together.
type Of struct {
	// Points are the sums of all processes, oldest first. Intervals in which nothing happened are
	// missing.
	Points []Point
	// Now describes the end of the newest interval of each process.
	Now Figures
}

// SilentAfter is the time since the begin of the newest interval of a process after which it has ended, or does not
// reach any database: what it said last is no longer the state.
const SilentAfter = 4 * Every

// Collect sums rows by tenant. newest has the newest interval of each process, which tells which
// rows describe the present. Rows that cannot be read are left out.
func Collect(rows []Stored, newest map[int64]task.Instant, now task.Instant) map[int32]*Of {
	all := map[int32]*Of{}
	slices.SortFunc(rows, func(a, b Stored) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.At, b.At))
	})
	for _, r := range rows {
		f, err := Decode(r.Data)
		if err != nil || r.Tenant == Process {
			continue
		}
		of := all[r.Tenant]
		if of == nil {
			of = &Of{}
			all[r.Tenant] = of
		}
		if n := len(of.Points); n == 0 || of.Points[n-1].At != r.At {
			of.Points = append(of.Points, Point{At: r.At})
		}
		of.Points[len(of.Points)-1].Add(f)
		if newest[r.Process] == r.At && now.Sub(r.At) <= SilentAfter {
			of.Now.Join(f)
		}
	}
	return all
}

// Newest returns the newest interval of each process, and of all.
func Newest(rows []Stored) (of map[int64]task.Instant, newest task.Instant) {
	of = map[int64]task.Instant{}
	for _, r := range rows {
		of[r.Process] = max(of[r.Process], r.At)
		newest = max(newest, r.At)
	}
	return of, newest
}

// writing is how long after the end of an interval all processes have stored it.
const writing = 2 * time.Second

// Complete returns the begin of the newest interval that all processes have stored.
func Complete(now task.Instant) task.Instant {
	every := task.Instant(Every.Milliseconds())
	return now.Add(-writing)/every*every - every
}

// Sum returns the sum of the points in [from, until).
func (o *Of) Sum(from, until task.Instant) (sum Figures) {
	for i := range o.Points {
		if p := &o.Points[i]; p.At >= from && p.At < until {
			sum.Add(&p.Figures)
		}
	}
	return sum
}
