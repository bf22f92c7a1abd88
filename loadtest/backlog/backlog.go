// Package backlog fills an installation with up to a billion waiting tasks and measures
// the cost of loading and storing them. It fires and changes tasks beside them, and verifies
// by count and checksum that no task was lost. The README of loadtest describes the tasks
// and how they are counted.
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

// ImportOptions describe the tasks to load into an empty server. [ImportOptions.Declare]
// has units and bounds.
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
		Setup: DefaultSetup(), Load: DefaultLoad(), Days: 30, ParamsBytes: 100, Verify: true, Horizon: 10 * time.Minute,
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

// LoadReport has the figures of loading. Its processor time per cycle is that per task.
type LoadReport struct {
	Tasks     int64   `json:"tasks"`
	Checksum  string  `json:"checksum"`
	Seconds   float64 `json:"load_s"`
	TasksPerS float64 `json:"tasks_per_s"`
	// BytesPerTask covers all tables that hold tasks, with locator, indexes and TOAST.
	// Sizes has the sizes by kind of table.
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

// measureLoad loads tasks and measures time, processor time, log and table sizes.
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

// ImportReport is the result of an import.
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

// Verify compares the tasks that were read back with those that are expected.
type Verify struct {
	Expected string  `json:"expected"`
	Found    string  `json:"found"`
	Same     bool    `json:"same"`
	Seconds  float64 `json:"seconds"`
}

// verify reads all tasks back and compares them with the expected sum.
func (s *Store) verify(ctx context.Context, databases, readers int, expected Sum, progress io.Writer) (*Verify, error) {
	found, took, err := s.readBack(ctx, databases, readers, expected.Count, progress)
	if err != nil {
		return nil, err
	}
	return &Verify{Expected: expected.String(), Found: found.String(), Same: found == expected, Seconds: harness.Round(took.Seconds())}, nil
}

// Broken reports whether the tasks differ from the expected ones.
func (v *Verify) Broken() bool { return v != nil && !v.Same }

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
	o.Say("creating the tables")
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
	t.Row("loaded", "%d tasks in %.1f s: %.0f tasks/s, the longest chunk took %.1f s", r.Tasks, r.Seconds, r.TasksPerS, r.ChunkS)
	t.Row("on disk", "%s, %.1f bytes per task, %.1f of them in packs", gigabytes(r.BytesOnDisk), r.BytesPerTask, r.PayloadPerTask)
	for _, kind := range []string{"far_pack", "far_locator", "far_level0", "far_tombstone", "task"} {
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
		t.Row("read back", "%s: no task is missing (%.0f s)", v.Found, v.Seconds)
	default:
		t.Row("read back", "%s: BROKEN, expected %s", v.Found, v.Expected)
	}
}

// Options describe the backlog and the work beside it. [Options.Declare] has units and bounds.
type Options struct {
	harness.Setup
	Load
	Days int
	// Quiet is the time from the begin of the run to the first due task; 0: somewhat more
	// than the expected length of the run.
	Quiet              time.Duration
	ParamsBytes        int
	Rate               float64
	For, Warmup, Drain time.Duration
	Listeners, Workers int
	// Horizon is the far.horizon of the installation. A short one shortens the wait for the window.
	Horizon             time.Duration
	Empty, Fire, Verify bool
	Operations          int
}

