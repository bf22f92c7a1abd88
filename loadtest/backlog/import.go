package backlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/chart"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// ImportOptions say what to load into an empty server.
type ImportOptions struct {
	Load
	// Days is how far ahead tasks are due.
	Days        int
	ParamsBytes int
	Seed        uint64
	// Verify reads everything back.
	Verify   bool
	Horizon  time.Duration
	DataDir  string
	Real     stack.RealOptions
	Progress io.Writer
}

// DefaultImport returns what flags start from.
func DefaultImport() ImportOptions {
	o := ImportOptions{
		Load: Load{Tasks: 10_000_000, Databases: task.Databases, Loaders: 2, Chunk: 1 << 20},
		Days: 30, ParamsBytes: 100, Verify: true, Horizon: 10 * time.Minute, Real: harness.DefaultStack(),
	}
	o.Real.Postgres["wal_compression"] = "lz4"
	return o
}

func (l *Load) validate() error {
	var faults []error
	for _, f := range []struct {
		flag      string
		n         int64
		low, high int64
	}{
		{"tasks", l.Tasks, 1, 1e10}, {"databases", int64(l.Databases), 1, task.Databases},
		{"loaders", int64(l.Loaders), 1, 64}, {"chunk", int64(l.Chunk), 1, 2 << 20},
	} {
		if f.n < f.low || f.n > f.high {
			faults = append(faults, fmt.Errorf("--%s %d is not between %d and %d", f.flag, f.n, f.low, f.high))
		}
	}
	return errors.Join(faults...)
}

func validateShape(days, paramsBytes int) error {
	if days < 1 || days > 3650 {
		return fmt.Errorf("--days %d is not between 1 and 3650", days)
	}
	if paramsBytes < 0 || paramsBytes > 10_000 {
		return fmt.Errorf("--params-bytes %d is not between 0 and 10000", paramsBytes)
	}
	return nil
}

// LoadReport is what loading took. A cycle is a task here.
type LoadReport struct {
	Tasks     int64   `json:"tasks"`
	Checksum  string  `json:"checksum"`
	Seconds   float64 `json:"load_s"`
	TasksPerS float64 `json:"tasks_per_s"`
	// BytesPerTask is all of the tables that hold tasks, with locator, indexes and
	// TOAST; Sizes has them by kind of table.
	BytesPerTask    float64                 `json:"bytes_per_task"`
	BytesOnDisk     int64                   `json:"bytes_on_disk"`
	PayloadPerTask  float64                 `json:"payload_bytes_per_task"`
	WALBytesPerTask float64                 `json:"wal_bytes_per_task"`
	Packs           int64                   `json:"packs"`
	Near            int64                   `json:"near"`
	ChunkS          float64                 `json:"longest_chunk_s"`
	Sizes           map[string]harness.Size `json:"sizes"`
	harness.CPU
}

// measured is a load with everything around it.
func measured(ctx context.Context, s *stack.Stack, t *target, l Load, mix Mix, progress io.Writer) (loaded, *LoadReport, error) {
	db, err := harness.Dial(ctx, s.Postgres())
	if err != nil {
		return loaded{}, nil, err
	}
	defer db.Close()
	meter := harness.NewMeter(s, nil)
	wal, err := db.WAL(ctx)
	if err != nil {
		return loaded{}, nil, err
	}
	before := meter.Sample()
	out, err := load(ctx, t, l, mix, progress)
	used := harness.Used(before, meter.Sample())
	if err != nil {
		return out, nil, err
	}
	walAfter, err := db.WAL(ctx)
	if err != nil {
		return out, nil, err
	}
	sizes, err := db.Sizes(ctx)
	if err != nil {
		return out, nil, err
	}
	rep := &LoadReport{
		Tasks: out.sum.Count, Checksum: fmt.Sprintf("%016x", out.sum.Hash), Seconds: harness.Round(out.took.Seconds()),
		TasksPerS: harness.Round(float64(out.sum.Count) / out.took.Seconds()), Packs: out.packs, Near: out.near,
		ChunkS: harness.Round(out.largestChunk.Seconds()), CPU: harness.NewCPU(used, out.sum.Count),
		WALBytesPerTask: harness.Round(float64(walAfter-wal) / float64(out.sum.Count)),
		PayloadPerTask:  harness.Round(float64(out.payload) / float64(out.sum.Count)), Sizes: map[string]harness.Size{},
	}
	for kind, size := range sizes {
		if strings.HasPrefix(kind, "far_") || kind == "task" {
			rep.Sizes[kind] = size
			rep.BytesOnDisk += size.Total()
		}
	}
	rep.BytesPerTask = harness.Round(float64(rep.BytesOnDisk) / float64(out.sum.Count))
	return out, rep, nil
}

// ImportReport is what an import found.
type ImportReport struct {
	harness.Header
	LoadReport
	Databases   int     `json:"databases"`
	Loaders     int     `json:"loaders"`
	Days        int     `json:"days"`
	ParamsBytes int     `json:"params_bytes"`
	Verified    *Verify `json:"verified,omitempty"`
}

