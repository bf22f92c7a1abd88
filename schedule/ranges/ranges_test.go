package ranges

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// show writes ranges as people read them, in UTC.
func show(list []task.Range) string {
	var out []string
	for _, r := range list {
		out = append(out, r.From.Time().UTC().Format("20060102T1504")+"-"+r.Until.Time().UTC().Format("20060102T1504"))
	}
	return strings.Join(out, " ")
}

func at(t testing.TB, text string) task.Instant {
	t.Helper()
	i, err := time.Parse(time.DateOnly, text)
	if err != nil {
		t.Fatal(err)
	}
	return task.At(i)
}

func TestDaysAreReadInTheirZone(t *testing.T) {
	for _, c := range []struct {
		days, zone, want string
	}{
		{"2026-12-25", "UTC", "20261225T0000-20261226T0000"},
		{"2026-12-26 2026-12-25", "", "20261225T0000-20261227T0000"},
		{"2026-12-24/2026-12-26 2027-01-01", "Europe/Berlin", "20261223T2300-20261226T2300 20261231T2300-20270101T2300"},
		{"2026-03-29", "Europe/Berlin", "20260328T2300-20260329T2200"},
		{"2026-09-06", "America/Santiago", "20260906T0400-20260907T0300"}, // the clocks skip midnight
	} {
		got, err := Days(strings.Fields(c.days), c.zone)
		if err != nil || show(got) != c.want {
			t.Errorf("Days(%s, %s) = %s, %v; want %s", c.days, c.zone, show(got), err, c.want)
		}
	}
	for _, bad := range []string{"", "25.12.2026", "2026-02-30", "2026-12-25/", "2026-12-26/2026-12-25", "1969-12-31", "9999-01-01", "1970-01-01/2199-12-31"} {
		if got, err := Days([]string{bad}, "UTC"); err == nil {
			t.Errorf("Days(%q) = %s", bad, show(got))
		}
	}
	if _, err := Days(nil, "Mars/Phobos"); err == nil || !strings.Contains(err.Error(), "Mars/Phobos") {
		t.Errorf("an unknown zone: %v", err)
	}
}

// file puts events into a calendar.
func file(events ...string) string {
	text := "BEGIN:VCALENDAR\nVERSION:2.0\nBEGIN:VTIMEZONE\nTZID:X\nBEGIN:STANDARD\nDTSTART:19700101T000000\nEND:STANDARD\nEND:VTIMEZONE\n"
	for _, e := range events {
		text += "BEGIN:VEVENT\n" + strings.ReplaceAll(e, " ", "\n") + "\nBEGIN:VALARM\nDURATION:PT9S\nEND:VALARM\nEND:VEVENT\n"
	}
	return strings.ReplaceAll(text+"END:VCALENDAR\n", "\n", "\r\n")
}

func TestEventsAreRanges(t *testing.T) {
	for _, c := range []struct {
		name, file, want string
	}{
		{"a day", file("DTSTART;VALUE=DATE:20261225"), "20261224T2300-20261225T2300"},
		{"days", file("DTSTART;VALUE=DATE:20261224 DTEND;VALUE=DATE:20261227"), "20261223T2300-20261226T2300"},
		{"days by duration", file("DTSTART;VALUE=DATE:20261224 DURATION:P1W"), "20261223T2300-20261230T2300"},
		{"a floating time", file("DTSTART:20261225T090000 DTEND:20261225T100000"), "20261225T0800-20261225T0900"},
		{"UTC", file("DTSTART:20261225T090000Z DURATION:PT1H30M"), "20261225T0900-20261225T1030"},
		{"a zone", file("DTSTART;TZID=Asia/Tokyo:20261225T090000 DTEND;TZID=\"Asia/Tokyo\":20261225T100000"), "20261225T0000-20261225T0100"},
		{"no length", file("DTSTART:20261225T090000"), ""},
		{"a folded line", strings.Replace(file("DTSTART:20261225T090000Z DURATION:PT1H"), "T0900", "T\r\n 0900", 1), "20261225T0900-20261225T1000"},
		{"cancelled", file("DTSTART;VALUE=DATE:20261225 STATUS:CANCELLED"), ""},
		{"each year", file("DTSTART;VALUE=DATE:20200501 RRULE:FREQ=YEARLY"), "20260430T2200-20260501T2200 20270430T2200-20270501T2200"},
		{"until a day", file("DTSTART;VALUE=DATE:20260601 RRULE:FREQ=DAILY;INTERVAL=2;UNTIL=20260605"), "20260531T2200-20260601T2200 20260602T2200-20260603T2200 20260604T2200-20260605T2200"},
		{"without some", file("DTSTART;VALUE=DATE:20260601 RRULE:FREQ=DAILY;INTERVAL=2;COUNT=3 EXDATE;VALUE=DATE:20260601,20260603"), "20260604T2200-20260605T2200"},
		{"over the change of clocks", file("DTSTART:20260328T120000 DURATION:PT1H RRULE:FREQ=DAILY;COUNT=2"), "20260328T1100-20260328T1200 20260329T1000-20260329T1100"},
		{"one replaced", file("UID:a DTSTART:20260601T120000Z DURATION:PT1H RRULE:FREQ=DAILY;COUNT=2",
			"UID:a RECURRENCE-ID:20260602T120000Z DTSTART:20260602T150000Z DURATION:PT1H"), "20260601T1200-20260601T1300 20260602T1500-20260602T1600"},
		{"one cancelled", file("UID:a DTSTART:20260601T120000Z DURATION:PT1H RRULE:FREQ=DAILY;COUNT=2",
			"UID:a RECURRENCE-ID:20260602T120000Z STATUS:CANCELLED"), "20260601T1200-20260601T1300"},
		{"the past", file("DTSTART;VALUE=DATE:20200501", "DTSTART;VALUE=DATE:20251231"), "20251230T2300-20251231T2300"},
		{"nothing", file(), ""},
	} {
		got, err := ICalendar(c.file, "Europe/Berlin", at(t, "2025-12-31"), at(t, "2028-01-01"))
		if err != nil || show(got) != c.want {
			t.Errorf("%s: %s, %v; want %s", c.name, show(got), err, c.want)
		}
	}
}

