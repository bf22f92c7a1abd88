package task

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestATimelineIsReadAsItWasStored(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		now := Instant(rapid.Int64Range(1<<40, 1<<41).Draw(r, "now"))
		stage := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(0, 1<<40).Draw(r, name)) * time.Microsecond
		}
		w := &Timeline{
			ClaimedAt: now - Instant(rapid.Int64Range(0, 1<<30).Draw(r, "claimed")), ReceivedAgo: stage("received"), BegunAgo: stage("begun"), EndedAgo: stage("ended"),
			Dispatcher: rapid.StringN(0, 20, 99).Draw(r, "dispatcher"), Listener: &Listener{Name: "a", Version: rapid.StringN(0, 20, 99).Draw(r, "version")},
		}
		waited := stage("waited") >> 10
		got := OpenTimeline(w.Seal(now, waited), now)
		at := func(ago time.Duration) time.Time {
			if ago == 0 {
				return time.Time{}
			}
			return now.Time().Add(-(ago + waited).Truncate(time.Microsecond))
		}
		want := Stages{
			ClaimedAt: w.ClaimedAt, Received: at(w.ReceivedAgo), Begun: at(w.BegunAgo), Ended: at(w.EndedAgo),
			Dispatcher: w.Dispatcher, Listener: *w.Listener,
		}
		if got != want {
			r.Fatalf("got  %+v\nwant %+v", got, want)
		}
	})
}

func TestADamagedTimelineIsUnknown(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(r, "bytes")
		if len(b) > 0 {
			b[0] = timelineFormat
		}
		OpenTimeline(b, 1_700_000_000_000) // does not panic
	})
}

func TestSlowMeansLateOrLong(t *testing.T) {
	const now Instant = 1_700_000_010_000
	for name, c := range map[string]struct {
		t      Timeline
		waited time.Duration
		slow   bool
	}{
		"on time":               {Timeline{ScheduledAt: now - 2000, BegunAgo: time.Second, EndedAgo: 1}, 0, false},
		"late":                  {Timeline{ScheduledAt: now - 7000, BegunAgo: time.Second, EndedAgo: 1}, 0, true},
		"a late report":         {Timeline{ScheduledAt: now - 7000, BegunAgo: 6 * time.Second, EndedAgo: 6*time.Second - 1}, 0, false},
		"a report that waited":  {Timeline{ScheduledAt: now - 7000, BegunAgo: time.Second, EndedAgo: 1}, 5 * time.Second, false},
		"long":                  {Timeline{ScheduledAt: now - 7000, BegunAgo: 7 * time.Second, EndedAgo: 1}, 0, true},
		"a handler not reached": {Timeline{ScheduledAt: now - 7000}, 0, true},
		"unknown":               {Timeline{}, 0, false},
	} {
		if got := c.t.Slow(now, c.waited, 5*time.Second); got != c.slow {
			t.Errorf("%s: slow is %t", name, got)
		}
	}
}

func TestNamesAreCleanedOfWhatTerminalsObey(t *testing.T) {
	for given, want := range map[string]string{
		"worker-1": "worker-1", "zürich ✓": "zürich ✓", "a\x1b[31mb": "a[31mb", "a\x7fb": "ab",
		"a\u009b31mb": "a31mb", "a\u009d0;title\u009cb": "a0;titleb", "a\u0085b": "ab", "a\x9bb": "ab",
		strings.Repeat("x", MaxNameBytes-1) + "ü": strings.Repeat("x", MaxNameBytes-1),
	} {
		if got := CleanName(given); got != want {
			t.Errorf("%q is cleaned to %q, want %q", given, got, want)
		}
	}
}
