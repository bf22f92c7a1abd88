package fair

import "time"

// A RateController says how many rows per second may be claimed for backlogged
// tenants, so that the foreground stays on time. It is additive increase,
// multiplicative decrease (Chiu & Jain, 1989) with the foreground's lateness as
// the congestion signal.
//
// While no backlog is claimed it learns the usual lateness: the one that one foreground
// record in a hundred exceeds. While a backlog is claimed, it compares each window with
// that. Too many late records halve the rate. Otherwise the rate rises, if it was the limit:
// it doubles until the foreground is late for the first time, and then grows by a tenth, and by
// a tenth more in each further window in which the foreground is on time. If
// the foreground is late even at the lowest rate, the backlog is not the reason; that
// lateness then counts as usual for as long as it lasts. So that a lateness which comes each second or two is found
// there, the rate stays at the lowest one until several windows have been on time.
//
// The zero value is not ready for use: see [NewRateController].
type RateController struct {
	// perSecond is the rate, in rows per second, from floor to mostRate.
	perSecond, floor float64
	// tokens are the rows that may be claimed, as of filledAt.
	tokens   float64
	filledAt time.Time
	// quiet is the lateness that one foreground record in a hundred exceeds while
	// no backlog is claimed. usual is the lateness that counts as undisturbed now;
	// usual >= quiet.
	quiet, usual time.Duration
	// The window began at windowAt. records counts its foreground records, and late the late
	// ones. limited is set if a claim had to wait for tokens.
	windowAt      time.Time
	records, late int
	limited       bool
	// high counts those above half of usual. seen counts the foreground records of the window while no backlog was
	// claimed, and above those of them above quiet.
	high, seen, above int
	// takenAt is when rows were last taken. disturbed is set if the foreground has been late
	// since the rate began to rise, calm counts the rises since it was late last, and held the windows at the lowest
	// rate before them.
	takenAt    time.Time
	disturbed  bool
	calm, held int
	// over is set if the foreground was far below usual in each of the held windows.
	over bool
}

const (
	rateWindow = 500 * time.Millisecond
	// Rates are in rows per second.
	firstRate = 500
	leastRate = 200
	mostRate  = 200_000
	// A record is late when its lateness exceeds this many tenths of the usual one.
	lateTenths = 11
	// leastUsual and mostUsual bound usual. A lower lateness cannot be distinguished from an
	// undisturbed foreground: its requests are some milliseconds apart and it shares the
	// machine.
	leastUsual, mostUsual = 18 * time.Millisecond, time.Second
	// quietAfter is how long after the last rows the foreground is undisturbed again.
	quietAfter = 3 * time.Second
	// floorWindows is how many windows in turn the foreground must be on time at the lowest rate before the rate
	// rises. Lateness that comes more seldom leaves the rate time to grow by more than it falls.
	floorWindows = 5
	// mostGrowth is the most by which the rate grows in a window once the foreground has been late.
	mostGrowth = 1.5
	// sliceTime is how much of the rate is granted at once, between these bounds in rows.
	sliceTime             = 100 * time.Millisecond
	leastSlice, mostSlice = 64, 1000
)

// NewRateController returns a controller in its initial state.
func NewRateController() RateController {
	return RateController{perSecond: firstRate, floor: leastRate, quiet: leastUsual, usual: leastUsual}
}

// SetFloor sets the rate below which the foreground's lateness does not bring the rate; leastRate if it is less.
func (c *RateController) SetFloor(perSecond float64) {
	c.floor = min(max(perSecond, leastRate), mostRate)
	c.perSecond = max(c.perSecond, c.floor)
}

// PerSecond returns the current rate, in rows per second.
func (c *RateController) PerSecond() float64 { return c.perSecond }

// claiming reports whether rows of a backlog were claimed recently.
func (c *RateController) claiming(now time.Time) bool {
	return !c.takenAt.IsZero() && now.Sub(c.takenAt) < quietAfter
}

