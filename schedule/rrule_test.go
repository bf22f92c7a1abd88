package schedule

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// ruleVector is a rule and its first instants by python-dateutil; see
// testdata/rrule.py. Fewer than twelve are all.
type ruleVector struct {
	Start string   `json:"start"`
	Rule  string   `json:"rule"`
	Next  []string `json:"next"`
}

const ruleForm = "20060102T150405"

func mustRule(t testing.TB, start, text, zone string) *Cron {
	t.Helper()
	c, err := Parse(RRule, "DTSTART:"+start+" RRULE:"+text, zone, Options{})
	if err != nil {
		t.Fatalf("%s %s: %v", start, text, err)
	}
	return c
}

func TestRulesHaveTheInstantsOfDateutil(t *testing.T) {
	vectors := readLines[ruleVector](t, "testdata/rrule.jsonl")
	if len(vectors) < 600 {
		t.Errorf("%d vectors", len(vectors))
	}
	for _, v := range vectors {
		c := mustRule(t, v.Start, v.Rule, "UTC")
		limit := len(v.Next)
		if limit < 12 {
			limit++
		}
		var got []string
		for _, at := range upcoming(c, time.Unix(c.rule.first-1, 0), limit) {
			got = append(got, at.Format(ruleForm))
		}
		if !slices.Equal(got, v.Next) {
			t.Errorf("%s %s:\n got %v\nwant %v", v.Start, v.Rule, got, v.Next)
		}
		checkRuleCount(t, c)
	}
}

// checkRuleCount compares Count with repeated calls of Next.
func checkRuleCount(t *testing.T, c *Cron) {
	t.Helper()
	begin := time.Unix(c.rule.first-1, 0)
	list := upcoming(c, begin, 40)
	for i, at := range list {
		if n := c.Count(begin, at); n != int64(i+1) {
			t.Fatalf("%s: %d instants until %s, want %d", c, n, at, i+1)
		}
		if n := c.Count(at.Add(-time.Second), list[len(list)-1]); n != int64(len(list)-i) {
			t.Fatalf("%s: %d instants from %s, want %d", c, n, at, len(list)-i)
		}
	}
}

