package schedule

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The model knows what an expression means from how it was generated, and finds
// its instants by looking at every second (or minute) of a time with the zone's
// clock. It shares no code with the parser or the walker.

// model is an expression with its meaning.
type model struct {
	expr                 string
	dialect              Dialect
	second, minute, hour map[int]bool
	elapsed              bool
	day                  func(local time.Time) bool
}

// modelField generates a field of a dialect: its text, its values, and whether it
// makes the expression go by elapsed time.
func modelField(r *rand.Rand, d Dialect, lo, hi int) (text string, values map[int]bool, elapsed bool) {
	values = map[int]bool{}
	add := func(from, to, step int) {
		for v := from; v <= to; v += step {
			values[v] = true
		}
	}
	value := func() int { return lo + r.IntN(hi-lo+1) }
	step := 1 + r.IntN(hi-lo)
	switch r.IntN(6) {
	case 0:
		add(lo, hi, 1)
		return "*", values, true
	case 1:
		add(lo, hi, step)
		return fmt.Sprintf("*/%d", step), values, true
	case 2:
		from := value()
		add(from, hi, step)
		return fmt.Sprintf("%d/%d", from, step), values, true
	case 3:
		from, to := value(), value()
		if from > to && d == Standard {
			from, to = to, from
		}
		text := fmt.Sprintf("%d-%d", from, to)
		if r.IntN(2) == 0 {
			step = 1
		} else {
			text += fmt.Sprintf("/%d", step)
		}
		if from <= to {
			add(from, to, step)
			return text, values, false
		}
		for v := from; v <= to+hi-lo+1; v += step {
			if v <= hi {
				values[v] = true
			} else {
				values[v-(hi-lo+1)] = true
			}
		}
		return text, values, false
	default:
		var texts []string
		for range 1 + r.IntN(3) {
			v := value()
			values[v] = true
			texts = append(texts, strconv.Itoa(v))
		}
		return strings.Join(texts, ","), values, false
	}
}

// newModel generates an expression whose hours are often those of clock changes.
func newModel(r *rand.Rand, d Dialect) model {
	m := model{dialect: d}
	var texts [3]string
	var elapsed [3]bool
	texts[1], m.minute, elapsed[1] = modelField(r, d, 0, 59)
	texts[2], m.hour, elapsed[2] = modelField(r, d, 0, 23)
	if r.IntN(2) == 0 {
		hour := []int{23, 0, 1, 2, 3}[r.IntN(5)]
		texts[2], m.hour, elapsed[2] = strconv.Itoa(hour), map[int]bool{hour: true}, false
	}
	texts[0], m.second = "0", map[int]bool{0: true}
	if r.IntN(4) == 0 {
		texts[0], m.second, elapsed[0] = modelField(r, d, 0, 59)
	}
	m.elapsed = elapsed[0] || elapsed[1] || elapsed[2]
	day := ""
	day, m.day = modelDays(r, d)
	if d == Standard && texts[0] == "0" && r.IntN(2) == 0 {
		m.expr = strings.Join(texts[1:], " ") + " " + day
	} else {
		m.expr = strings.Join(texts[:], " ") + " " + day
	}
	return m
}

// modelDays generates the three day fields with a test of a date.
func modelDays(r *rand.Rand, d Dialect) (string, func(time.Time) bool) {
	every := func(time.Time) bool { return true }
	n := 1 + r.IntN(28)
	ofMonth := func(t time.Time) bool { return t.Day() == n }
	weekday := time.Weekday(r.IntN(7))
	ofWeek := func(t time.Time) bool { return t.Weekday() == weekday }
	if d == Standard {
		switch r.IntN(5) {
		case 0:
			return fmt.Sprintf("%d * *", n), ofMonth
		case 1:
			return fmt.Sprintf("* * %d", weekday), ofWeek
		case 2:
			return fmt.Sprintf("%d * %d", n, weekday), func(t time.Time) bool { return ofMonth(t) || ofWeek(t) }
		case 3:
			return fmt.Sprintf("*/2 * %d", weekday), func(t time.Time) bool { return t.Day()%2 == 1 && ofWeek(t) }
		}
		return "* * *", every
	}
	switch r.IntN(4) {
	case 0:
		return fmt.Sprintf("%d * ?", n), ofMonth
	case 1:
		return fmt.Sprintf("? * %d", weekday+1), ofWeek
	case 2:
		return fmt.Sprintf("? * %d#%d", weekday+1, 1+(n-1)/7), func(t time.Time) bool { return ofWeek(t) && (t.Day()-1)/7 == (n-1)/7 }
	}
	return "* * ?", every
}

// named reports whether the expression names a local time, given as if it were UTC.
func (m *model) names(local time.Time) bool {
	return m.second[local.Second()] && m.minute[local.Minute()] && m.hour[local.Hour()] && m.day(local)
}

