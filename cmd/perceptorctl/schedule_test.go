package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/schedule"
)

// runCtl runs a command line without any server.
func runCtl(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	root := newCommand()
	var out, errs bytes.Buffer
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&errs)
	return cli.Run(t.Context(), root), out.String(), errs.String()
}

func TestScheduleNextPrintsInstantsInUTCFirst(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
		note string
	}{
		{"a gap", []string{"--tz", "America/New_York", "--after", "2026-03-07T12:00:00Z", "--count", "2", "--", "30 2 * * *"},
			"2026-03-08T07:00:00Z  2026-03-08T03:00:00-04:00\n2026-03-09T06:30:00Z  2026-03-09T02:30:00-04:00\n", ""},
		{"seconds", []string{"--after", "2026-01-01T00:00:00Z", "--count", "2", "--", "*/20 * * * * *"},
			"2026-01-01T00:00:20Z  2026-01-01T00:00:20Z\n2026-01-01T00:00:40Z  2026-01-01T00:00:40Z\n", ""},
		{"quartz", []string{"--dialect", "quartz", "--tz", "Asia/Shanghai", "--after", "2026-01-31T12:00:00+08:00", "--count", "1", "--", "0 0 12 LW * ?"},
			"2026-02-27T04:00:00Z  2026-02-27T12:00:00+08:00\n", ""},
		{"hash", []string{"--after", "2026-01-01T00:00:00Z", "--count", "1", "--hash-key", "invoices", "--", "H 3 * * *"},
			"2026-01-01T03:55:00Z  2026-01-01T03:55:00Z\n", ""},
		{"name", []string{"--dialect", "named", "--after", "2026-01-01T00:00:00Z", "--count", "1", "@monthly"},
			"2026-02-01T00:00:00Z  2026-02-01T00:00:00Z\n", ""},
		{"a name without its dialect", []string{"--after", "2026-01-01T00:00:00Z", "--count", "1", "@Monthly"},
			"2026-02-01T00:00:00Z  2026-02-01T00:00:00Z\n", ""},
		{"an interval without its dialect", []string{"--after", "2026-01-01T00:00:00Z", "--count", "1", "--", "@Every 90m"},
			"2026-01-01T01:30:00Z  2026-01-01T01:30:00Z\n", ""},
		{"a long interval", []string{"--after", "2026-01-01T00:00:00Z", "--count", "10", "--", "@every 876000h"},
			"2125-12-08T00:00:00Z  2125-12-08T00:00:00Z\n", "there are no more instants\n"},
		{"interval", []string{"--dialect", "named", "--after", "2026-01-01T00:00:00Z", "--count", "2", "--", "@every 90m"},
			"2026-01-01T01:30:00Z  2026-01-01T01:30:00Z\n2026-01-01T03:00:00Z  2026-01-01T03:00:00Z\n", ""},
		{"the last one", []string{"--dialect", "quartz", "--after", "2026-01-01T00:00:00Z", "--", "0 0 0 1 6 ? 2026"},
			"2026-06-01T00:00:00Z  2026-06-01T00:00:00Z\n", "there are no more instants\n"},
		{"a recurrence rule", []string{"--dialect", "rrule", "--after", "2026-01-01T00:00:00Z", "--", "DTSTART:20260105T090000 RRULE:FREQ=WEEKLY;COUNT=2"},
			"2026-01-05T09:00:00Z  2026-01-05T09:00:00Z\n2026-01-12T09:00:00Z  2026-01-12T09:00:00Z\n", "there are no more instants\n"},
		{"a recurrence rule without its dialect", []string{"--tz", "Europe/Berlin", "--after", "2026-03-28T12:00:00Z", "--count", "1", "--", "DTSTART:20260105T023000 FREQ=DAILY"},
			"2026-03-29T01:00:00Z  2026-03-29T03:00:00+02:00\n", ""},
		{"never", []string{"--dialect", "quartz", "--", "0 0 12 30 2 ?"}, "", "there are no more instants\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := runCtl(t, append([]string{"schedule", "next"}, c.args...)...)
			if code != 0 || stdout != c.want || stderr != c.note {
				t.Errorf("ended with %d, printed\n%sand noted %q; want\n%sand %q", code, stdout, stderr, c.want, c.note)
			}
		})
	}
}

