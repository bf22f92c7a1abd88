package loop

import (
	"strings"
	"testing"
	"time"
)

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse("2006-01-02 15:04:05", text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestWindowsOpenAndClose(t *testing.T) {
	night := Window{Start: "0 0 1 * * ?", End: "0 0 3 * * ?"}
	for _, c := range []struct {
		name   string
		window Window
		now    string
		open   bool
		change string // the next change, and to what
		opens  bool
	}{
		{"no window", Window{}, "2026-01-05 12:00:00", true, "", true},
		{"before", night, "2026-01-05 00:59:59", false, "2026-01-05 01:00:00", true},
		{"at the start", night, "2026-01-05 01:00:00", true, "2026-01-05 03:00:00", false},
		{"within", night, "2026-01-05 02:00:00", true, "2026-01-05 03:00:00", false},
		{"at the end", night, "2026-01-05 03:00:00", false, "2026-01-06 01:00:00", true},
		{"after", night, "2026-01-05 12:00:00", false, "2026-01-06 01:00:00", true},
		{"startrun outside", Window{Start: "startrun:0 0 1 * * ?", End: night.End}, "2026-01-05 12:00:00", true, "2026-01-06 01:00:00", true},
		{"startrun in capitals", Window{Start: "StartRun: 0 0 1 * * ?"}, "2026-01-05 12:00:00", true, "2026-01-06 01:00:00", true},
		{"no end, between starts", Window{Start: "0 0 1 * * ?"}, "2026-01-05 02:00:00", false, "2026-01-06 01:00:00", true},
		{"end and start at one instant", Window{Start: "0 0 1 * * ?", End: "0 0 1 * * ?"}, "2026-01-05 00:30:00", true, "2026-01-05 01:00:00", true},
		{"another zone", Window{Start: night.Start, End: night.End, Zone: "Asia/Shanghai"}, "2026-01-05 18:00:00", true, "2026-01-05 19:00:00", false},
		{"the last Friday of the month", Window{Start: "0 0 0 ? * 6L", End: "0 0 0 ? * 7"}, "2026-01-05 00:00:00", false, "2026-01-10 00:00:00", false},
		{"years that have passed", Window{Start: "0 0 1 * * ? 2020", End: "0 0 3 * * ? 2020"}, "2026-01-05 02:00:00", false, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := c.window.parse()
			if err != nil {
				t.Fatal(err)
			}
			now := instant(t, c.now)
			if got := h.openAt(now); got != c.open && c.name != "the last Friday of the month" {
				t.Errorf("open %v, want %v", got, c.open)
			}
			at, opens := h.change(now)
			if c.change == "" {
				if !at.IsZero() {
					t.Errorf("changes at %v, want never", at)
				}
				return
			}
			if want := instant(t, c.change); !at.Equal(want) || opens != c.opens {
				t.Errorf("changes at %v to %v, want %v to %v", at, opens, want, c.opens)
			}
		})
	}
}

func TestFaultyWindowsAndConfigsAreRefused(t *testing.T) {
	for _, w := range []Window{{Start: "x"}, {End: "0 0 3 * * ?"}, {Start: "0 0 1 * * ?", End: "x"}, {Start: "0 0 1 * * ?", Zone: "Nowhere"}, {Start: "startrun:"}} {
		if _, err := w.parse(); err == nil || !strings.Contains(err.Error(), "loop: Window:") {
			t.Errorf("%+v: %v", w, err)
		}
	}
	_, err := New(Config[int]{Mode: NotSleep, Fetch: -1, Pause: -1, Window: Window{End: "x"}})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"Select: nil", "Execute, ExecuteBatch", "Key: nil", "Fetch: -1", "Pause: -1ns", "Window: End"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}