// instants are those in [from, to), for a clock that changes on whole steps. It
// shows local times as if they were UTC.
func (m *model) instants(clock func(time.Time) time.Time, from, to time.Time, step time.Duration) []time.Time {
	var list []time.Time
	start := from.Add(-26 * time.Hour)
	latest := clock(start) // the latest local time that was passed
	for at := start.Add(step); at.Before(to); at = at.Add(step) {
		hit := m.elapsed && !at.Before(from) && m.names(clock(at))
		for local := clock(at); !m.elapsed && latest.Before(local); {
			latest = latest.Add(step)
			hit = m.names(latest) || hit
		}
		if hit && !at.Before(from) {
			list = append(list, at)
		}
	}
	return list
}

// changes are instants around which clocks behave oddly.
var changes = []struct {
	zone string
	at   string
	// fine: local times are not on whole minutes.
	fine bool
}{
	{"UTC", "2026-03-08T07:00:00Z", false},
	{"America/New_York", "2026-03-08T07:00:00Z", false},
	{"America/New_York", "2026-11-01T06:00:00Z", false},
	{"Europe/London", "2027-03-28T01:00:00Z", false},
	{"Europe/London", "2027-10-31T01:00:00Z", false},
	{"Australia/Lord_Howe", "2026-10-03T15:30:00Z", false}, // half an hour
	{"Australia/Lord_Howe", "2026-04-04T15:00:00Z", false},
	{"America/Sao_Paulo", "2018-11-04T03:00:00Z", false}, // at midnight
	{"America/Sao_Paulo", "2018-02-18T02:00:00Z", false},
	{"Pacific/Apia", "2011-12-30T10:00:00Z", false},      // a day is skipped
	{"Pacific/Kwajalein", "1993-08-21T12:00:00Z", false}, // another one
	{"America/Caracas", "2007-12-09T07:00:00Z", false},   // back by half an hour, for good
	{"Antarctica/Troll", "2026-03-29T01:00:00Z", false},  // two hours
	{"Antarctica/Troll", "2026-10-25T01:00:00Z", false},
	{"Africa/Casablanca", "2026-02-15T02:00:00Z", false}, // Ramadan
	{"Africa/Casablanca", "2026-03-22T03:00:00Z", false},
	{"Asia/Pyongyang", "2018-05-04T15:00:00Z", false},
	{"Africa/Monrovia", "1972-01-07T00:44:30Z", true}, // offset with seconds
	{"America/Anchorage", "1983-10-30T12:00:00Z", false},
	{"Asia/Gaza", "2026-03-28T00:00:00Z", false},
	{"America/Nuuk", "2024-03-31T01:00:00Z", false},
	{"America/Nuuk", "2198-10-27T01:00:00Z", false}, // by the rule, far beyond the table of the file
	{"America/New_York", "2150-03-08T07:00:00Z", false},
}

// seed returns the seed of a random test, which CRON_SEED repeats.
func seed(t *testing.T) *rand.Rand {
	n := uint64(time.Now().UnixNano())
	if text := os.Getenv("CRON_SEED"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("CRON_SEED=%d", n)
	return rand.New(rand.NewPCG(n, 0)) //nolint:gosec // a test
}

func TestInstantsAroundClockChangesAreThoseOfTheModel(t *testing.T) {
	r := seed(t)
	instants := 0
	for _, change := range changes {
		at, err := time.Parse(time.RFC3339, change.at)
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			m := newModel(r, []Dialect{Standard, Quartz}[r.IntN(2)])
			c, err := Parse(m.dialect, m.expr, change.zone, Options{})
			if err != nil {
				t.Fatalf("%q: %v", m.expr, err)
			}
			step, span := time.Minute, 30*time.Hour
			if change.fine || len(m.second) != 1 || !m.second[0] {
				step, span = time.Second, 3*time.Hour
			}
			from, to := at.Add(-span), at.Add(span)
			want := m.instants(clockOf(c.Location()), from, to, step)
			instants += len(want)
			if c.Elapsed() != m.elapsed {
				t.Fatalf("%s %q: elapsed is %v", m.dialect, m.expr, c.Elapsed())
			}
			compare(t, c, want, from, to)
			for _, start := range []time.Time{at.Add(-time.Second), at.Add(-1), at, at.Add(time.Minute), from.Add(time.Duration(r.Int64N(int64(2 * span))))} {
				later := want
				for len(later) > 0 && !later[0].After(start) {
					later = later[1:]
				}
				compare(t, c, later, start.Add(1), to)
			}
		}
	}
	t.Logf("%d instants agree", instants)
}

// clockOf is the clock of a zone. It asks for the offset once between two changes:
// the models ask second by second.
func clockOf(zone *time.Location) func(time.Time) time.Time {
	var begin, end time.Time // of the offset; zero: there is no bound
	var offset int
	known := false
	return func(t time.Time) time.Time {
		if !known || t.Before(begin) || !end.IsZero() && !t.Before(end) {
			local := t.In(zone)
			begin, end = local.ZoneBounds()
			_, offset = local.Zone()
			known = true
		}
		return t.UTC().Add(time.Duration(offset) * time.Second)
	}
}