// timing: T5.2
func TestTheVersionNamesTheZoneData(t *testing.T) {
	if code, stdout, _ := runCtl(t, "version"); code != 0 || !strings.Contains(stdout, " tzdata-"+schedule.ZoneDataVersion()+"\n") {
		t.Errorf("ended with %d and said %q", code, stdout)
	}
}

// timing: T5.2
func TestScheduleNextInJSONNamesTheZoneData(t *testing.T) {
	code, stdout, stderr := runCtl(t, "schedule", "next", "-o", "json", "--tz", "Europe/London", "--after", "2026-07-01T00:00:00Z", "--count", "1", "--", "*/5 * * * *")
	var got upcoming
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatalf("ended with %d: %v\n%s%s", code, err, stdout, stderr)
	}
	if got.ZoneData != schedule.ZoneDataVersion() || got.TimeZone != "Europe/London" || !got.ElapsedTime || len(got.Instants) != 1 ||
		got.Instants[0] != (zonedInstant{"2026-07-01T00:05:00Z", "2026-07-01T01:05:00+01:00"}) {
		t.Errorf("got %+v", got)
	}
}

func TestScheduleNextRefusesWithTheReason(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"zone", []string{"--tz", "Shanghai", "--", "0 0 * * *"}, `--tz: "Shanghai" is not the name of a time zone`},
		{"near zone", []string{"--tz", "asia/shanghai", "--", "0 0 * * *"}, "is it Asia/Shanghai?"},
		{"instant", []string{"--after", "yesterday", "--", "0 0 * * *"}, `--after: "yesterday" is neither`},
		{"count", []string{"--count", "0", "--", "0 0 * * *"}, "--count: 0 is not between 1 and 100000"},
		{"dialect", []string{"--dialect", "unix", "--", "0 0 * * *"}, `--dialect: "unix" is not one of standard, quartz, named, rrule`},
		{"a rule without a start", []string{"--", "RRULE:FREQ=DAILY"}, "has no start"},
		{"a rule in another dialect", []string{"--dialect", "standard", "--", "FREQ=DAILY"}, "dialect rrule"},
		{"part of a rule", []string{"--", "DTSTART:20260105T090000 FREQ=DAILY;BYHOUR=25"}, `BYHOUR "25" (at 43): is not a number between 0 and 23`},
		{"value", []string{"--", "0 25 * * *"}, `hour "25" (at 3): is not a number from 0 to 23`},
		{"never", []string{"--", "0 0 30 2 *"}, "never fires"},
		{"no quotes", []string{"--", "0", "0", "30"}, "quote it"},
		{"nothing", nil, "0 arguments"},
		{"no key", []string{"--", "H 0 * * *"}, "H requires a hash key"},
		{"bad interval", []string{"--dialect", "named", "--", "@every day"}, "day is not a duration"},
		{"a name in another dialect", []string{"--dialect", "quartz", "--", "@daily"}, "dialect named"},
		{"output", []string{"-o", "xml", "--", "0 0 * * *"}, "--output"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := runCtl(t, append([]string{"schedule", "next"}, c.args...)...)
			if code != cli.Usage || stdout != "" || !strings.Contains(stderr, c.want) {
				t.Errorf("ended with %d, printed %q and said %q; want %d, nothing and %q", code, stdout, stderr, cli.Usage, c.want)
			}
		})
	}
	if code, _, stderr := runCtl(t, "schedule"); code != cli.Usage || !strings.Contains(stderr, "needs a command") {
		t.Errorf("ended with %d and %q", code, stderr)
	}
}