// Published counts a confirmed foreground record. late is its lateness.
func (c *RateController) Published(now time.Time, late time.Duration) {
	c.endWindow(now)
	if !c.claiming(now) {
		c.seen++
		if late > c.quiet {
			c.above++
		}
		return
	}
	c.records++
	if late > c.usual*lateTenths/10 {
		c.late++
	}
	if late > c.usual/2 {
		c.high++
	}
}

// endWindow adjusts the rate if the window is over.
func (c *RateController) endWindow(now time.Time) {
	if c.windowAt.IsZero() {
		c.windowAt = now
	}
	if now.Sub(c.windowAt) < rateWindow {
		return
	}
	c.learn()
	tooLate := c.late > 1 && c.late*100 > c.records
	if tooLate && c.perSecond <= c.floor {
		c.usual = min(c.usual+c.usual/2, mostUsual)
	} else if !tooLate {
		c.usual = max(c.usual-c.usual/500, c.quiet)
	}
	switch {
	case tooLate:
		c.perSecond, c.disturbed, c.calm, c.held = max(c.perSecond/2, c.floor), true, 0, 0
		c.tokens = 0
	case c.limited && c.disturbed && c.perSecond <= c.floor && c.held < floorWindows:
		c.hold()
	case c.limited && c.disturbed:
		c.calm++
		c.perSecond = min(c.perSecond*min(1+float64(c.calm)/10, mostGrowth), mostRate)
	case c.limited:
		c.perSecond = min(c.perSecond*2, mostRate)
	}
	c.windowAt, c.records, c.late, c.high, c.limited = now, 0, 0, 0, false
}

// learn moves quiet towards its quantile by what was seen in a window without a claimed backlog. The steps balance when one
// record in a hundred is above. There is one step in a window, however many records it has: those of an outage, which
// come all at once when it is over, say nothing about what is usual.
func (c *RateController) learn() {
	switch {
	case c.seen == 0:
		return
	case c.above*100 > c.seen:
		c.quiet = min(c.quiet+c.quiet/10, mostUsual)
	default:
		c.quiet = max(c.quiet-c.quiet*time.Duration(min(c.seen, 100))/1000, leastUsual)
	}
	c.usual, c.seen, c.above = c.quiet, 0, 0
}

// hold counts a window at the lowest rate in which the foreground was on time. After several, a lateness that once counted
// as usual there is over, if the foreground has been far below it in each of them.
func (c *RateController) hold() {
	if c.held == 0 {
		c.over = true
	}
	c.over = c.over && c.records > 0 && (c.high <= 1 || c.high*100 <= c.records)
	if c.held++; c.held == floorWindows && c.over {
		c.usual = c.quiet
	}
}

// slice returns how many rows are granted at once.
func (c *RateController) slice() int {
	return min(max(int(c.perSecond*sliceTime.Seconds()), leastSlice), mostSlice)
}

// TakeRows takes a slice of rows. If it returns 0, the caller must wait before the next
// call. Without a foreground the only limit is a thousand rows at a time.
func (c *RateController) TakeRows(now time.Time, foreground bool) (rows int, wait time.Duration) {
	c.endWindow(now)
	if !foreground {
		c.takenAt, c.filledAt, c.tokens = now, now, 0
		return mostSlice, 0
	}
	if !c.claiming(now) {
		c.tokens, c.filledAt, c.disturbed = float64(c.slice()), now, false
		c.perSecond = max(c.perSecond, firstRate)
	}
	c.tokens = min(c.tokens+c.perSecond*now.Sub(c.filledAt).Seconds(), 2*float64(c.slice()))
	c.filledAt, c.takenAt = now, now
	n := c.slice()
	if missing := float64(n) - c.tokens; missing > 0 {
		c.limited = true
		return 0, time.Duration(missing/c.perSecond*float64(time.Second)) + time.Millisecond
	}
	c.tokens -= float64(n)
	return n, 0
}

// ReturnRows returns rows that were taken but not claimed.
func (c *RateController) ReturnRows(rows int) { c.tokens += float64(rows) }