// TestRulesAreRefusedByPart: an error names the part, its value, its place and
// the rule that it breaks.
func TestRulesAreRefusedByPart(t *testing.T) {
	const start = "DTSTART:20260101T090000 "
	for _, c := range []struct{ expr, field, value, rule string }{
		{"", "expression", "", "has no rule"},
		{"FREQ=DAILY", "expression", "FREQ=DAILY", "has no start"},
		{"DTSTART:20260101T090000", "expression", "DTSTART:20260101T090000", "has no rule"},
		{start + "RRULE:INTERVAL=2", "RRULE", "INTERVAL=2", "has no FREQ"},
		{"DTSTART;TZID=Europe/Berlin:20260101T090000 FREQ=DAILY", "DTSTART", "", "separate setting"},
		{"DTSTART FREQ=DAILY", "DTSTART", "DTSTART", "must have the form"},
		{"DTSTART:20260101T090000Z FREQ=DAILY", "DTSTART", "20260101T090000Z", "without Z"},
		{"DTSTART:20260101 FREQ=DAILY", "DTSTART", "20260101", "is not a time"},
		{"DTSTART:20260230T090000 FREQ=DAILY", "DTSTART", "20260230T090000", "is not a time"},
		{"DTSTART:19691231T235959 FREQ=DAILY", "DTSTART", "19691231T235959", "is not a time"},
		{start + start + "FREQ=DAILY", "DTSTART", "20260101T090000", "given twice"},
		{start + "FREQ=DAILY RRULE:FREQ=DAILY", "RRULE", "FREQ=DAILY", "given twice"},
		{start + "FREQ=DAILY EXDATE:20260102T090000", "expression", "EXDATE:20260102T090000", "not supported"},
		{start + "FREQ=DAILY;FREQ=DAILY", "FREQ", "DAILY", "given twice"},
		{start + "FREQ=FORTNIGHTLY", "FREQ", "FORTNIGHTLY", "is not one of YEARLY"},
		{start + "FREQ=DAILY;", "RRULE", "", "NAME=VALUE"},
		{start + "FREQ=DAILY;BYEASTER=1", "RRULE", "BYEASTER", "is not the name"},
		{start + "FREQ=DAILY;INTERVAL=0", "INTERVAL", "0", "between 1 and"},
		{start + "FREQ=DAILY;INTERVAL=2147483648", "INTERVAL", "2147483648", "between 1 and"},
		{start + "FREQ=DAILY;INTERVAL=+2", "INTERVAL", "+2", "between 1 and"},
		{start + "FREQ=DAILY;COUNT=0", "COUNT", "0", "between 1 and"},
		{start + "FREQ=DAILY;COUNT=2;UNTIL=20270101T000000Z", "UNTIL", "20270101T000000Z", "together with COUNT"},
		{start + "FREQ=DAILY;UNTIL=20270101", "UNTIL", "20270101", "is not a time"},
		{start + "FREQ=DAILY;UNTIL=20251231T000000Z", "UNTIL", "20251231T000000Z", "before DTSTART"},
		{start + "FREQ=DAILY;BYSECOND=60", "BYSECOND", "60", "leap second"},
		{start + "FREQ=DAILY;BYHOUR=1,,2", "BYHOUR", "", "between 0 and 23"},
		{start + "FREQ=DAILY;BYHOUR=-1", "BYHOUR", "-1", "between 0 and 23"},
		{start + "FREQ=DAILY;BYMONTH=13", "BYMONTH", "13", "between 1 and 12"},
		{start + "FREQ=DAILY;BYMONTHDAY=0", "BYMONTHDAY", "0", "between 1 and 31, or between -31 and -1"},
		{start + "FREQ=WEEKLY;BYMONTHDAY=1", "BYMONTHDAY", "1", "FREQ=WEEKLY"},
		{start + "FREQ=MONTHLY;BYYEARDAY=1", "BYYEARDAY", "1", "FREQ=MONTHLY"},
		{start + "FREQ=MONTHLY;BYWEEKNO=1", "BYWEEKNO", "1", "only be used with FREQ=YEARLY"},
		{start + "FREQ=YEARLY;BYWEEKNO=54;BYDAY=MO", "BYWEEKNO", "54", "between 1 and 53"},
		{start + "FREQ=YEARLY;BYWEEKNO=1;BYDAY=1MO", "BYDAY", "1MO", "BYWEEKNO"},
		{start + "FREQ=WEEKLY;BYDAY=MO,1TU", "BYDAY", "1TU", "only FREQ=MONTHLY"},
		{start + "FREQ=MONTHLY;BYDAY=6TU", "BYDAY", "6TU", "no month has so many"},
		{start + "FREQ=YEARLY;BYDAY=0TU", "BYDAY", "0TU", "is not a day"},
		{start + "FREQ=YEARLY;BYDAY=MON", "BYDAY", "MON", "is not a day"},
		{start + "FREQ=YEARLY;BYDAY=T", "BYDAY", "T", "is not a day"},
		{start + "FREQ=YEARLY;BYSETPOS=1", "BYSETPOS", "1", "needs another BY part"},
		{start + "FREQ=YEARLY;BYMONTH=1;BYSETPOS=367", "BYSETPOS", "367", "between 1 and 366"},
		{start + "FREQ=DAILY;WKST=MONDAY", "WKST", "MONDAY", "is not one of SU"},
		{start + "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "RRULE", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "never fires"},
		{start + "FREQ=HOURLY;INTERVAL=2;BYHOUR=10", "RRULE", "FREQ=HOURLY;INTERVAL=2;BYHOUR=10", "never fires"},
		{start + "FREQ=DAILY;BYMONTH=1;BYSETPOS=2", "RRULE", "FREQ=DAILY;BYMONTH=1;BYSETPOS=2", "never fires"},
		{start + "FREQ=DAILY\x00", "expression", "\x00", "printable"},
		{start + "FREQ=日", "expression", "日", "printable"},
		{start + "FREQ=DAILY;BYSECOND=" + strings.Repeat("1,", 120) + "1", "expression", "", "the limit is 256"},
	} {
		got, err := Parse(RRule, c.expr, "UTC", Options{})
		var broken *Error
		if got != nil || !errors.As(err, &broken) {
			t.Errorf("%q: %v, %v", c.expr, got, err)
			continue
		}
		if broken.Field != c.field || c.value != "" && broken.Value != c.value || !strings.Contains(broken.Rule, c.rule) {
			t.Errorf("%q: %v; want field %q, value %q and rule %q", c.expr, err, c.field, c.value, c.rule)
		}
		if at := broken.Position - 1; at >= 0 && !strings.HasPrefix(strings.ToUpper(c.expr[at:]), broken.Value) {
			t.Errorf("%q: %v is not at its position", c.expr, err)
		}
	}
}

// TestRulesOverChangesOfTheClock: rules of days follow the clock, rules of
// hours and shorter periods elapsed time; COUNT counts instants and UNTIL is
// included.
func TestRulesOverChangesOfTheClock(t *testing.T) {
	for _, c := range []struct{ start, rule, zone, want string }{
		{"20260307T023000", "FREQ=DAILY;COUNT=3", "America/New_York", "0307T073000 0308T070000 0309T063000"},
		{"20261031T013000", "FREQ=DAILY;COUNT=3", "America/New_York", "1031T053000 1101T053000 1102T063000"},
		{"20260308T010000", "FREQ=HOURLY;COUNT=3", "America/New_York", "0308T060000 0308T070000 0308T080000"},
		{"20261101T003000", "FREQ=HOURLY;COUNT=4", "America/New_York", "1101T043000 1101T053000 1101T063000 1101T073000"},
		{"20261101T013000", "FREQ=MINUTELY;INTERVAL=15;COUNT=6", "America/New_York", "1101T053000 1101T054500 1101T060000 1101T061500 1101T063000 1101T064500"},
		{"20260308T023000", "FREQ=YEARLY;COUNT=2", "America/New_York", "0308T070000 0308T073000"},
		{"20260101T000000", "FREQ=DAILY;UNTIL=20260102T050000Z", "America/New_York", "0101T050000 0102T050000"},
		{"20260101T000000", "FREQ=DAILY;UNTIL=20260102T000000", "America/New_York", "0101T050000 0102T050000"},
		{"20260101T000000", "FREQ=DAILY;UNTIL=20260102T045959Z", "America/New_York", "0101T050000"},
		{"20111229T090000", "FREQ=DAILY;COUNT=3", "Pacific/Apia", "1229T190000 1230T100000 1230T190000"},
		{"20260404T014500", "FREQ=DAILY;COUNT=2", "Australia/Lord_Howe", "0403T144500 0404T144500"},
	} {
		cron := mustRule(t, c.start, c.rule, c.zone)
		var got []string
		for _, at := range upcoming(cron, time.Unix(0, 0), 10) {
			got = append(got, at.Format(ruleForm)[4:])
		}
		if list := strings.Join(got, " "); list != c.want {
			t.Errorf("%s %s in %s:\n got %s\nwant %s", c.start, c.rule, c.zone, list, c.want)
		}
		checkRuleCount(t, cron)
	}
}

// TestRulesOfBothKindsOfDays: what the vectors leave out, see testdata/rrule.py.
func TestRulesOfBothKindsOfDays(t *testing.T) {
	for _, c := range []struct{ start, rule, want string }{
		{"20260101T090000", "FREQ=MONTHLY;BYDAY=1MO,FR;COUNT=6", "0102 0105 0109 0116 0123 0130"},
		{"20260101T090000", "FREQ=WEEKLY;BYDAY=MO,FR;BYSETPOS=1;COUNT=2", "0105 0112"},
		{"20250101T090000", "FREQ=YEARLY;BYWEEKNO=-53;BYDAY=MO,WE;COUNT=3", "1229 1231 1229"},
		{"20260107T090000", "FREQ=YEARLY;BYWEEKNO=2;COUNT=2", "0107 0113"},
	} {
		var got []string
		for _, at := range upcoming(mustRule(t, c.start, c.rule, "UTC"), time.Unix(0, 0), 10) {
			got = append(got, at.Format("0102"))
		}
		if list := strings.Join(got, " "); list != c.want {
			t.Errorf("%s %s: %s, want %s", c.start, c.rule, list, c.want)
		}
	}
}

func TestTheTextOfARule(t *testing.T) {
	c, err := Parse(RRule, "dtstart:20260101T090000\r\n rrule:freq=weekly;byday=mo\n", "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "DTSTART:20260101T090000 RRULE:FREQ=WEEKLY;BYDAY=MO"; c.String() != want {
		t.Errorf("%q, want %q", c, want)
	}
	for expr, want := range map[string]bool{
		" dtstart:20260101T090000 FREQ=DAILY": true, "rrule:FREQ=DAILY": true, "FREQ=DAILY": true, "* * * * *": false, "@daily": false, "": false,
	} {
		if IsRule(expr) != want {
			t.Errorf("%q looks like a rule: %v", expr, !want)
		}
	}
}

// slowRules make a naive search try many periods without a match.
var slowRules = []string{
	"FREQ=SECONDLY",
	"FREQ=SECONDLY;INTERVAL=2;BYSECOND=1,3,5,7,9,11,13",
	"FREQ=SECONDLY;INTERVAL=2;BYHOUR=23;BYMINUTE=59;BYSECOND=58;BYMONTH=2;BYMONTHDAY=29;BYDAY=SU",
	"FREQ=SECONDLY;INTERVAL=61;BYSECOND=0;BYMINUTE=0;BYHOUR=0;BYYEARDAY=366",
	"FREQ=SECONDLY;INTERVAL=86399;BYHOUR=0;BYMINUTE=0;BYSECOND=0",
	"FREQ=SECONDLY;INTERVAL=86401;BYHOUR=0;BYMINUTE=0;BYSECOND=0",
	"FREQ=SECONDLY;INTERVAL=43201;BYHOUR=1;BYSECOND=3;BYDAY=MO",
	"FREQ=MINUTELY;INTERVAL=1439;BYHOUR=0;BYMINUTE=0;BYMONTH=2;BYMONTHDAY=29",
	"FREQ=DAILY;INTERVAL=2147483647",
	"FREQ=DAILY;INTERVAL=7;BYDAY=TU",
	"FREQ=DAILY;BYHOUR=0,1,2;BYSETPOS=4,5,6,7,8,9,-4,-5,-6,-7",
	"FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO;BYHOUR=1,2,3;BYSETPOS=3",
	"FREQ=SECONDLY;COUNT=2147483647",
	"FREQ=DAILY;INTERVAL=3;COUNT=20000",
}

// TestNoRuleIsSearchedPeriodByPeriod: parsing (which searches the first instant), Next
// from far before and after the start, and Count over all time end, where trying
// period after period would take minutes: 230 years have 7 thousand million seconds.
func TestNoRuleIsSearchedPeriodByPeriod(t *testing.T) {
	const limit = time.Minute // it takes milliseconds on a quiet machine
	for _, rule := range slowRules {
		began := time.Now()
		c, err := Parse(RRule, "DTSTART:19700105T000000 "+rule, "America/New_York", Options{})
		parsed := time.Since(began)
		if err == nil {
			for _, after := range []int64{-1 << 40, 0, 4_000_000_000, 7_200_000_000} {
				c.Next(time.Unix(after, 0))
			}
			c.Count(time.Unix(0, 0), time.Unix(afterAll, 0))
		}
		if took := time.Since(began); took > limit {
			t.Errorf("%s took %s, %s of them to parse: %v", rule, took, parsed, err)
		} else {
			t.Logf("%s took %s, %s of them to parse: %v", rule, took, parsed, err)
		}
	}
}

func TestALongCountEndsWhereItShould(t *testing.T) {
	c := mustRule(t, "20260101T000000", "FREQ=SECONDLY;COUNT=1000000", "UTC")
	last := time.Date(2026, 1, 1, 0, 0, 999_999, 0, time.UTC)
	if at, ok := c.Next(last.Add(-time.Second)); !ok || !at.Equal(last) {
		t.Errorf("the last instant: %s", at)
	}
	if at, ok := c.Next(last); ok {
		t.Errorf("after the last instant: %s", at)
	}
	if n := c.Count(time.Unix(0, 0), time.Unix(afterAll, 0)); n != 1_000_000 {
		t.Errorf("%d instants", n)
	}
}

// shortPeriods are rules with many periods a day, none of which begins each day at the same time.
var shortPeriods = []string{
	"FREQ=SECONDLY;INTERVAL=2;BYSECOND=1,2,3,59",
	"FREQ=SECONDLY;INTERVAL=7;BYHOUR=0,1,2,3,23;BYMINUTE=0,1,59",
	"FREQ=SECONDLY;INTERVAL=59;BYDAY=SU,MO",
	"FREQ=SECONDLY;INTERVAL=61;BYSECOND=1",
	"FREQ=SECONDLY;INTERVAL=959",
	"FREQ=SECONDLY;INTERVAL=961;BYMONTHDAY=1,-1",
	"FREQ=SECONDLY;INTERVAL=86399",
	"FREQ=SECONDLY;INTERVAL=86401",
	"FREQ=MINUTELY;INTERVAL=7;BYHOUR=1,2,3;BYSECOND=0,30",
	"FREQ=MINUTELY;INTERVAL=61;BYMINUTE=0,1,2",
	"FREQ=HOURLY;INTERVAL=5;BYMINUTE=0,59",
	"FREQ=HOURLY;INTERVAL=25",
	"FREQ=DAILY;BYHOUR=1,2,3;BYSETPOS=2,-1",
	"FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=1,3,-1",
}

// TestALongCountIsTheSumOfShortOnes, whose days are counted in another way, and a short one what Next walks.
func TestALongCountIsTheSumOfShortOnes(t *testing.T) {
	for _, zone := range []string{"UTC", "Africa/Casablanca", "Australia/Lord_Howe"} {
		for _, rule := range shortPeriods {
			c := mustRule(t, "20260105T003017", rule, zone)
			at := time.Date(2026, 1, 1, 7, 8, 9, 0, time.UTC)
			end, sum := at.AddDate(4, 0, 0), int64(0)
			whole := c.Count(at, end)
			for at.Before(end) {
				next := at.Add(97*24*time.Hour + 12345*time.Second)
				if next.After(end) {
					next = end
				}
				sum, at = sum+c.Count(at, next), next
			}
			if whole != sum {
				t.Errorf("%s %s: %d instants in four years, the parts have %d", zone, rule, whole, sum)
			}
			from := time.Date(2026, 3, 27, 22, 59, 30, 0, time.UTC) // clocks change in the week after it
			until, walked := from.Add(9*24*time.Hour), int64(0)
			for next, ok := c.Next(from); ok && !next.After(until); next, ok = c.Next(next) {
				walked++
			}
			if n := c.Count(from, until); n != walked {
				t.Errorf("%s %s: Count says %d instants, Next has %d", zone, rule, n, walked)
			}
		}
	}
}

// TestNoNumberOfInstantsIsExpensive: who adds a task decides its COUNT, and the dispatcher parses the expression while a
// claim waits. To walk the instants of these rules takes a thousand times as long as a rule of days and more, so a busy
// machine cannot fail the test, which says nothing of speed: BenchmarkParse does.
func TestNoNumberOfInstantsIsExpensive(t *testing.T) {
	fastest := func(rule string) time.Duration {
		least := time.Hour
		for range 5 {
			began := time.Now()
			if _, err := Parse(RRule, "DTSTART:19700101T000000 RRULE:"+rule, "Europe/Berlin", Options{}); err != nil {
				t.Fatal(err)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	day := fastest("FREQ=DAILY;INTERVAL=2;COUNT=2147483647") // looks at each day once
	for _, rule := range dearCounts {
		if took := fastest(rule); took > 100*day {
			t.Errorf("%s took %s, more than a hundred times the %s of a rule of days", rule, took, day)
		}
	}
}

// dearCounts are rules whose number of instants is large, or whose instants are far from each other.
var dearCounts = []string{
	"FREQ=SECONDLY;INTERVAL=2;COUNT=2147483647", "FREQ=SECONDLY;INTERVAL=43;COUNT=65", "FREQ=SECONDLY;INTERVAL=61;COUNT=2147483647;BYSECOND=1",
	"FREQ=SECONDLY;INTERVAL=961;COUNT=2147483647", "FREQ=MINUTELY;INTERVAL=7;COUNT=2147483647",
}
