package schedule

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func mustParse(t testing.TB, d Dialect, expr, zone string) *Cron {
	t.Helper()
	c, err := Parse(d, expr, zone, Options{HashKey: "key"})
	if err != nil {
		t.Fatalf("%s %q in %s: %v", d, expr, zone, err)
	}
	return c
}

func instantOf(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestErrorsNameFieldValuePositionAndRule(t *testing.T) {
	for _, c := range []struct {
		dialect    Dialect
		expr, want string
	}{
		{Standard, "61 * * * *", `minute "61" (at 1): is not a number from 0 to 59`},
		{Standard, "0  24\t* * *", `hour "24" (at 4): is not a number from 0 to 23`},
		{Standard, "0 0 1,32 * *", `day of month "32" (at 7): is not a number from 1 to 31`},
		{Standard, "0 0 * XYZ *", `month "XYZ" (at 7): is not a number from 1 to 12 or a name from JAN to DEC`},
		{Standard, "0 0 * * FRI-MON", `day of week "FRI-MON" (at 9): the range ends before it begins`},
		{Standard, "0 0 * * 8", `day of week "8" (at 9): is not a number from 0 to 7 or a name from SUN to SAT`},
		{Standard, "5,,7 0 * * *", `minute "" (at 3): the list has an empty element`},
		{Standard, "*/0 0 * * *", `minute "0" (at 3): a step must be a number from 1 to 9999`},
		{Standard, "/5 0 * * *", `minute "" (at 1): is not a number`},
		{Standard, "1-2-3 0 * * *", `minute "1-2-3" (at 1): a range must have exactly one hyphen`},
		{Standard, "0 0 * *", `expression "0 0 * *": has 4 fields`},
		{Standard, "", `expression "": has 0 fields`},
		{Standard, "TZ=UTC 0 0 * * *", `expression "TZ=UTC" (at 1): the time zone is a separate setting`},
		{Standard, "CRON_TZ=UTC 0 0 * * *", `expression "CRON_TZ=UTC" (at 1): the time zone is a separate setting`},
		{Standard, "@daily", `expression "@daily" (at 1): names such as @daily belong to the dialect named`},
		{Standard, "0 0 30 2 *", `never fires`},
		{Standard, "0 0 ? * *", `day of month "?" (at 5)`},
		{Standard, "0 0 L * *", `day of month "L" (at 5)`},
		{Standard, "H(0-70) 0 * * *", `minute "70" (at 5)`},
		{Standard, "H(5) 0 * * *", `minute "H(5)" (at 1): the parentheses must have a range`},
		{Standard, "H(0-5 0 * * *", `minute "H(0-5" (at 1): the parenthesis is not closed`},
		{Standard, "HH 0 * * *", `minute "HH" (at 1): H must be followed by`},
		{Standard, "0 0 1 1 *\n", `expression "\n" (at 10): is not a printable ASCII character`},
		{Standard, "日本 * * * *", `expression "日" (at 1): is not a printable ASCII character`},
		{Standard, "\xff * * * *", `expression "\xff" (at 1): is not a printable ASCII character`},
		{Standard, "0 0 * * \u017fUN", `expression "ſ" (at 9): is not a printable ASCII character`},
		{Standard, strings.Repeat("0,", 200) + "0 0 * * *", `is 409 bytes long; the limit is 256`},
		{Quartz, "0 0 12 * * *", `day of week "*" (at 12): one of the two day fields must be ?`},
		{Quartz, "0 0 12 ? * ?", `day of week "?" (at 12): both day fields are ?`},
		{Quartz, "0 ? 12 * * ?", `minute "?" (at 3)`},
		{Quartz, "0 0/60 12 * * ?", `minute "60" (at 5): a step must be a number from 1 to 59`},
		{Quartz, "0 0 12 L-31 * ?", `day of month "L-31" (at 8): L must be followed by`},
		{Quartz, "0 0 12 32W * ?", `day of month "32" (at 8)`},
		{Quartz, "0 0 12 1-5W * ?", `day of month "1-5W" (at 8): W must follow one day`},
		{Quartz, "0 0 12 15C * ?", `day of month "15C" (at 8)`},
		{Quartz, "0 0 12 W * ?", `day of month "W" (at 8): W must follow`},
		{Quartz, "0 0 12 ? * 8#1", `day of week "8" (at 12)`},
		{Quartz, "0 0 12 ? * 6#6", `day of week "6#6" (at 12): # must be followed by a number from 1 to 5`},
		{Quartz, "0 0 12 ? * L-3", `day of week "L-3" (at 12): L must stand alone`},
		{Quartz, "0 0 12 ? * MON,6L", `day of week "MON,6L" (at 12): L and # must not be in a list`},
		{Quartz, "0 0 12 ? * SUNX", `day of week "SUNX" (at 12)`},
		{Quartz, "0 0 12 ? * 0", `day of week "0" (at 12)`},
		{Quartz, "0 0 12 ? * 99", `day of week "99" (at 12)`},
		{Quartz, "0 98 12 * * ?", `minute "98" (at 3)`},
		{Quartz, "0 *5 12 * * ?", `minute "*5" (at 3)`},
		{Quartz, "0 5* 12 * * ?", `minute "5*" (at 3)`},
		{Quartz, "0 5-10- 12 * * ?", `minute "5-10-" (at 3)`},
		{Quartz, "0 0 12 * * ?6", `day of week "?6" (at 12)`},
		{Quartz, "0 0 12 1 1 ? 2100", `year "2100" (at 14): is not a number from 1970 to 2099`},
		{Quartz, "0 0 12 1 1 ? 2030-2027", `year "2030-2027" (at 14): the range ends before it begins`},
		{Quartz, "0 0 12 1 1 ? 2030 1", `has 8 fields`},
		{Quartz, "0 H 12 * * ?", `minute "H" (at 3)`},
		{Named, "@every 5m", `is an interval`},
		{Named, "@noon", `is not one of @yearly`},
		{Dialect(9), "@noon", `dialect "Dialect(9)": is unknown`},
	} {
		_, err := Parse(c.dialect, c.expr, "UTC", Options{HashKey: "key"})
		var broken *Error
		if !errors.As(err, &broken) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: got %v, want %s", c.dialect, c.expr, err, c.want)
		}
	}
}

