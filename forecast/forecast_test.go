package forecast

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// brute counts the instants of rows one by one.
func brute(rows []*task.Row, now task.Instant) *Calendar {
	c := newCalendar(now)
	end := task.Instant((c.levels[byDay].first + int64(len(c.levels[byDay].next))) * day)
	for _, r := range rows {
		for i, at := 0, r.ScheduledAt; at < end && at < r.End && (r.MaxCount == 0 || int64(i) < r.MaxCount-r.Seq); i++ {
			for res := range c.levels {
				l := &c.levels[res]
				to := l.projected
				if i == 0 {
					to = l.next
				}
				if n := int64(at)/widths[res] - l.first; n >= 0 && n < int64(len(to)) {
					to[n]++
				}
			}
			if r.Interval == 0 {
				break
			}
			at = at.Add(r.Interval)
		}
	}
	return c
}

// population is a mixture of tasks.
func population(n int, now task.Instant) (rows []*task.Row) {
	rng := rand.New(rand.NewPCG(1, 2))
	intervals := []time.Duration{0, 30 * time.Second, 5 * time.Minute, time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 97 * time.Minute}
	for range n {
		r := &task.Row{Tenant: int32(1 + rng.IntN(5)), Type: task.NonBlocking, Terms: task.Terms{End: task.Never}}
		r.Interval = intervals[rng.IntN(len(intervals))]
		span := r.Interval
		if span == 0 {
			r.Type, span, r.MaxCount = task.OneShot, 100*24*time.Hour, 1
		}
		r.ScheduledAt = now.Add(time.Duration(rng.Int64N(int64(span))))
		if rng.IntN(4) == 0 && r.Interval > 0 {
			r.End = now.Add(time.Duration(rng.Int64N(int64(60 * 24 * time.Hour))))
		}
		rows = append(rows, r)
	}
	return rows
}

// TestACalendarIsWhatCountingFinds: the next instants exactly, later ones within one span.
func TestACalendarIsWhatCountingFinds(t *testing.T) {
	now := task.At(time.Date(2026, 3, 1, 13, 24, 35, 0, time.UTC))
	rows, counts := population(2000, now), New()
	for _, r := range rows {
		if r.ScheduledAt < r.End {
			counts.Add(Of(r, Period(r)), 1, now)
		}
	}
	compact := counts.Compact()
	if !compact.Fine(now) || compact.Fine(now.Add(2*time.Hour)) {
		t.Error("the counts do not know how long they are fine enough")
	}
	counts = New()
	counts.Join(compact)
	want, all := brute(rows, now), counts.Calendars(now, nil)
	encoded, err := Decode(Encode(map[int32]*Calendar{0: all[0]}), 0)
	if err != nil {
		t.Fatal(err)
	}
	got := Empty(now)
	got.Join(encoded)
	for res := range want.levels {
		w, g := &want.levels[res], &got.levels[res]
		sum := [2]float64{}
		for i := range w.next {
			if w.next[i] != g.next[i] {
				t.Fatalf("level %d, span %d: %v next instants, want %v", res, i, g.next[i], w.next[i])
			}
			sum[0], sum[1] = sum[0]+w.projected[i], sum[1]+g.projected[i]
			// An instant may be counted one span away.
			low, high := math.Inf(1), 0.0
			for j := max(0, i-1); j <= min(i+1, len(w.next)-1); j++ {
				low, high = min(low, w.projected[j]), max(high, w.projected[j])
			}
			if g.projected[i] < .9*low-20 || g.projected[i] > 1.1*high+20 {
				t.Errorf("level %d, span %d: %v projected, want %v (%v to %v)", res, i, g.projected[i], w.projected[i], low, high)
			}
		}
		if math.Abs(sum[1]/sum[0]-1) > .02 {
			t.Errorf("level %d: %v projected in all, want %v", res, sum[1], sum[0])
		}
	}
}

// TestCompactCountsAreTheSame: added twice, too, and of instants long ago.
func TestCompactCountsAreTheSame(t *testing.T) {
	now := task.At(time.Date(2026, 3, 1, 13, 24, 35, 0, time.UTC))
	rows, once, twice, size := population(3000, now), New(), New(), 0
	for i, r := range rows {
		r.ScheduledAt = r.ScheduledAt.Add(-time.Duration(i%7) * 24 * time.Hour)
		once.Add(Of(r, Period(r)), int64(1+i%3), now)
	}
	size = len(once.Compact().data)
	got := New()
	got.Join(once.Compact())
	if !reflect.DeepEqual(got, once) {
		t.Error("counts that were made compact are others")
	}
	got.Join(once.Compact())
	for i, r := range rows {
		twice.Add(Of(r, Period(r)), 2*int64(1+i%3), now)
	}
	if !reflect.DeepEqual(got, twice) {
		t.Error("counts that were added twice are not twice as many")
	}
	if most := 4 * len(rows); size > most {
		t.Errorf("%d bytes for %d tasks, want at most %d", size, len(rows), most)
	}
}

func TestACalendarGoesOnFromALaterMinute(t *testing.T) {
	now := task.At(time.Date(2026, 3, 1, 23, 58, 0, 0, time.UTC))
	counts := New()
	for i := range 10 {
		counts.Add(Task{Tenant: 1, Next: now.Add(time.Duration(i) * time.Minute), Last: task.Never}, 1, now)
	}
	counts.Add(Task{Tenant: 1, Next: now.Add(-time.Hour), Last: task.Never}, 1, now)
	counts.Add(Task{Tenant: 1, Next: now.Add(200 * 24 * time.Hour), Last: task.Never}, 1, now)
	late := Empty(now.Add(4 * time.Minute))
	late.Join(counts.Calendars(now, nil)[1])
	minutes, hours, days := late.Spans()
	if late.Due != 5 || late.Later != 1 || minutes[0].Next != 1 || minutes[5].Next != 1 || minutes[6].Next != 0 {
		t.Errorf("%d due, %d later, %v", late.Due, late.Later, minutes[:8])
	}
	if len(minutes) != Minutes || len(hours) != Hours || len(days) != Days || days[0].Begin.Time().Hour() != 0 {
		t.Errorf("%d minutes, %d hours, %d days from %v", len(minutes), len(hours), len(days), days[0].Begin.Time())
	}
}
