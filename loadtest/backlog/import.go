package backlog

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// ImportOptions say what to load into an empty server. Their units and bounds are those
// of the flags.
type ImportOptions struct {
	harness.Setup
	Load
	Days, ParamsBytes int
	Verify            bool
	Horizon           time.Duration
}

// DefaultImport returns the defaults of the flags.
func DefaultImport() ImportOptions {
	return ImportOptions{
		Setup: defaultSetup(), Load: DefaultLoad(), Days: 30, ParamsBytes: 100, Verify: true, Horizon: 10 * time.Minute,
	}
}

// About implements [harness.Experiment].
func (o *ImportOptions) About() harness.About { return harness.About{Name: "import"} }

// Declare implements [harness.Experiment].
func (o *ImportOptions) Declare(f *harness.Flags) {
	o.Load.Declare(f)
	declareShape(f, &o.Days, &o.ParamsBytes)
	f.Switch(&o.Verify, "verify", "read everything back and compare count and checksum")
	f.Seed()
	f.DataDir()
	f.Postgres()
}

// Measure implements [harness.Experiment].
func (o *ImportOptions) Measure(ctx context.Context) (*ImportReport, error) {
	if err := CheckDisk(o.DataDir, o.Tasks, o.ParamsBytes); err != nil {
		return nil, err
	}
	return harness.WithPostgres(ctx, &o.Setup, o.importInto)
}

// LoadReport is what loading took. A cycle of the processor time is a task.
type LoadReport struct {
	Tasks     int64   `json:"tasks"`
	Checksum  string  `json:"checksum"`
	Seconds   float64 `json:"load_s"`
	TasksPerS float64 `json:"tasks_per_s"`
	// BytesPerTask covers all tables that hold tasks, with locator, indexes and TOAST;
	// Sizes has them by kind of table.
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

// measureLoad loads tasks and measures what that took.
func (s *Store) measureLoad(ctx context.Context, on *stack.Stack, l Load, mix Mix, progress io.Writer) (out loaded, rep *LoadReport, err error) {
	used, err := harness.MeasureStretch(ctx, harness.NewMeter(on, nil), on.Postgres(), func() (err error) {
		out, err = s.load(ctx, l, mix, progress)
		return err
	})
	if err != nil {
		return out, nil, err
	}
	db, err := harness.Dial(ctx, on.Postgres())
	if err != nil {
		return out, nil, err
	}
	defer db.Close()
	sizes, err := db.Sizes(ctx)
	if err != nil {
		return out, nil, err
	}
	perTask := func(x float64) float64 { return harness.Round(x / float64(out.sum.Count)) }
	rep = &LoadReport{
		Tasks: out.sum.Count, Checksum: fmt.Sprintf("%016x", out.sum.Hash), Seconds: harness.Round(out.took.Seconds()),
		TasksPerS: harness.Round(float64(out.sum.Count) / out.took.Seconds()), Packs: out.packs, Near: out.near,
		ChunkS: harness.Round(out.largestChunk.Seconds()), CPU: harness.NewCPU(used.CPU, out.sum.Count),
		WALBytesPerTask: perTask(float64(used.WAL)), PayloadPerTask: perTask(float64(out.payload)), Sizes: map[string]harness.Size{},
	}
	for kind, size := range sizes {
		if strings.HasPrefix(kind, "far_") || kind == "task" {
			rep.Sizes[kind] = size
			rep.BytesOnDisk += size.Total()
		}
	}
	rep.BytesPerTask = perTask(float64(rep.BytesOnDisk))
	return out, rep, nil
}

// ImportReport is what an import found.
type ImportReport struct {
	harness.Header
	harness.NoPicture
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

func (s *Store) verify(ctx context.Context, databases, readers int, expected Sum, progress io.Writer) (*Verify, error) {
	found, took, err := s.readBack(ctx, databases, readers, expected.Count, progress)
	if err != nil {
		return nil, err
	}
	return &Verify{Expected: expected.String(), Found: found.String(), Same: found == expected, Seconds: harness.Round(took.Seconds())}, nil
}

// Broken reports whether something was lost.
func (v *Verify) Broken() bool { return v != nil && !v.Same }

// faults returns what was lost.
func (v *Verify) faults() []string {
	if !v.Broken() {
		return nil
	}
	return []string{fmt.Sprintf("found %s, expected %s", v.Found, v.Expected)}
}

func (o *ImportOptions) importInto(ctx context.Context, on *stack.Stack) (*ImportReport, error) {
	s, err := Open(ctx, on.Postgres(), o.Horizon, o.Loaders+1)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	o.Say("making the tables")
	if err := s.cluster.Migrate(ctx, nil); err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	now := task.At(time.Now())
	mix := Mix{Tenant: 1, From: now, To: now + task.Instant(o.Days)*24*3600_000, ParamsBytes: o.ParamsBytes, Seed: o.Seed}
	rep := &ImportReport{
		Header: harness.NewHeader("import", o.Seed, on.Versions), Databases: o.Databases, Loaders: o.Loaders, Days: o.Days, ParamsBytes: o.ParamsBytes,
	}
	out, load, err := s.measureLoad(ctx, on, o.Load, mix, o.Progress)
	if err != nil {
		return nil, err
	}
	rep.LoadReport = *load
	if o.Verify {
		rep.Verified, err = s.verify(ctx, o.Databases, o.Loaders, out.sum, o.Progress)
	}
	return rep, err
}

// Verdict implements [harness.Report].
func (rep *ImportReport) Verdict() error { return harness.Verdict(rep.Verified.faults()) }

// Table implements [harness.Report].
func (rep *ImportReport) Table(t *harness.Table) {
	t.Line("\nimport: %d tasks over %d days into %d databases, params of %d bytes, %d loaders (seed %d)",
		rep.Tasks, rep.Days, rep.Databases, rep.ParamsBytes, rep.Loaders, rep.Seed)
	rep.LoadReport.write(t)
	rep.Verified.write(t)
}

func (r *LoadReport) write(t *harness.Table) {
	t.Row("loaded", "%d tasks in %.1f s: %.0f tasks/s; the longest chunk took %.1f s", r.Tasks, r.Seconds, r.TasksPerS, r.ChunkS)
	t.Row("on disk", "%s, %.1f bytes per task, of which %.1f are packed tasks", gigabytes(r.BytesOnDisk), r.BytesPerTask, r.PayloadPerTask)
	for _, kind := range []string{"far_pack", "far_locator", "far_arrival", "far_override", "task"} {
		if s := r.Sizes[kind]; s.Total() > 1<<20 {
			t.Row("  "+kind, "%.1f bytes per task: heap %.1f, TOAST %.1f, indexes %.1f", perTask(s.Total(), r), perTask(s.Heap, r), perTask(s.Toast, r), perTask(s.Indexes, r))
		}
	}
	t.Row("packs", "%d, %.0f tasks each; %d tasks in the near tier", r.Packs, float64(r.Tasks-r.Near)/float64(max(1, r.Packs)), r.Near)
	t.Row("WAL", "%.1f bytes per task", r.WALBytesPerTask)
	t.WriteString(r.CPU.Table("task", time.Duration(r.Seconds*float64(time.Second))))
}

func perTask(n int64, r *LoadReport) float64 { return float64(n) / float64(max(1, r.Tasks)) }

func (v *Verify) write(t *harness.Table) {
	switch {
	case v == nil:
	case v.Same:
		t.Row("read back", "%s: nothing was lost (%.0f s)", v.Found, v.Seconds)
	default:
		t.Row("read back", "%s: BROKEN, expected %s", v.Found, v.Expected)
	}
}