// compare fails if the instants of c in [from, to) are not those of want.
func compare(t *testing.T, c *Cron, want []time.Time, from, to time.Time) {
	t.Helper()
	got := upcoming(c, from.Add(-1), len(want)+1)
	if n := len(got); n > len(want) && !got[n-1].Before(to) {
		got = got[:n-1]
	}
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Fatalf("%s %q in %s from %s (elapsed %v):\n got %v\nwant %v", c.Dialect(), c, c.Location(), from, c.Elapsed(), got, want)
	}
}

// No zone changes its clock twice within hours, as these do: overlaps in
// overlaps, gaps that only bring back what was.
func TestInstantsOfWildClocksAreThoseOfTheModel(t *testing.T) {
	r := seed(t)
	begin := instantOf(t, "2026-01-01T00:00:00Z")
	for range 400 {
		z := &zone{starts: []int64{startOfYear(FirstYear)}, offsets: []int64{0}}
		for at := begin; len(z.starts) < 12; {
			at = at.Add(time.Duration(1+r.IntN(300)) * time.Minute)
			z.starts, z.offsets = append(z.starts, at.Unix()), append(z.offsets, int64(r.IntN(360)-180)*60)
		}
		z.markHigh()
		clock := func(t time.Time) time.Time {
			return t.Add(time.Duration(z.offsets[z.segment(t.Unix())]) * time.Second)
		}
		m := newModel(r, Quartz)
		for len(m.second) != 1 || !m.second[0] {
			m = newModel(r, Quartz)
		}
		c := mustParse(t, Quartz, m.expr, "UTC")
		c.zone, z.location = z, time.UTC
		to := begin.Add(72 * time.Hour)
		want := m.instants(clock, begin, to, time.Minute)
		for from := begin; from.Before(to); from = from.Add(time.Duration(1+r.IntN(600)) * time.Minute) {
			for len(want) > 0 && want[0].Before(from) {
				want = want[1:]
			}
			compare(t, c, want, from, to)
		}
	}
}

func TestQuartzDaysAreThoseOfTheCalendar(t *testing.T) {
	r := seed(t)
	for range 300 {
		expr, want := calendarRule(r)
		c, err := Parse(Quartz, "0 0 12 "+expr, "UTC", Options{})
		if err != nil {
			t.Fatalf("%q: %v", expr, err)
		}
		at := time.Date(1970+r.IntN(225), 1, 1, 12, 0, 0, 0, time.UTC)
		after := at.Add(-time.Second)
		for range 5 * 365 {
			if want(at) {
				if next, ok := c.Next(after); !ok || !next.Equal(at) {
					t.Fatalf("%q after %s: got %v %v, want %s", expr, after, next, ok, at)
				}
				after = at
			}
			at = at.AddDate(0, 0, 1)
		}
		if next, ok := c.Next(after); ok && next.Before(at) {
			t.Fatalf("%q after %s: got %v, which is not meant", expr, after, next)
		}
	}
}

// calendarRule generates the day fields with a letter, and a test of a date
// that asks the calendar and nothing else.
func calendarRule(r *rand.Rand) (string, func(time.Time) bool) {
	last := func(t time.Time) int { return time.Date(t.Year(), t.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day() }
	onDay := func(t time.Time, day int) time.Time { return time.Date(t.Year(), t.Month(), day, 0, 0, 0, 0, time.UTC) }
	working := func(t time.Time, day int) bool { // whether t is the working day nearest to a day of its month
		if day < 1 || day > last(t) {
			return false
		}
		for _, distance := range []int{0, -1, 1, -2, 2} {
			near := onDay(t, day+distance)
			if near.Month() == t.Month() && near.Weekday() != time.Saturday && near.Weekday() != time.Sunday {
				return near.Day() == t.Day()
			}
		}
		return false
	}
	n, distance, weekday, k := 1+r.IntN(31), r.IntN(31), time.Weekday(r.IntN(7)), 1+r.IntN(5)
	switch r.IntN(8) {
	case 0:
		return "L * ?", func(t time.Time) bool { return t.Day() == last(t) }
	case 1:
		return fmt.Sprintf("L-%d * ?", distance), func(t time.Time) bool { return t.Day() == last(t)-distance }
	case 2:
		return "LW * ?", func(t time.Time) bool { return working(t, last(t)) }
	case 3:
		return fmt.Sprintf("L-%dW * ?", distance), func(t time.Time) bool { return working(t, last(t)-distance) }
	case 4:
		return fmt.Sprintf("%dW * ?", n), func(t time.Time) bool { return working(t, n) }
	case 5:
		return fmt.Sprintf("? * %dL", weekday+1), func(t time.Time) bool { return t.Weekday() == weekday && t.Day() > last(t)-7 }
	case 6:
		return fmt.Sprintf("? * %d#%d", weekday+1, k), func(t time.Time) bool { return t.Weekday() == weekday && (t.Day()+6)/7 == k }
	default:
		return fmt.Sprintf("%d,LW,%dW 2,11 ?", n, distance+1), func(t time.Time) bool {
			return (t.Month() == 2 || t.Month() == 11) && (t.Day() == n || working(t, last(t)) || working(t, distance+1))
		}
	}
}
