package cli

import (
	"bytes"
	"testing"
	"time"
)

func TestProgressIsALineEveryFiveSecondsOrABar(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		terminal bool
		want     string
	}{
		{false, "copying  [#######                       ]  25 %  1 failed  0:02  about 0:06 left\n" +
			"copying  [######################        ]  75 %  1 failed  0:08  about 0:03 left\n"},
		{true, "\r\x1b[Kcopying  [#######                       ]  25 %  1 failed  0:02  about 0:06 left" +
			"\r\x1b[Kcopying  [###############               ]  50 %  1 failed  0:04  about 0:04 left" +
			"\r\x1b[Kcopying  [######################        ]  75 %  1 failed  0:08  about 0:03 left\r\x1b[K"},
	} {
		var out bytes.Buffer
		p := NewProgress(&out, "copying")
		p.terminal = tt.terminal
		for _, step := range []struct {
			after time.Duration
			done  int64
		}{{0, 0}, {time.Second, 100}, {2 * time.Second, 250}, {2100 * time.Millisecond, 260}, {4 * time.Second, 500}, {8 * time.Second, 750}} {
			p.now = func() time.Time { return p.began.Add(step.after) }
			p.Show(step.done, 1000, "1 failed")
		}
		p.End()
		if out.String() != tt.want {
			t.Errorf("terminal %v:\n%q\nwant\n%q", tt.terminal, out.String(), tt.want)
		}
	}
}

func TestProgressOfAnUnknownTotal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := NewProgress(&out, "listing")
	p.now = func() time.Time { return p.began.Add(3723 * time.Second) }
	p.Show(0, 0, "rows")
	p.now = func() time.Time { return p.began.Add(3733 * time.Second) }
	p.Show(12000, 0, "")
	if want := "listing  0  rows  1:02:03\nlisting  12000  1:02:13\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