func TestWhatMeansTheSameFiresTheSame(t *testing.T) {
	for _, c := range []struct {
		d   Dialect
		a   string
		e   Dialect
		b   string
		why string
	}{
		{Standard, "*/15 8-18/2 * * mon-Fri", Standard, "0,15,30,45 8,10,12,14,16,18 * * 1,2,3,4,5", "steps, names, case"},
		{Standard, "0 0 * * 5-7", Standard, "0 0 * * 5,6,0", "7 is Sunday"},
		{Standard, "0 0 * * 1-7/3", Standard, "0 0 * * 1,4,0", "7 is Sunday in a range with a step"},
		{Standard, "0 0 * * 5/2", Standard, "0 0 * * 5", "a step ends on Saturday"},
		{Standard, "0 0 * * 7/2", Standard, "0 0 * * 0", "7 with a step"},
		{Standard, "*/90 0 * * *", Standard, "0 0 * * *", "a step past the end"},
		{Standard, "0 0 12 * * *", Standard, "0 12 * * *", "six fields"},
		{Standard, "  007 5 *\t* * ", Standard, "7 5 * * *", "blanks and zeros"},
		{Standard, "0 0 * * 0", Named, "@weekly", "named"},
		{Standard, "0 0 1 1 *", Named, " @Annually ", "named"},
		{Standard, "30 4 * * 1-5", Quartz, "0 30 4 ? * MON-FRI", "dialects"},
		{Quartz, "0 0 22-2 * * ?", Quartz, "0 0 22,23,0,1,2 * * ?", "ranges wrap around"},
		{Quartz, "0 0 0 ? 11-2/2 2", Quartz, "0 0 0 ? NOV,JAN MON", "steps wrap around"},
		{Quartz, "0 0 0 28-3/2 * ?", Quartz, "0 0 0 28,30,1,3 * ?", "days wrap around after 31"},
		{Quartz, "0 /10 * * * ?", Quartz, "0 */10 * * * ?", "no star before a step"},
		{Quartz, "0 0 0 ? * L", Quartz, "0 0 0 ? * SAT", "L alone"},
		{Quartz, "0 0 0 l-2w * ?", Quartz, "0 0 0 L-2W * ?", "case"},
		{Quartz, "0 0 0 L-0 * ?", Quartz, "0 0 0 L * ?", "no distance"},
		{Quartz, "0 0 0 * * ? *", Quartz, "0 0 0 ? * *", "every day"},
	} {
		t.Run(c.why, func(t *testing.T) {
			start := instantOf(t, "2026-01-01T00:00:00Z")
			a, b := upcoming(mustParse(t, c.d, c.a, "UTC"), start, 50), upcoming(mustParse(t, c.e, c.b, "UTC"), start, 50)
			if len(a) != 50 || fmt.Sprint(a) != fmt.Sprint(b) {
				t.Errorf("%q: %v\n%q: %v", c.a, a, c.b, b)
			}
		})
	}
}

