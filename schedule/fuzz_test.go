package schedule

import (
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
)

// fuzzZones are zones with all kinds of changes.
var fuzzZones = []string{
	"UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Africa/Casablanca", "Asia/Kathmandu",
}

func addSeeds(f *testing.F) {
	for i, expr := range []string{
		"*/15 8-18/2 * * mon-Fri", "0 0 29 2 *", "H H(0-5) H/3 * 5-7", "0 0-59/7 1,2 */2 * 1", "30 2 * * *",
		"0 0 12 LW * ?", "0 0/20 1 L-3W 10 ? 2027", "0 0 22-2 ? NOV-FEB 6#3", "59 59 23 ? * FRIL", "0 19,41 1-4 28-3/2 * ?",
		"@daily", "@every 5m", "TZ=UTC 0 0 * * *", "", ",", "L W # ? / -", "0 0 0 0W * ?", "* * * * * * *",
	} {
		f.Add(expr, uint8(i%3+1), uint8(i), int64(1_700_000_000)+int64(i)*10_000_000)
	}
	for i, rule := range []string{
		"FREQ=YEARLY;BYWEEKNO=1,-1;BYDAY=MO,SU;WKST=SU", "FREQ=YEARLY;BYYEARDAY=-366,60;INTERVAL=3", "FREQ=MONTHLY;BYDAY=-1FR,2MO;BYHOUR=2;BYMINUTE=30",
		"FREQ=MONTHLY;BYDAY=MO,TU,WE;BYSETPOS=2,-1;COUNT=99", "FREQ=WEEKLY;INTERVAL=2;BYDAY=SU;WKST=MO", "FREQ=DAILY;INTERVAL=5;UNTIL=20360101T000000Z",
		"FREQ=HOURLY;INTERVAL=5;BYMINUTE=0,30;BYSETPOS=-1", "FREQ=MINUTELY;INTERVAL=7;BYHOUR=1,2;COUNT=500", "FREQ=SECONDLY;INTERVAL=97;BYSECOND=1,2,3",
	} {
		f.Add("DTSTART:20240229T023000 RRULE:"+rule, uint8(RRule), uint8(i), int64(1_700_000_000)+int64(i)*10_000_000)
	}
}

// FuzzNext: whatever parses has instants that rise, that its text fires at too,
// and that do not depend on where the search starts.
func FuzzNext(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, expr string, dialect, zone uint8, start int64) {
		c, err := Parse(Dialect(dialect), expr, fuzzZones[int(zone)%len(fuzzZones)], Options{HashKey: "key"})
		if err != nil {
			if c != nil || len(err.Error()) > 1000 {
				t.Fatalf("%q: %v %d", expr, c, len(err.Error()))
			}
			return
		}
		again, err := Parse(c.Dialect(), c.String(), c.Location().String(), Options{})
		if err != nil || again.Elapsed() != c.Elapsed() {
			t.Fatalf("%q became %q: %v", expr, c, err)
		}
		after := time.Unix(start%startOfYear(LastYear+2), 0)
		begin := after
		for i := range 20 {
			next, ok := c.Next(after)
			if other, found := again.Next(after); other != next || found != ok {
				t.Fatalf("%q after %s: %s, and %q: %s", expr, after, next, c, other)
			}
			if !ok {
				break
			}
			if !next.After(after) || next.Nanosecond() != 0 || next.In(c.Location()).Year() > LastYear || next.In(c.Location()).Year() < FirstYear {
				t.Fatalf("%q after %s: %s", expr, after, next)
			}
			for n := int64(1); n <= 64; n *= 2 {
				between := after.Add(next.Sub(after) / time.Duration(n))
				if n == 1 {
					between = next.Add(-1)
				}
				if same, _ := c.Next(between); same != next {
					t.Fatalf("%q: after %s there is %s, after %s there is %s", expr, after, next, between, same)
				}
			}
			if c.Elapsed() && c.rule == nil {
				checkFields(t, c, next)
			}
			if n := c.Count(begin, next); n != int64(i+1) {
				t.Fatalf("%q: %d instants after %s until %s, want %d", expr, n, begin, next, i+1)
			}
			after = next
		}
	})
}

// checkFields fails if the local time of an instant does not match the fields.
func checkFields(t *testing.T, c *Cron, at time.Time) {
	t.Helper()
	l := at.In(c.Location())
	first := time.Date(l.Year(), l.Month(), 1, 0, 0, 0, 0, time.UTC).Weekday()
	if c.seconds>>l.Second()&1 == 0 || c.minutes>>l.Minute()&1 == 0 || c.hours>>l.Hour()&1 == 0 || c.months>>l.Month()&1 == 0 ||
		!c.years.has(l.Year()-FirstYear) || c.days.in(l.Year(), int(l.Month()), int(first))>>l.Day()&1 == 0 {
		t.Fatalf("%q fires at %s, which does not match", c, l)
	}
}

// FuzzStandardAgainstRobfig: what we accept without extensions of ours,
// robfig/cron accepts too, and in UTC its instants of the next years are ours.
func FuzzStandardAgainstRobfig(f *testing.F) {
	addSeeds(f)
	theirs := cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	f.Fuzz(func(t *testing.T, expr string, _, _ uint8, start int64) {
		fields := strings.Fields(expr)
		c, err := Parse(Standard, expr, "UTC", Options{})
		if err != nil || strings.Contains(fields[len(fields)-1], "7") || oneStarStep(fields) {
			return // 7 as Sunday and the meaning of */2 in a day field are ours
		}
		spec, err := theirs.Parse("TZ=UTC " + expr)
		if err != nil {
			t.Fatalf("%q: robfig/cron refuses: %v", expr, err)
		}
		after := time.Unix(start%startOfYear(LastYear-10), 0).UTC()
		if after.Year() < FirstYear {
			return
		}
		for range 10 {
			want := spec.Next(after)
			if want.IsZero() {
				return // it looks five years ahead
			}
			if got, ok := c.Next(after); !ok || !got.Equal(want) {
				t.Fatalf("%q after %s: got %s, want %s", expr, after, got, want)
			}
			after = want
		}
	})
}

// oneStarStep reports whether a day field is a step from a star, or a list that
// begins with a star.
func oneStarStep(fields []string) bool {
	dom, dow := fields[len(fields)-3], fields[len(fields)-1]
	odd := func(field string) bool { return strings.Contains(field, "*") && field != "*" }
	return odd(dom) || odd(dow)
}
