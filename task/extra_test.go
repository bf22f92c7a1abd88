package task_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/task"
)

func drawExtra(t *rapid.T) task.Extra {
	e := task.Extra{
		Misfire:     task.Misfire(rapid.IntRange(0, 3).Draw(t, "misfire")),
		Grace:       time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "grace")) * time.Millisecond,
		CatchUp:     rapid.Int32Range(0, task.MaxCatchUp).Draw(t, "catch up"),
		Spread:      time.Duration(rapid.Int64Range(0, 86_400_000).Draw(t, "spread")) * time.Millisecond,
		Tags:        task.SortTags(rapid.SliceOfN(rapid.StringN(1, 10, 40), 0, 5).Draw(t, "tags")),
		Key:         rapid.StringN(0, 20, 80).Draw(t, "key"),
		TraceParent: rapid.StringN(0, 20, 80).Draw(t, "trace"),
	}
	if rapid.Bool().Draw(t, "cron") {
		e.Cron = &task.Cron{
			Dialect:    task.Dialect(rapid.IntRange(1, 3).Draw(t, "dialect")),
			Expression: rapid.StringN(1, 20, 80).Draw(t, "expression"), Zone: rapid.StringN(0, 20, 60).Draw(t, "zone"),
		}
	}
	if rapid.Bool().Draw(t, "replay") {
		e.ReplayOf = task.RunID{Task: task.ID(rapid.Int64Range(512, 1<<60).Draw(t, "task")), Seq: rapid.Int64Range(1, 1<<40).Draw(t, "seq")}
	}
	return e
}

func TestAnExtraIsReadAsItWasSealed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawExtra(t)
		got := task.DecodeExtra(want.Seal().Wire())
		if want.Misfire == task.FireOnce {
			want.Misfire = 0 // the default is not stored
		}
		if got == nil {
			got = &task.Extra{}
		}
		// As values: Equal compares what is stored.
		type plain task.Extra
		ignore := cmpopts.IgnoreUnexported(plain{})
		if diff := cmp.Diff(plain(want), plain(*got), ignore, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestNothingIsStoredForATaskWithoutExtra(t *testing.T) {
	if e := (task.Extra{Misfire: task.FireOnce, Tags: []string{}}).Seal(); e != nil || e.Wire() != nil || e.Modeled() {
		t.Errorf("got %+v", e)
	}
}

func TestBytesThatNoProgramWroteAreDamagedAndKept(t *testing.T) {
	good := task.Extra{Spread: time.Hour, Tags: []string{"a"}}.Seal().Wire()
	for _, wire := range [][]byte{
		{0}, {2}, {1, 99, 1, 'x'}, good[:len(good)-1], slices.Concat(good, []byte{8}), slices.Concat([]byte{9}, good[1:]),
		append([]byte{1}, make([]byte, task.MaxExtraBytes)...), {1, 5, 0}, {1, 5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
	} {
		e := task.DecodeExtra(wire)
		if e == nil || !e.Damaged || !e.Modeled() || string(e.Wire()) != string(wire) || len(e.Tags) > 0 || e.Spread != 0 {
			t.Errorf("%x: %+v", wire, e)
		}
	}
}

func FuzzDecodeExtra(f *testing.F) {
	f.Add(task.Extra{Spread: time.Hour, Tags: []string{"a", "b"}, Cron: &task.Cron{Dialect: 1, Expression: "* * * * *", Zone: "UTC"}}.Seal().Wire())
	f.Fuzz(func(t *testing.T, wire []byte) {
		if e := task.DecodeExtra(wire); e != nil && string(e.Wire()) != string(wire) {
			t.Errorf("%x became %x", wire, e.Wire())
		}
	})
}

func TestSpreadIsEvenAndStaysInItsWindow(t *testing.T) {
	const parts, n = 20, 100_000
	window := 10 * time.Minute
	var count [parts]int
	for i := range int64(n) {
		d := task.SpreadOf(task.NewID(1024+i, task.Shard(i/1024%512)), window)
		if d < 0 || d >= window || d%time.Millisecond != 0 {
			t.Fatalf("%s of %s", d, window)
		}
		count[int(d*parts/window)]++
	}
	for i, c := range count {
		if c < n/parts*95/100 || c > n/parts*105/100 {
			t.Errorf("part %d has %d of %d", i, c, n/parts)
		}
	}
	if task.SpreadOf(1024, 0) != 0 {
		t.Error("no window, and a distance")
	}
}