func TestAFileThatCannotBeReadIsRefusedWithItsLine(t *testing.T) {
	good := file("DTSTART;VALUE=DATE:20261225")
	for _, c := range []struct {
		name, file, want string
	}{
		{"empty", "", "BEGIN:VCALENDAR"},
		{"something else", "<html>", "line 1"},
		{"cut off", good[:len(good)-len("END:VCALENDAR\r\n")], "cut off"},
		{"another encoding", "BEGIN:VCALENDAR\nX:\xff\n", "UTF-8"},
		{"a long line", "BEGIN:VCALENDAR\nX:" + strings.Repeat("x", maxLine+1), "line 2: has more than"},
		{"no start", file("UID:x"), "line 9: the event has no DTSTART"},
		{"no date", file("DTSTART:tomorrow"), "line 10: DTSTART:tomorrow: is not a date"},
		{"year 9999", file("DTSTART;VALUE=DATE:99990101"), "line 10"},
		{"a zone of Windows", file("DTSTART;TZID=Romance:20261225T090000"), "TZID"},
		{"a date and a time", file("DTSTART;VALUE=DATE:20261225 DTEND:20261225T090000"), "not both days"},
		{"the wrong order", file("DTSTART:20261225T090000 DTEND:20261225T080000"), "ends before it begins"},
		{"two ends", file("DTSTART:20261225T090000 DTEND:20261225T100000 DURATION:PT1H"), "a DTEND and a DURATION"},
		{"no duration", file("DTSTART:20261225T090000 DURATION:-PT1H"), "is not a duration"},
		{"RDATE", file("DTSTART:20261225T090000 RDATE:20261226T090000"), "line 11: RDATE:20261226T090000: is not supported"},
		{"a bad rule", file("DTSTART:20261225T090000 RRULE:FREQ=SOMETIMES"), "line 11"},
		{"two rules", file("DTSTART:20261225T090000 RRULE:FREQ=DAILY RRULE:FREQ=YEARLY"), "line 12"},
		{"too many", file("DTSTART:20260101T000000Z DURATION:PT1S RRULE:FREQ=MINUTELY"), "more than 10000 ranges"},
		{"too many rules", file(slices.Repeat([]string{"DTSTART;VALUE=DATE:20200101 RRULE:FREQ=DAILY;COUNT=1"}, maxRules+1)...), "more than 1000 recurring events"},
		{"ends another", "BEGIN:VCALENDAR\nEND:VEVENT\n", "line 2"},
	} {
		got, err := ICalendar(c.file, "UTC", at(t, "2025-12-31"), at(t, "2028-01-01"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s, %v; want %q", c.name, show(got), err, c.want)
		}
	}
}

// TestEventsOfOneUIDTakeTheMemoryOfOthers: a file of 1 MiB may have ten thousand events with one UID, and as
// many that replace occurrences of it. Copies for each of them would take gigabytes.
func TestEventsOfOneUIDTakeTheMemoryOfOthers(t *testing.T) {
	const n = 800
	allocated := func(uid func(int) string) float64 {
		var all []string
		for i := range n {
			all = append(all, "UID:"+uid(i)+" DTSTART;VALUE=DATE:20260601 RRULE:FREQ=DAILY;COUNT=1", "UID:"+uid(i)+" DTSTART;VALUE=DATE:20260701 RECURRENCE-ID;VALUE=DATE:20260601")
		}
		text := file(all...)
		r := testing.Benchmark(func(b *testing.B) {
			for b.Loop() {
				got, err := ICalendar(text, "UTC", at(t, "2025-12-31"), at(t, "2028-01-01"))
				if err != nil || show(got) != "20260701T0000-20260702T0000" {
					t.Fatalf("%s, %v", show(got), err)
				}
			}
		})
		return float64(r.AllocedBytesPerOp())
	}
	one, others := allocated(func(int) string { return "a" }), allocated(strconv.Itoa)
	if one > 2*others {
		t.Errorf("%d events with one UID allocate %.0f bytes; with a UID each %.0f", 2*n, one, others)
	}
}

func FuzzICalendar(f *testing.F) {
	f.Add(file("DTSTART;VALUE=DATE:20200501 RRULE:FREQ=YEARLY EXDATE;VALUE=DATE:20210501"), "Europe/Berlin")
	f.Add(file("UID:a DTSTART:20260601T120000Z DURATION:PT1H RRULE:FREQ=DAILY;COUNT=2", "UID:a RECURRENCE-ID:20260602T120000Z STATUS:CANCELLED"), "UTC")
	f.Fuzz(func(t *testing.T, text, zone string) {
		if len(text) > 4096 {
			return
		}
		got, err := ICalendar(text, zone, 1_700_000_000_000, 1_750_000_000_000)
		if err != nil {
			return
		}
		last := task.Instant(-1)
		for _, r := range got {
			if r.From <= last || r.Until <= r.From || r.Until <= 1_700_000_000_000 {
				t.Fatalf("ranges %v", got)
			}
			last = r.Until
		}
	})
}