// DefaultSetup returns a stack for bulk loads.
func DefaultSetup() harness.Setup {
	s := harness.Setup{Real: harness.DefaultStack()}
	s.Real.Postgres["wal_compression"] = "lz4"
	return s
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	return Options{
		Setup: DefaultSetup(), Load: DefaultLoad(),
		Days: 30, ParamsBytes: 100, Rate: 5000, For: 2 * time.Minute, Warmup: 20 * time.Second, Drain: 2 * time.Minute,
		Listeners: 1, Workers: 256, Horizon: time.Minute, Empty: true, Fire: true, Operations: 1000, Verify: true,
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "backlog", Picture: true} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	o.Load.Declare(f)
	declareShape(f, &o.Days, &o.ParamsBytes)
	harness.Num(f, &o.Quiet, "quiet", harness.Between(0, 10*365*24*time.Hour), "no task of the backlog is due before this (default: somewhat more than the expected length of the run)")
	harness.Num(f, &o.Rate, "rate", harness.UpTo(1e6), "tasks to fire per second")
	harness.Num(f, &o.For, "for", harness.UpTo(24*time.Hour), "length of the measured window")
	harness.Num(f, &o.Warmup, "warmup", harness.Between(0, time.Hour), "firing before the window, which is checked but not measured")
	harness.Num(f, &o.Drain, "drain", harness.UpTo(24*time.Hour), "the longest wait for the last call")
	f.Switch(&o.Empty, "empty", "fire from the empty store first")
	f.Switch(&o.Fire, "fire", "fire from the backlog")
	harness.Num(f, &o.Operations, "operations", harness.Between(0, 100_000), "number of tasks to look up, pause and resume, and number of tasks to cancel; 0: none")
	f.Switch(&o.Verify, "verify", "read everything back and compare count and checksum")
	harness.Num(f, &o.Horizon, "horizon", harness.Between(time.Minute, 24*time.Hour), "far.horizon of the installation")
	f.Listeners(&o.Listeners, &o.Workers)
	f.Seed()
	f.DataDir()
	f.Stack()
	f.Require(int64(o.Operations) <= o.Tasks/100 || o.Operations == 0, "--operations %d is more than a hundredth of --tasks %d", o.Operations, o.Tasks)
	days := time.Duration(o.Days) * 24 * time.Hour
	f.Require(o.quiet() < days, "the run is expected to take up to %v and no task may be due in that time, but all tasks are due within %v (--days); see --quiet", o.quiet(), days)
}

// declareShape declares when generated tasks are due and how large they are.
func declareShape(f *harness.Flags, days, paramsBytes *int) {
	harness.Num(f, days, "days", harness.Between(1, 3650), "number of days within which all tasks are due")
	harness.Num(f, paramsBytes, "params-bytes", harness.Between(0, 10_000), "size of the params of a task")
}

// Measure implements [harness.Experiment]. It loads the backlog, fires and changes tasks
// beside it, and drops it.
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	if err := CheckDisk(o.DataDir, o.Tasks, o.ParamsBytes); err != nil {
		return nil, err
	}
	o.SetHorizon(o.Horizon)
	return harness.WithStack(ctx, &o.Setup, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		r := &runner{Options: o, stack: s}
		err := r.run(ctx)
		return r.report, err
	})
}

// The expected length of a run, on the slow side.
const (
	loadsPerS = 200_000 // tasks loaded per second; also tasks read back per second
	margin    = 30 * time.Minute
)

// quiet returns the time from the begin of the run to the first due task of the backlog.
func (o *Options) quiet() time.Duration {
	if o.Quiet > 0 {
		return o.Quiet
	}
	perTask := 2 * time.Duration(o.Tasks) * time.Second / loadsPerS
	return perTask + 2*(o.lead()+o.Warmup+o.For+o.Drain) + margin
}

func (o *Options) fires() int64 { return int64(o.Rate * (o.Warmup + o.For).Seconds()) }

// lead returns the time from the begin of loading the tasks of a firing to the first due
// instant. It is long enough that the tasks are still beyond the horizon when they are
// loaded.
func (o *Options) lead() time.Duration {
	return 20*time.Second + time.Duration(o.fires())*time.Second/loadsPerS + o.Horizon + time.Minute
}

// Load describes a bulk load.
type Load struct {
	Tasks     int64
	Databases int
	// Loaders is the number of chunks that are loaded concurrently.
	Loaders int
	// Chunk is the largest number of tasks in one transaction.
	Chunk int
	// Picks is the number of random tasks of the largest tenant that the load returns.
	Picks int
}

// DefaultLoad returns the defaults of the flags.
func DefaultLoad() Load {
	return Load{Tasks: 10_000_000, Databases: task.Databases, Loaders: 2, Chunk: 1 << 20}
}

// Declare declares the options of a bulk load.
func (l *Load) Declare(f *harness.Flags) {
	harness.Num(f, &l.Tasks, "tasks", harness.Between[int64](1, 1e10), "number of tasks: 1000000, 10e6, 1e9")
	harness.Num(f, &l.Databases, "databases", harness.Between(1, task.Databases), "number of logical databases to load, from the first on")
	harness.Num(f, &l.Loaders, "loaders", harness.Between(1, 64), "number of chunks that are loaded concurrently")
	harness.Num(f, &l.Chunk, "chunk", harness.Between(1, 2<<20), "tasks in one transaction; a loader needs about 500 bytes of memory for each")
}
