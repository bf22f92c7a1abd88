package scenario

import (
	"context"
	"slices"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// fifths is how many parts of the window are compared with each other.
const fifths = check.Slices

// sampleWait bounds one look at the server.
const sampleWait = 5 * time.Second

// Sample is one look at the system.
type Sample struct {
	// S is in seconds since the begin of the window.
	S float64 `json:"s"`
	// Sizes are those of the tables by kind; absent unless they were asked for.
	Sizes map[string]harness.Size `json:"sizes,omitempty"`
	// OldestSnapshot is its age in transactions.
	OldestSnapshot int64 `json:"oldest_snapshot_age,omitempty"`
	// WALBytes is counted from the first sample.
	WALBytes int64 `json:"wal_bytes,omitempty"`
}

// Fifth is a fifth of the window.
type Fifth struct {
	FromS      float64            `json:"from_s"`
	ToS        float64            `json:"to_s"`
	CyclesPerS float64            `json:"cycles_per_s"`
	UsPerCycle map[string]float64 `json:"cpu_us_per_cycle"`
}

// window takes samples while the load runs.
type window struct {
	meter *harness.Meter
	dsn   string // empty: the server cannot be asked
	sizes bool
	db    *harness.Database
	taken []sample
}

type sample struct {
	at       time.Time
	boundary bool // of a fifth
	cpu      map[string]time.Duration
	wal      int64 // below 0: not known
	sizes    map[string]harness.Size
	snapshot int64
}

// instants returns when to look: at the boundaries of the fifths, and every so
// often between them.
func instants(from, to time.Time, every time.Duration) (at []time.Time, boundary []bool) {
	fifth := to.Sub(from) / fifths
	for i := range fifths {
		begin := from.Add(time.Duration(i) * fifth)
		at, boundary = append(at, begin), append(boundary, true)
		for d := every; every > 0 && d <= fifth-every/2; d += every {
			at, boundary = append(at, begin.Add(d)), append(boundary, false)
		}
	}
	return append(at, to), append(boundary, true)
}

// watch takes all samples; it ends early with ctx.
func (w *window) watch(ctx context.Context, from, to time.Time, every time.Duration) {
	defer w.hangUp()
	at, boundary := instants(from, to, every)
	for i := range at {
		if harness.SleepUntil(ctx, at[i]) != nil {
			return
		}
		s := sample{at: time.Now(), boundary: boundary[i], cpu: w.meter.Sample(), wal: -1}
		w.ask(ctx, &s)
		w.taken = append(w.taken, s)
	}
}

// ask asks the server, if it answers.
func (w *window) ask(ctx context.Context, s *sample) {
	if w.dsn == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sampleWait)
	defer cancel()
	var err error
	if w.db == nil {
		if w.db, err = harness.Dial(ctx, w.dsn); err != nil {
			w.db = nil
			return
		}
	}
	var wal int64
	if wal, err = w.db.WAL(ctx); err == nil {
		s.wal = wal
		s.snapshot, err = w.db.OldestSnapshot(ctx)
	}
	if err == nil && w.sizes {
		s.sizes, err = w.db.Sizes(ctx)
	}
	if err != nil { // it may be back next time
		w.hangUp()
	}
}

func (w *window) hangUp() {
	if w.db != nil {
		w.db.Close()
		w.db = nil
	}
}

// complete reports whether the whole window was watched.
func (w *window) complete() bool {
	n := 0
	for _, s := range w.taken {
		if s.boundary {
			n++
		}
	}
	return n == fifths+1
}

// cpu returns the processor time of the window; nil: it was not completed.
func (w *window) cpu() map[string]time.Duration {
	if !w.complete() {
		return nil
	}
	return harness.Used(w.taken[0].cpu, w.taken[len(w.taken)-1].cpu)
}

// wal returns the bytes of log of the window.
func (w *window) wal() (int64, bool) {
	if !w.complete() {
		return 0, false
	}
	first, last := w.taken[0].wal, w.taken[len(w.taken)-1].wal
	return last - first, first >= 0 && last >= first
}

func (w *window) report(from time.Time) []Sample {
	var out []Sample
	for _, s := range w.taken {
		r := Sample{S: harness.Round(s.at.Sub(from).Seconds()), Sizes: s.sizes, OldestSnapshot: s.snapshot}
		if s.wal >= 0 && w.taken[0].wal >= 0 {
			r.WALBytes = s.wal - w.taken[0].wal
		}
		out = append(out, r)
	}
	return out
}

// fifths puts what was done and what it cost together.
func (r *runner) fifths(f check.Figures) []Fifth {
	if !r.window.complete() {
		return nil
	}
	bounds := slices.DeleteFunc(slices.Clone(r.window.taken), func(s sample) bool { return !s.boundary })
	out := make([]Fifth, fifths)
	for i := range out {
		a, b := bounds[i], bounds[i+1]
		done := r.done(f.Slices[i])
		length := r.For.Seconds() / fifths
		out[i] = Fifth{
			FromS: harness.Round(float64(i) * length), ToS: harness.Round(float64(i+1) * length),
			CyclesPerS: harness.Round(float64(done) / length),
			UsPerCycle: harness.NewCPU(harness.Used(a.cpu, b.cpu), done).UsPerCycle,
		}
	}
	return out
}
