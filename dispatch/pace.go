package dispatch

import "time"

// A pace says how many rows a second are taken of tenants that have a backlog and
// are held apart, so that the others, who are the front, do not feel it: it goes by
// how late the front's records are. It is pure.
//
// While no backlog is taken it learns what is usual: the lateness that one record
// in a hundred exceeds. While one is, every window is judged by that: too many
// records that are later than usual halve the pace; else it rises, if it was the
// pace that held rows back. In the beginning it doubles, until the front is late for the
// first time. A front that is late at the least pace is late for another reason: that
// counts as usual for as long as it lasts.
type pace struct {
	perSecond float64
	// tokens are rows that may be taken, as of filledAt.
	tokens   float64
	filledAt time.Time
	// quiet is the lateness that one record of the front in a hundred exceeds when
	// nothing is taken, usual what it may be now.
	quiet, usual time.Duration
	// The window began at windowAt, and has seen so many records of the front, so
	// many of them late. short: somebody had to wait for tokens.
	windowAt      time.Time
	records, late int
	short         bool
	// takenAt is when rows were taken last. found: the front has been late since the
	// pace began to rise.
	takenAt time.Time
	found   bool
}

const (
	paceWindow = 500 * time.Millisecond
	firstPace  = 500
	leastPace  = 200
	mostPace   = 200_000
	// A record is late when it is this many tenths of what is usual.
	lateTenths = 15
	// usual is between these. Much less cannot be told from a front that is not
	// disturbed: its calls are some milliseconds apart and it shares the machine.
	leastUsual, mostUsual = 18 * time.Millisecond, time.Second
	// quietAfter is how long after the last rows the front is as usual again.
	quietAfter = 3 * time.Second
	// paceSlice is how much of the pace is taken at once, and paceLeast how few rows.
	paceSlice = 100 * time.Millisecond
	paceLeast = 64
	paceMost  = 1000
)

func newPace() pace {
	return pace{perSecond: firstPace, quiet: leastUsual, usual: leastUsual}
}

// taking reports whether rows of a backlog have been taken lately.
func (p *pace) taking(now time.Time) bool {
	return !p.takenAt.IsZero() && now.Sub(p.takenAt) < quietAfter
}

// published counts a record of the front that was acknowledged so late.
func (p *pace) published(now time.Time, late time.Duration) {
	p.turn(now)
	if !p.taking(now) {
		// The quantile is followed by steps that balance when one in a hundred is above.
		if late > p.quiet {
			p.quiet = min(p.quiet+p.quiet/10, mostUsual)
		} else {
			p.quiet = max(p.quiet-p.quiet/1000, leastUsual)
		}
		p.usual = p.quiet
		return
	}
	p.records++
	if late > p.usual*lateTenths/10 {
		p.late++
	}
}

// turn judges the window if it is over.
func (p *pace) turn(now time.Time) {
	if p.windowAt.IsZero() {
		p.windowAt = now
	}
	if now.Sub(p.windowAt) < paceWindow {
		return
	}
	tooLate := p.late > 1 && p.late*100 > p.records
	if tooLate && p.perSecond <= leastPace {
		p.usual = min(p.usual+p.usual/2, mostUsual)
	} else if !tooLate {
		p.usual = max(p.usual-p.usual/500, p.quiet)
	}
	switch {
	case tooLate:
		p.perSecond, p.found = max(p.perSecond/2, leastPace), true
		p.tokens = 0
	case p.short && p.found:
		p.perSecond = min(p.perSecond*1.1, mostPace)
	case p.short:
		p.perSecond = min(p.perSecond*2, mostPace)
	}
	p.windowAt, p.records, p.late, p.short = now, 0, 0, false
}

// slice is how many rows are taken at once.
func (p *pace) slice() int {
	return min(max(int(p.perSecond*paceSlice.Seconds()), paceLeast), paceMost)
}

// take takes a slice of rows; 0: not before so long. Where there is nobody in the
// front there is nobody to wait for.
func (p *pace) take(now time.Time, front bool) (rows int, wait time.Duration) {
	p.turn(now)
	if !front {
		p.takenAt, p.filledAt, p.tokens = now, now, 0
		return paceMost, 0
	}
	if !p.taking(now) {
		p.tokens, p.filledAt, p.found = float64(p.slice()), now, false
		p.perSecond = max(p.perSecond, firstPace)
	}
	p.tokens = min(p.tokens+p.perSecond*now.Sub(p.filledAt).Seconds(), 2*float64(p.slice()))
	p.filledAt, p.takenAt = now, now
	n := p.slice()
	if lack := float64(n) - p.tokens; lack > 0 {
		p.short = true
		return 0, time.Duration(lack/p.perSecond*float64(time.Second)) + time.Millisecond
	}
	p.tokens -= float64(n)
	return n, 0
}

// giveBack returns rows that were not there to be taken.
func (p *pace) giveBack(rows int) { p.tokens += float64(rows) }