func TestWhichExpressionsGoByElapsedTime(t *testing.T) {
	for expr, want := range map[string]bool{
		"0 30 2 * * *":         false,
		"0 30 * * * *":         true,
		"0 */5 2 * * *":        true,
		"0 5/10 2 * * *":       true,
		"*/20 30 2 * * *":      true,
		"0 *,5 2 * * *":        true,
		"0 5,10/10 2 * * *":    false,
		"0 0-59/10 2 * * *":    false,
		"0 0,15,30 0-4 * * *":  false,
		"0 0 0/2 * * *":        true,
		"0 0 2 */2 * *":        false,
		"0 H/20 2 * * *":       true,
		"0 H(0-30)/20 2 * * *": false,
		"0 H 2 * * *":          false,
	} {
		if got := mustParse(t, Standard, expr, "UTC").Elapsed(); got != want {
			t.Errorf("%q: %v", expr, got)
		}
	}
	if !mustParse(t, Quartz, "0 /5 2 * * ?", "UTC").Elapsed() {
		t.Error("/5 is a step")
	}
}

func TestNothingFiresOutsideTheYears(t *testing.T) {
	c := mustParse(t, Standard, "0 0 29 2 *", "Asia/Shanghai")
	for _, s := range []struct{ after, want string }{
		{"0001-01-01T00:00:00Z", "1972-02-28T16:00:00Z"},
		{"2096-03-01T00:00:00Z", "2104-02-28T16:00:00Z"},
		{"2196-02-28T16:00:00Z", ""},
		{"9999-01-01T00:00:00Z", ""},
	} {
		next, ok := c.Next(instantOf(t, s.after))
		if ok != (s.want != "") || ok && !next.Equal(instantOf(t, s.want)) {
			t.Errorf("after %s: %v %v, want %q", s.after, next, ok, s.want)
		}
	}
	for _, far := range []struct {
		at   time.Time
		want bool
	}{{time.Unix(1<<62, 0), false}, {time.Unix(1<<63-1, 0), false}, {time.Unix(-1<<62, 0), true}, {time.Time{}, true}} {
		if next, ok := c.Next(far.at); ok != far.want {
			t.Errorf("after %d s: %v %v", far.at.Unix(), next, ok)
		}
	}
	every := mustParse(t, Quartz, "* * * * * ?", "Pacific/Kiritimati")
	if next, _ := every.Next(time.Time{}); !next.Equal(time.Date(1970, 1, 1, 0, 0, 0, 0, every.Location())) {
		t.Errorf("the first second is %s", next)
	}
	end := time.Date(LastYear, 12, 31, 23, 59, 59, 0, every.Location())
	if next, ok := every.Next(end.Add(-time.Millisecond)); !ok || !next.Equal(end) {
		t.Errorf("the last second is %s", next)
	}
	if next, ok := every.Next(end); ok {
		t.Errorf("after the last second there is %s", next)
	}
}

