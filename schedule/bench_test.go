package schedule

import (
	"testing"
	"time"
)

func BenchmarkNext(b *testing.B) {
	for _, c := range []struct {
		name    string
		dialect Dialect
		expr    string
		zone    string
	}{
		{"daily_UTC", Standard, "0 6 * * *", "UTC"},
		{"daily_New_York", Standard, "30 2 * * *", "America/New_York"},
		{"weekdays_London", Standard, "*/15 9-17 * * MON-FRI", "Europe/London"},
		{"last_weekday", Quartz, "0 0 12 LW * ?", "Asia/Shanghai"},
		{"leap_day", Quartz, "0 0 12 29 2 ?", "America/New_York"},
		{"every_second", Quartz, "* * * * * ?", "America/New_York"},
	} {
		b.Run(c.name, func(b *testing.B) {
			cron := mustParse(b, c.dialect, c.expr, c.zone)
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			at := start
			b.ReportAllocs()
			for b.Loop() {
				next, ok := cron.Next(at)
				if at = next; !ok {
					at = start
				}
			}
		})
	}
	// The slowest question: only times in gaps match, and the search runs to the end.
	b.Run("none", func(b *testing.B) {
		cron, at := mustParse(b, Standard, "*/5 2 8-14 3 */7", "America/New_York"), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for b.Loop() {
			cron.Next(at)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, c := range []struct {
		name    string
		dialect Dialect
		expr    string
	}{
		{"standard", Standard, "*/15 9-17 * * MON-FRI"},
		{"quartz", Quartz, "0 0 12 ? * MON-FRI"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mustParse(b, c.dialect, c.expr, "Europe/London")
			}
		})
	}
	for _, rule := range dearCounts {
		b.Run(rule, func(b *testing.B) {
			for b.Loop() {
				mustParse(b, RRule, "DTSTART:19700101T000000 RRULE:"+rule, "Europe/London")
			}
		})
	}
}

func BenchmarkCount(b *testing.B) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name  string
		expr  string
		until time.Time
	}{
		{"every_second_1m", "* * * * * *", start.Add(time.Minute)},
		{"every_second_10y", "* * * * * *", start.AddDate(10, 0, 0)},
		{"daily_10y", "30 2 * * *", start.AddDate(10, 0, 0)},
	} {
		b.Run(c.name, func(b *testing.B) {
			cron := mustParse(b, Standard, c.expr, "America/New_York")
			for b.Loop() {
				cron.Count(start, c.until)
			}
		})
	}
}
