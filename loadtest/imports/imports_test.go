package imports

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/transfer"
)

// read returns the sum of the lines of a file, read by the importer.
func read(t *testing.T, name string) (sum Sum) {
	t.Helper()
	files, err := transfer.Find([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	s := transfer.Open(files, transfer.Options{})
	b, err := transfer.NewBuilder(transfer.MaxChunkLines)
	if err != nil {
		t.Fatal(err)
	}
	var l transfer.Line
	for {
		if err := s.Next(context.Background(), &l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if err := b.Add(s, &l); err != nil {
			t.Fatal(err)
		}
	}
	c, err := b.Take()
	if err != nil {
		t.Fatal(err)
	}
	x, err := c.Open()
	if err != nil {
		t.Fatal(err)
	}
	for i := range c.Lines {
		sum.add(hashTask(x.Task(i)))
	}
	return sum
}

func hashTask(x *perceptorv1.Task) uint64 {
	every := x.GetInterval().AsDuration().Milliseconds()
	return hash(x.Kind, x.Type.String(), every, x.BeginTime.AsTime().UnixMilli(), x.Params["order_id"], x.Params["user_id"], x.IdempotencyKey)
}

func TestFilesOfAllFormatsHaveTheSameLines(t *testing.T) {
	t.Parallel()
	for _, keys := range []bool{false, true} {
		m := maker{lines: 20_000, from: time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC), span: 48 * time.Hour, keys: keys, seed: 7}
		for format := range writers {
			name := filepath.Join(t.TempDir(), "x."+format)
			made, err := writeFile(t.Context(), name, m)
			if err != nil {
				t.Fatal(err)
			}
			if got := read(t, name); got != made.sum || got.Count != 20_000 {
				t.Errorf("%s, keys %t: the file has %v, want %v", format, keys, got, made.sum)
			}
		}
	}
}

func TestASumTellsALineThatIsLostAndOneThatIsTwice(t *testing.T) {
	t.Parallel()
	m := maker{lines: 10, from: time.Now(), span: time.Hour, seed: 7}
	var all, other Sum
	var first *line
	err := m.each(func(l *line) error {
		all.add(hashOf(l))
		if first == nil {
			copied := *l
			first = &copied
			return nil
		}
		other.add(hashOf(l))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if lost := other; lost == all {
		t.Error("a lost line is not told")
	}
	first.user++
	if other.add(hashOf(first)); other == all {
		t.Error("a changed line is not told")
	}
}

func TestOptionsWithoutAFileAreRefused(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]func(*Options){
		`--file "xls" is not one of`:      func(o *Options) { o.File = "xls" },
		"--kill and --keys need --file":   func(o *Options) { o.Keys = true },
		`--kill "taskd": want PART@AFTER`: func(o *Options) { o.File, o.kills = "csv", "taskd" },
	} {
		o := DefaultOptions()
		set(&o)
		if err := harness.Validate(&o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