func TestNextIsAfterFractionsOfASecond(t *testing.T) {
	c := mustParse(t, Quartz, "* * * * * ?", "UTC")
	at := instantOf(t, "2026-01-01T00:00:00Z")
	for _, d := range []time.Duration{0, 1, time.Second - 1} {
		if next, _ := c.Next(at.Add(d)); !next.Equal(at.Add(time.Second)) {
			t.Errorf("after %s: %s", d, next)
		}
	}
	if next, _ := c.Next(at.Add(-1)); !next.Equal(at) || next.Location() != time.UTC {
		t.Errorf("just before: %s", next)
	}
}

func TestNeverIsKnown(t *testing.T) {
	for expr, want := range map[string]bool{
		"0 0 12 30 2 ?":        true,
		"0 0 12 31 4,6,9 ?":    true,
		"0 0 12 29 2 ? 2027":   true,
		"0 0 12 L-29 2 ?":      true,
		"0 0 12 L-28 2 ?":      false,
		"0 0 12 31W 4 ?":       true,
		"0 0 12 ? 2 MON#5":     false,
		"0 0 12 * * ? 1990":    false, // it has passed
		"0 0 12 29 2 ? 2000/4": false,
	} {
		if got := mustParse(t, Quartz, expr, "America/New_York").Never(); got != want {
			t.Errorf("%q: %v", expr, got)
		}
	}
	// By elapsed time, an expression may name nothing but times in gaps.
	c := mustParse(t, Standard, "*/5 2 8-14 3 */7", "America/New_York")
	if next, ok := c.Next(instantOf(t, "2026-01-01T00:00:00Z")); ok {
		t.Errorf("fires at %s", next)
	}
}

func TestOverlapsAfterTheLastMatchStillFire(t *testing.T) {
	c := mustParse(t, Quartz, "0 0/20 1 31 10 ? 2027", "Europe/London")
	got := fmt.Sprint(upcoming(c, instantOf(t, "2027-10-31T00:40:00Z"), 9))
	if want := "[2027-10-31 01:00:00 +0000 UTC 2027-10-31 01:20:00 +0000 UTC 2027-10-31 01:40:00 +0000 UTC]"; got != want {
		t.Errorf("got %s", got)
	}
}

func TestEveryIsAnInterval(t *testing.T) {
	for expr, want := range map[string]time.Duration{
		"@every 90m": 90 * time.Minute, " @Every\t1h30m ": 90 * time.Minute, "@every 0.5s": 500 * time.Millisecond,
	} {
		if d, err := ParseEvery(expr); err != nil || d != want {
			t.Errorf("%q: %v %v", expr, d, err)
		}
	}
	for _, expr := range []string{"", "@every", "every 5m", "@every 5", "@every -5m", "@every +5m", "@every 0s", "@every 1us", "@every 5m 6m", "@every " + strings.Repeat("1", 300) + "h"} {
		var broken *Error
		if d, err := ParseEvery(expr); !errors.As(err, &broken) {
			t.Errorf("%q: %v %v", expr, d, err)
		}
	}
}

func TestTextsRoundTrip(t *testing.T) {
	for _, d := range []Dialect{Standard, Quartz, Named} {
		if got, err := ParseDialect(d.String()); err != nil || got != d {
			t.Errorf("%s: %v %v", d, got, err)
		}
	}
	if _, err := ParseDialect("cron"); err == nil || Dialect(0).String() != "Dialect(0)" {
		t.Error("cron is a dialect")
	}
	c := mustParse(t, Standard, " 5 \t4 * *   MON", "Europe/London")
	if c.String() != "5 4 * * MON" || c.Dialect() != Standard || c.Location().String() != "Europe/London" {
		t.Errorf("got %q, %s, %s", c, c.Dialect(), c.Location())
	}
	if c := mustParse(t, Named, "@DAILY", ""); c.String() != "@daily" || c.Location().String() != "UTC" {
		t.Errorf("got %q in %s", c, c.Location())
	}
}

func TestNextAllocatesNothing(t *testing.T) {
	c, at := mustParse(t, Quartz, "0 0 12 LW * ?", "America/New_York"), time.Now()
	if n := testing.AllocsPerRun(100, func() { at, _ = c.Next(at) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