// Verify is what was found by reading everything back.
type Verify struct {
	Expected string  `json:"expected"`
	Found    string  `json:"found"`
	Same     bool    `json:"same"`
	Seconds  float64 `json:"seconds"`
}

func verify(ctx context.Context, t *target, databases, readers int, expected Sum, progress io.Writer) (*Verify, error) {
	found, took, err := readBack(ctx, t, databases, readers, expected.Count, progress)
	if err != nil {
		return nil, err
	}
	return &Verify{Expected: expected.String(), Found: found.String(), Same: found == expected, Seconds: harness.Round(took.Seconds())}, nil
}

// Broken reports whether something was lost.
func (v *Verify) Broken() bool { return v != nil && !v.Same }

// Import loads tasks into an empty server and measures it.
func Import(ctx context.Context, o ImportOptions) (*ImportReport, error) {
	if err := errors.Join(o.Load.validate(), validateShape(o.Days, o.ParamsBytes)); err != nil {
		return nil, err
	}
	if err := UseDataDir(o.DataDir); err != nil {
		return nil, err
	}
	if err := CheckDisk(o.DataDir, o.Tasks, o.ParamsBytes); err != nil {
		return nil, err
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	o.Real.Progress = func(what string) { harness.Say(o.Progress, "%s", what) }
	s, err := stack.PostgresOnly(ctx, o.Real)
	if err != nil {
		return nil, err
	}
	rep, err := importInto(ctx, s, o)
	return rep, errors.Join(err, harness.CloseStack(ctx, s))
}

func importInto(ctx context.Context, s *stack.Stack, o ImportOptions) (*ImportReport, error) {
	t, err := open(ctx, s.Postgres(), o.Horizon, o.Loaders+1)
	if err != nil {
		return nil, err
	}
	defer t.close()
	harness.Say(o.Progress, "making the tables")
	if err := t.cluster.Migrate(ctx, nil); err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	now := task.At(time.Now())
	mix := Mix{Tenant: 1, From: now, To: now + task.Instant(o.Days)*24*3600_000, ParamsBytes: o.ParamsBytes, Seed: o.Seed}
	rep := &ImportReport{
		Header: harness.NewHeader("import", o.Seed, s.Versions), Databases: o.Databases, Loaders: o.Loaders, Days: o.Days, ParamsBytes: o.ParamsBytes,
	}
	out, load, err := measured(ctx, s, t, o.Load, mix, o.Progress)
	if err != nil {
		return nil, err
	}
	rep.LoadReport = *load
	if o.Verify {
		if rep.Verified, err = verify(ctx, t, o.Databases, o.Loaders, out.sum, o.Progress); err != nil {
			return rep, err
		}
	}
	return rep, nil
}

// Chart implements [harness.Report]: an import has no picture.
func (rep *ImportReport) Chart() *chart.Chart { return nil }

// WriteTable writes the report for people.
func (rep *ImportReport) WriteTable(w io.Writer) error {
	var t table
	fmt.Fprintf(&t, "\nimport: %d tasks over %d days into %d databases, params of %d bytes, %d loaders (seed %d)\n",
		rep.Tasks, rep.Days, rep.Databases, rep.ParamsBytes, rep.Loaders, rep.Seed)
	t.load(&rep.LoadReport)
	t.verified(rep.Verified)
	_, err := io.WriteString(w, t.String())
	return err
}

// table collects lines for people.
type table struct{ strings.Builder }

func (t *table) row(name, format string, args ...any) {
	fmt.Fprintf(t, "  %-22s %s\n", name, fmt.Sprintf(format, args...))
}

func (t *table) load(r *LoadReport) {
	t.row("loaded", "%d tasks in %.1f s: %.0f tasks/s; the longest chunk took %.1f s", r.Tasks, r.Seconds, r.TasksPerS, r.ChunkS)
	t.row("on disk", "%s, %.1f bytes per task, of which %.1f are packed tasks", gigabytes(r.BytesOnDisk), r.BytesPerTask, r.PayloadPerTask)
	for _, kind := range []string{"far_pack", "far_locator", "far_arrival", "far_override", "task"} {
		if s := r.Sizes[kind]; s.Total() > 1<<20 {
			t.row("  "+kind, "%.1f bytes per task: heap %.1f, TOAST %.1f, indexes %.1f", perTask(s.Total(), r), perTask(s.Heap, r), perTask(s.Toast, r), perTask(s.Indexes, r))
		}
	}
	t.row("packs", "%d, %.0f tasks each; %d tasks in the near tier", r.Packs, float64(r.Tasks-r.Near)/float64(max(1, r.Packs)), r.Near)
	t.row("WAL", "%.1f bytes per task", r.WALBytesPerTask)
	t.WriteString(r.CPU.Table("task", time.Duration(r.Seconds*float64(time.Second))))
}

func perTask(n int64, r *LoadReport) float64 { return float64(n) / float64(max(1, r.Tasks)) }

func (t *table) verified(v *Verify) {
	switch {
	case v == nil:
	case v.Same:
		t.row("read back", "%s: nothing was lost (%.0f s)", v.Found, v.Seconds)
	default:
		t.row("read back", "%s: BROKEN, expected %s", v.Found, v.Expected)
	}
}
