// Package roundtrip exports a large tenant by perceptorctl, and compares what was exported with what
// was stored, and with a second export, line by line. Then it imports the second export into
// another tenant with --restore, and compares the export of that. It shares no code with the
// programs that write and read the lines. The README of loadtest describes the experiment.
package roundtrip

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/loadtest/backlog"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// Options describe the tasks. [Options.Declare] has units and bounds.
type Options struct {
	harness.Setup
	backlog.Load
	Days, ParamsBytes int
	Keyed             float64
	PartSize          int64
	Kill              bool
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	return Options{Setup: backlog.DefaultSetup(), Load: backlog.DefaultLoad(), Days: 30, ParamsBytes: 100, Keyed: 0.5, PartSize: 500_000, Kill: true}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "roundtrip"} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	o.Load.Declare(f)
	f.Require(o.Databases == task.Databases, "--databases %d: this load needs all %d", o.Databases, task.Databases)
	harness.Num(f, &o.Days, "days", harness.Between(1, 3650), "number of days within which all tasks are due")
	harness.Num(f, &o.ParamsBytes, "params-bytes", harness.Between(0, 10_000), "size of the params of a task")
	harness.Num(f, &o.Keyed, "keyed", harness.Between(0, 1.0), "share of tasks with an idempotency_key")
	harness.Num(f, &o.PartSize, "part-size", harness.Between(int64(1), 1_000_000_000), "lines of a part file")
	f.Switch(&o.Kill, "kill", "kill perceptorctl in the middle of the first export, and resume it")
	f.Seed()
	f.DataDir()
	f.Stack()
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	if err := backlog.CheckDisk(o.DataDir, o.Tasks, o.ParamsBytes+800); err != nil {
		return nil, err
	}
	return harness.WithStack(ctx, &o.Setup, o.run)
}

// Export has the figures of one export. Its processor time is that of all programs and servers.
type Export struct {
	Lines     int64   `json:"lines"`
	Bytes     int64   `json:"bytes"`
	Parts     int     `json:"parts"`
	Seconds   float64 `json:"seconds"`
	LinesPerS float64 `json:"lines_per_s"`
	MaxRSSMB  int64   `json:"max_rss_mb"` // of perceptorctl
	TaskdMB   int64   `json:"taskd_rss_mb"`
	Killed    bool    `json:"killed"`
	Digest    digest  `json:"digest"`
	harness.CPU
}

// Import has the figures of the import of an export.
type Import struct {
	Lines     int64   `json:"lines"`
	Added     int64   `json:"added"`
	Seconds   float64 `json:"seconds"`
	LinesPerS float64 `json:"lines_per_s"`
	MaxRSSMB  int64   `json:"max_rss_mb"` // of perceptorctl
	TaskdMB   int64   `json:"taskd_rss_mb"`
	harness.CPU
}

// Report is the result of a round trip.
type Report struct {
	harness.Header
	harness.NoPicture
	Tasks       int64 `json:"tasks"`
	ParamsBytes int   `json:"params_bytes"`
	// Exports are two of the tenant, and one of the tenant into which the second was imported.
	Exports []*Export `json:"exports"`
	Import  *Import   `json:"import"`
	// Violations has what differs.
	Violations []string `json:"violations"`
}

// Verdict implements [harness.Report].
func (r *Report) Verdict() error { return harness.Verdict(r.Violations) }

// Table implements [harness.Report].
func (r *Report) Table(t *harness.Table) {
	t.Line("\nroundtrip: %d tasks, params of %d bytes (seed %d)", r.Tasks, r.ParamsBytes, r.Seed)
	for i, e := range r.Exports {
		t.Row(fmt.Sprintf("export %d", i+1), "%d lines in %.1f s: %.0f lines/s, %.0f bytes per line, %d parts; perceptorctl %d MB, taskd %d MB",
			e.Lines, e.Seconds, e.LinesPerS, float64(e.Bytes)/float64(max(1, e.Lines)), e.Parts, e.MaxRSSMB, e.TaskdMB)
		t.Row("  sorted lines", "%d, SHA-256 %s", e.Digest.Lines, e.Digest.Sum)
		t.WriteString(e.CPU.Table("line", time.Duration(e.Seconds*float64(time.Second))))
	}
	if i := r.Import; i != nil {
		t.Row("import", "%d of %d lines in %.1f s: %.0f lines/s; perceptorctl %d MB, taskd %d MB", i.Added, i.Lines, i.Seconds, i.LinesPerS, i.MaxRSSMB, i.TaskdMB)
		t.WriteString(i.CPU.Table("line", time.Duration(i.Seconds*float64(time.Second))))
	}
	for _, v := range r.Violations {
		t.Row("BROKEN", "%s", v)
	}
}

