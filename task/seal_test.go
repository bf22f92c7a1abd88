package task_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/task"
)

func drawSealed(t *rapid.T) (task.Terms, task.Origin) {
	terms := task.Terms{
		Misfire: rapid.SampledFrom([]task.Misfire{0, task.FireAll, task.Skip}).Draw(t, "misfire"),
		Grace:   time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "grace")) * time.Millisecond,
		CatchUp: rapid.Int32Range(0, task.MaxCatchUp).Draw(t, "catch up"),
		Exclude: task.SortTags(rapid.SliceOfN(rapid.StringN(1, 10, 40), 0, 4).Draw(t, "exclude")),
		Only:    task.SortTags(rapid.SliceOfN(rapid.StringN(1, 10, 40), 0, 4).Draw(t, "only")),
		Spread:  time.Duration(rapid.Int64Range(0, 86_400_000).Draw(t, "spread")) * time.Millisecond,
		Tags:    task.SortTags(rapid.SliceOfN(rapid.StringN(1, 10, 40), 0, 5).Draw(t, "tags")),
		Retry: task.RetryPolicy{
			MaxAttempts:    rapid.SampledFrom([]int32{0, 1, task.DefaultMaxAttempts, task.MaxAttempts}).Draw(t, "attempts"),
			InitialBackoff: rapid.SampledFrom([]time.Duration{0, time.Millisecond, task.DefaultInitialBackoff, time.Hour}).Draw(t, "initial"),
			Multiplier:     float64(rapid.IntRange(100, 1000).Draw(t, "multiplier")) / 100,
			MaxBackoff:     rapid.SampledFrom([]time.Duration{time.Millisecond, task.DefaultMaxBackoff, task.MaxBackoff}).Draw(t, "max"),
			Jitter:         float64(rapid.IntRange(0, 100).Draw(t, "jitter")) / 100,
		},
		StopOnFailure: rapid.Bool().Draw(t, "stop"),
		Overlap:       rapid.SampledFrom([]task.Overlap{0, task.OverlapSkip, task.OverlapBufferOne}).Draw(t, "overlap"),
	}
	origin := task.Origin{Key: rapid.StringN(0, 20, 80).Draw(t, "key"), TraceParent: rapid.StringN(0, 20, 80).Draw(t, "trace")}
	if rapid.Bool().Draw(t, "cron") {
		terms.Cron = &task.Cron{
			Dialect:    task.Dialect(rapid.IntRange(1, 4).Draw(t, "dialect")),
			Expression: rapid.StringN(1, 20, 80).Draw(t, "expression"), Zone: rapid.StringN(0, 20, 60).Draw(t, "zone"),
		}
	}
	if rapid.Bool().Draw(t, "replay") {
		origin.ReplayOf = task.RunID{Task: task.ID(rapid.Int64Range(512, 1<<60).Draw(t, "task")), Seq: rapid.Int64Range(1, 1<<40).Draw(t, "seq")}
		origin.BackfillOf, origin.Backfill = task.ID(rapid.Int64Range(0, 1<<60).Draw(t, "source")), rapid.Int64Range(0, 1<<62).Draw(t, "backfill")
	}
	return terms, origin
}

func TestAnExtraIsReadAsItWasSealed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		terms, origin := drawSealed(t)
		gotTerms, gotOrigin := task.Unseal(task.Seal(&terms, &origin))
		if diff := cmp.Diff(terms, gotTerms) + cmp.Diff(origin, gotOrigin); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestNothingIsStoredForATaskWithoutExtra(t *testing.T) {
	spec := task.Spec{Terms: task.Terms{Misfire: task.FireOnce, Tags: []string{}, Retry: task.RetryPolicy{Jitter: task.UnsetJitter}}}
	spec.Validate(task.DefaultLimits())
	if blob := task.Seal(&spec.Terms, &spec.Origin); blob != nil || spec.Modeled() {
		t.Errorf("Seal = %x for %+v, want nil", blob, spec)
	}
}

func TestBytesThatNoProgramWroteAreDamagedAndKept(t *testing.T) {
	good := task.Seal(&task.Terms{Spread: time.Hour, Tags: []string{"a"}}, &task.Origin{})
	for _, blob := range [][]byte{
		{0}, {2}, {1, 99, 1, 'x'}, {1, 31, 1, 'x'}, {1, 5, 1, 7, 5, 1, 7}, good[:len(good)-1], slices.Concat(good, []byte{8}), slices.Concat([]byte{9}, good[1:]),
		append([]byte{1}, make([]byte, task.MaxSealedBytes)...), {1, 5, 0}, {1, 5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
	} {
		terms, origin := task.Unseal(blob)
		if terms.Damaged != string(blob) || !terms.Modeled() || string(task.Seal(&terms, &origin)) != string(blob) || len(terms.Tags) > 0 || terms.Spread != 0 {
			t.Errorf("Unseal(%x) = %+v, want it damaged", blob, terms)
		}
	}
}

// FuzzDecodeExtra checks that unsealing a blob, sealing the result and unsealing again
// gives the same terms.
func FuzzDecodeExtra(f *testing.F) {
	f.Add(task.Seal(&task.Terms{Spread: time.Hour, Tags: []string{"a", "b"}, Cron: &task.Cron{Dialect: 1, Expression: "* * * * *", Zone: "UTC"}}, &task.Origin{Key: "k"}))
	f.Fuzz(func(t *testing.T, blob []byte) {
		terms, origin := task.Unseal(blob)
		again, originAgain := task.Unseal(task.Seal(&terms, &origin))
		if diff := cmp.Diff(terms, again) + cmp.Diff(origin, originAgain); diff != "" {
			t.Errorf("Unseal(%x) differs after Seal: %s", blob, diff)
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
			t.Fatalf("SpreadOf = %s for the window %s", d, window)
		}
		count[int(d*parts/window)]++
	}
	for i, c := range count {
		if c < n/parts*95/100 || c > n/parts*105/100 {
			t.Errorf("part %d of the window has %d tasks, want about %d", i, c, n/parts)
		}
	}
	if task.SpreadOf(1024, 0) != 0 {
		t.Error("SpreadOf without a window is not 0")
	}
}
