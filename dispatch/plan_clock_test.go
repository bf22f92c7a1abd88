package dispatch

import (
	"testing"
	"time"
	"unsafe"

	"github.com/perceptor/perceptor/task"
)

// stepped returns the reading of a clock that was set by so many seconds: its monotonic part is the same.
func stepped(t time.Time, seconds int64) time.Time {
	const monotonic, second = 1 << 63, 1 << 30 // of the first word of a time that has both parts
	wall := (*uint64)(unsafe.Pointer(&t))
	if *wall&monotonic == 0 {
		panic("no monotonic part")
	}
	*wall = uint64(int64(*wall) + seconds*second)
	return t
}

// The clock of the dispatcher's machine is set while a loop sleeps until a known row or a hinted one comes due.
func TestClaimsComeInTimeAfterOurOwnClockWasSet(t *testing.T) {
	for _, by := range []int64{-3600, 3600} {
		for _, hinted := range []bool{false, true} {
			p := &planner{cfg: Config{ClaimAhead: 500 * time.Millisecond}.withDefaults()}
			began := time.Now()
			in := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
			p.acquired(began)
			p.claimed(began, in(2), p.next(began, withCapacity()), &task.Claim{Now: task.At(began)}, 0)
			found := task.Peek{Now: task.At(in(2))}
			if !hinted {
				found.Soon = []task.Upcoming{{Due: task.At(in(900)), Shard: 3}}
			}
			p.peeked(0, in(2), in(2), found)
			if hinted {
				p.hint(in(3), task.At(in(900)))
			}
			claims := false
			for now := in(4); now.Sub(began) < 900*time.Millisecond && !claims; {
				st := p.next(stepped(now, by), withCapacity())
				claims = st.do == claim
				now = now.Add(max(st.until.Sub(stepped(now, by)), time.Millisecond))
				if st.do == peek {
					p.peeked(0, now, now, found)
				}
			}
			if !claims {
				t.Errorf("set by %d s, hinted %v: no claim comes before the row is due", by, hinted)
			}
		}
	}
}

// A row may wait in the near tier for an instant that is farther away than a duration can say, until it is demoted.
func TestARowThatIsDueInCenturiesIsNotClaimedAtEachTick(t *testing.T) {
	for _, years := range []int{1, 100, 300, 374, 1000, 6973} {
		p := aheadPlanner()
		due := task.At(db(0).Time().AddDate(years, 0, 0))
		p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: []task.Upcoming{{Due: due, Shard: 3}}})
		if st := p.next(at(10), withCapacity()); st.do != sleep || st.until.Before(at(500)) {
			t.Errorf("due in %d years: %s until %s, want to sleep until the next peek", years, st.do, st.until.Sub(at(0)))
		}
	}
}