type runner struct {
	*Options
	stack  *stack.Stack
	dir    string
	ctl    string // the program
	meter  *harness.Meter
	report *Report
	stored sum
}

func (o *Options) run(ctx context.Context, s *stack.Stack) (_ *Report, err error) {
	r := &runner{
		Options: o, stack: s, meter: harness.NewMeter(s, map[string]harness.Source{"perceptorctl": harness.Rusage(syscall.RUSAGE_CHILDREN)}),
		report: &Report{Header: harness.NewHeader("roundtrip", o.Seed, s.Versions), Tasks: o.Tasks, ParamsBytes: o.ParamsBytes},
	}
	if r.dir, err = os.MkdirTemp(o.DataDir, "perceptor-roundtrip-*"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(r.dir) //nolint:errcheck // what is left is in the directory of temporary files
	if err := stack.BuildCommand(ctx, r.dir, "perceptorctl"); err != nil {
		return nil, err
	}
	r.ctl = filepath.Join(r.dir, "perceptorctl")
	secret, err := s.CreateTenant(ctx, "roundtrip")
	if err != nil {
		return nil, err
	}
	if err := r.fill(ctx); err != nil {
		return nil, err
	}
	return r.report, r.compare(ctx, secret)
}

// fill stores the tasks of the tenant.
func (r *runner) fill(ctx context.Context) error {
	store, err := backlog.Open(ctx, r.stack.Postgres(), 10*time.Minute, r.Loaders+1)
	if err != nil {
		return err
	}
	defer store.Close()
	tenant, err := store.Tenant(ctx, "roundtrip")
	if err != nil {
		return err
	}
	from := task.At(time.Now()).Add(3 * time.Hour)
	makers := func() (backlog.Maker, error) {
		return &maker{tenant: tenant, seed: r.Seed, from: from, to: from.Add(time.Duration(r.Days) * 24 * time.Hour), keyed: r.Keyed, paramBytes: r.ParamsBytes}, nil
	}
	var mu sync.Mutex
	var bad error
	_, err = store.Fill(ctx, r.Load, makers, func(rows []task.Row) {
		var part sum
		for i := range rows {
			if err := part.addRow(&rows[i]); err != nil {
				bad = err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		r.stored.count, r.stored.hash = r.stored.count+part.count, r.stored.hash+part.hash
	}, r.Progress)
	return errors.Join(err, bad)
}

// compare exports twice and compares both with each other and with what was stored. Then it imports
// the second export into another tenant, and compares it with the export of that.
func (r *runner) compare(ctx context.Context, secret string) error {
	first, second, third := filepath.Join(r.dir, "export-1"), filepath.Join(r.dir, "export-2"), filepath.Join(r.dir, "copy")
	got, err := r.exported(ctx, secret, first, r.Kill)
	if err := errors.Join(err, os.RemoveAll(first)); err != nil {
		return err
	}
	r.likeStored("the first export", got)
	if got, err = r.exported(ctx, secret, second, false); err != nil {
		return err
	}
	r.likeStored("the second export", got)
	other, err := r.stack.CreateTenant(ctx, "roundtrip-copy")
	if err != nil {
		return err
	}
	if r.report.Import, err = r.restore(ctx, other, second); err != nil {
		return err
	}
	if err := os.RemoveAll(second); err != nil {
		return err
	}
	if _, err := r.exported(ctx, other, third, false); err != nil {
		return err
	}
	all := r.report.Exports
	if a, b := all[0].Digest, all[1].Digest; a != b {
		r.broken("the sorted lines of the exports differ: %v, %v", a, b)
	}
	if a, b := all[1].Digest, all[2].Digest; a != b {
		r.broken("the sorted lines of the second export and of its copy differ: %v, %v", a, b)
	}
	return os.RemoveAll(third)
}

// exported exports a tenant to a directory, and sums up the lines.
func (r *runner) exported(ctx context.Context, secret, out string, kill bool) (got sum, err error) {
	e, err := r.export(ctx, secret, out, kill)
	if err != nil {
		return got, err
	}
	r.report.Exports = append(r.report.Exports, e)
	r.Say("exported %d lines, %.0f lines/s; sorting them", e.Lines, e.LinesPerS)
	files, err := filepath.Glob(filepath.Join(out, "*.jsonl"))
	if err == nil {
		e.Digest, err = digestOf(files, r.dir, got.addLine)
	}
	return got, err
}

func (r *runner) likeStored(what string, got sum) {
	if got != r.stored {
		r.broken("%s has %d tasks with the checksum %016x; %d with %016x were stored", what, got.count, got.hash, r.stored.count, r.stored.hash)
	}
}

// restore imports an export, with how far its tasks have come.
func (r *runner) restore(ctx context.Context, secret, from string) (*Import, error) {
	out := &Import{}
	var result []byte
	used, err := harness.MeasureStretch(ctx, r.meter, r.stack.Postgres(), func() (err error) {
		cmd := r.command(ctx, secret, "import", filepath.Join(from, "*.jsonl"), "--restore", "--on-conflict", "fail", "--max-rejects", "0", "-o", "json")
		result, out.MaxRSSMB, err = runCommand(cmd)
		return err
	})
	if err != nil {
		return nil, err
	}
	var told struct {
		Import struct {
			State                 string
			LineCount, AddedCount int64 `json:",string"`
		}
	}
	if err := json.Unmarshal(result, &told); err != nil {
		return nil, fmt.Errorf("the result of the import: %w: %.200s", err, result)
	}
	i := told.Import
	if out.Lines, out.Added = i.LineCount, i.AddedCount; i.State != "FINISHED" || i.AddedCount != r.Tasks {
		r.broken("the import is %s and has added %d of %d tasks", i.State, i.AddedCount, r.Tasks)
	}
	out.Seconds, out.LinesPerS = harness.Round(used.Took.Seconds()), harness.Round(float64(out.Lines)/used.Took.Seconds())
	out.CPU, out.TaskdMB = harness.NewCPU(used.CPU, out.Lines), r.meter.Memory("taskd")>>20
	r.Say("imported %d lines, %.0f lines/s", out.Lines, out.LinesPerS)
	return out, nil
}

func (r *runner) broken(format string, args ...any) {
	r.report.Violations = append(r.report.Violations, fmt.Sprintf(format, args...))
}

// export runs perceptorctl, and kills it in the middle if it has to.
func (r *runner) export(ctx context.Context, secret, out string, kill bool) (*Export, error) {
	e := &Export{Killed: kill}
	used, err := harness.MeasureStretch(ctx, r.meter, r.stack.Postgres(), func() error {
		first := r.command(ctx, secret, "export", "--dir", out, "--part-size", fmt.Sprint(r.PartSize))
		if !kill {
			return e.run(first)
		}
		if err := r.killInTheMiddle(ctx, first, out); err != nil {
			return err
		}
		return e.run(r.command(ctx, secret, "export", "--resume", out))
	})
	if err != nil {
		return nil, err
	}
	s, err := stateOf(out)
	if err != nil {
		return nil, err
	}
	e.Lines, e.Bytes, e.Parts = s.Lines, s.Bytes, len(s.Parts)
	e.Seconds, e.LinesPerS = harness.Round(used.Took.Seconds()), harness.Round(float64(s.Lines)/used.Took.Seconds())
	e.CPU, e.TaskdMB = harness.NewCPU(used.CPU, s.Lines), r.meter.Memory("taskd")>>20
	return e, nil
}

func (r *runner) command(ctx context.Context, secret string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.ctl, args...)
	cmd.Env = append(os.Environ(), "PERCEPTOR_ADDRESS="+r.stack.Address, "PERCEPTOR_TOKEN="+secret)
	return cmd
}

// run runs a command to its end.
func (e *Export) run(cmd *exec.Cmd) error {
	_, peak, err := runCommand(cmd)
	e.MaxRSSMB = max(e.MaxRSSMB, peak)
	return err
}

// runCommand runs a command to its end, and returns its output and how much memory it has used.
func runCommand(cmd *exec.Cmd) (out []byte, peakMB int64, err error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	stop := harness.Repeat(context.Background(), 50*time.Millisecond, func() {
		if _, peak, err := subprocess.Memory(cmd.Process.Pid); err == nil {
			peakMB = max(peakMB, peak>>20)
		}
	})
	err = cmd.Wait()
	stop()
	if err != nil {
		return nil, peakMB, fmt.Errorf("%v: %w: %s%s", cmd.Args[1:], err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), peakMB, nil
}

// killInTheMiddle kills a command when about half of the lines are complete.
func (r *runner) killInTheMiddle(ctx context.Context, cmd *exec.Cmd, out string) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for poll := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case err := <-ended:
			return fmt.Errorf("the export ended before it was killed; choose a smaller --part-size: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
		if s, err := stateOf(out); err == nil && s.Lines >= r.Tasks*2/5 {
			poll.Stop()
			r.Say("killing perceptorctl after %d lines", s.Lines)
			err := cmd.Process.Kill()
			<-ended //nolint:errcheck // it says that the program was killed
			return err
		}
	}
}

// state has some fields of the state of an export.
type state struct {
	Lines, Bytes int64
	Parts        []struct{ Name string }
}

func stateOf(dir string) (s state, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "export.json"))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}
