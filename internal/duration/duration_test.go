package duration

import (
	"errors"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestDurationsMayHaveDays(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"1d": day, "30d": 30 * day, "1d12h": 36 * time.Hour, "0d": 0, "-2d": -2 * day, "-1d6h": -30 * time.Hour, "100000d": 100_000 * day,
		"36h": 36 * time.Hour, "250ms": 250 * time.Millisecond, "0s": 0, "0": 0, "-2h": -2 * time.Hour, "+90s": 90 * time.Second, "1.5h": 90 * time.Minute,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%q is %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "1", "1.5d", "d1", "1d-1h", "1d+1h", "1h1d", "--1d", "-", "+1d", "100001d", "100000d1ns", "1d2d", " 1d", "1D", "99999999999999999999d"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q is accepted as %s", text, got)
		}
	}
}

func TestADurationThatIsTooLongIsNotSaidToBeNone(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{
		"99999999999999h": errLong, "-99999999999999h": errLong, "100001d": errLong, "99999999999999999999d": errLong, "100000d1h": errLong, "1d99999999999999h": errLong,
		"h": errForm, "99999999999999": errForm, "1.5d": errForm, "1d-1h": errForm, "1d--1h": errForm, "1h1d": errForm,
	} {
		if _, err := Parse(text); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}

func TestFlagsTakeDays(t *testing.T) {
	t.Parallel()
	var d, none time.Duration
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	Var(f, &d, "overlap", time.Hour, "how long")
	Var(f, &none, "retention", 0, "how long")
	if d != time.Hour || f.Lookup("overlap").DefValue != "1h0m0s" {
		t.Errorf("the default is %s, %q", d, f.Lookup("overlap").DefValue)
	}
	if err := f.Parse([]string{"--overlap", "2d"}); err != nil || d != 48*time.Hour || none != 0 {
		t.Errorf("%s, %s, %v", d, none, err)
	}
	if err := f.Parse([]string{"--overlap", "two days"}); err == nil {
		t.Error("two days is accepted")
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"1d12h", "-3d", "90s", "1d-1h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(d.String()); err != nil || again != d {
			t.Errorf("%q is %s, which is %s, %v", text, d, again, err)
		}
	})
}
