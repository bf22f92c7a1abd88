// Package imports imports a large file by perceptorctl into a stack of real parts, kills processes
// meanwhile, and reads everything back by a path that shares no code with the importer. It is the experiment import with
// --file; without it, the bulk path is measured alone ([backlog.ImportOptions]).
package imports

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/loadtest/backlog"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// Options describe an import. [Options.Declare] has units and bounds.
type Options struct {
	backlog.ImportOptions
	// File is the format of the file: csv, jsonl or parquet. Empty: there is none.
	File string
	// Keys says that lines have an idempotency_key.
	Keys bool
	// Crashes are kills, each followed by a start.
	Crashes []scenario.Disturbance
	// Others is the rate of the tasks of another tenant, per second.
	Others float64
	// Alone is how long the other tenant is measured before the import.
	Alone time.Duration
	// Fires is the number of tasks that are imported to fire at once.
	Fires int

	kills string
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	o := Options{ImportOptions: backlog.DefaultImport(), Others: 50, Alone: 20 * time.Second, Fires: 1000}
	return o
}

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	o.ImportOptions.Declare(f)
	f.StringVar(&o.File, "file", o.File, "import a file of this format by perceptorctl: csv, jsonl or parquet (default: only the bulk path is measured)")
	f.Require(o.File == "" || writers[o.File] != nil, "--file %q is not one of csv, jsonl, parquet", o.File)
	f.Switch(&o.Keys, "keys", "with --file: lines have an idempotency_key")
	f.StringVar(&o.kills, "kill", o.kills, "with --file: kill a part or perceptorctl, and start it again: taskd@20s,perceptorctl@30s")
	f.Statements()
	harness.Num(f, &o.Others, "others", harness.Between(0.0, 10_000), "with --file: tasks per second of another tenant")
	harness.Num(f, &o.Alone, "alone", harness.Between(time.Second, time.Hour), "with --file: how long the other tenant is measured before the import")
	harness.Num(f, &o.Fires, "fires", harness.Between(0, 100_000), "with --file: number of tasks that are imported to fire at once")
	crashes, err := parseKills(o.kills)
	f.Require(err == nil, "%v", err)
	f.Require(o.File != "" || len(crashes) == 0 && !o.Keys, "--kill and --keys need --file")
}

// parseKills parses PART@AFTER, separated by commas.
func parseKills(text string) (all []scenario.Disturbance, err error) {
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		d, err := scenario.ParseDisturbance(scenario.Crash, part)
		if err != nil {
			return nil, errors.New(strings.Replace(err.Error(), "--crash", "--kill", 1))
		}
		all = append(all, d)
	}
	return all, nil
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (harness.Report, error) {
	if o.File == "" {
		rep, err := o.ImportOptions.Measure(ctx)
		if rep == nil {
			return nil, err
		}
		return rep, err
	}
	var err error
	if o.Crashes, err = parseKills(o.kills); err != nil {
		return nil, err
	}
	if err := backlog.CheckDisk(o.DataDir, o.Tasks, 2*lineBytes); err != nil {
		return nil, err
	}
	o.SetHorizon(o.Horizon)
	rep, err := harness.WithStack(ctx, &o.Setup, func(ctx context.Context, s *stack.Stack) (*Report, error) {
		r := &runner{Options: o, stack: s, report: &Report{
			Header: harness.NewHeader("import", o.Seed, s.Versions), File: o.File, Keys: o.Keys, Tasks: o.Tasks,
		}}
		return r.report, r.run(ctx)
	})
	if rep == nil {
		return nil, err
	}
	return rep, err
}

// runner is one run.
type runner struct {
	*Options
	stack   *stack.Stack
	dir     string
	program string
	report  *Report
}

func (r *runner) run(ctx context.Context) error {
	dir, err := tempdir.New("perceptor-imports-", r.Setup.Real.Keep)
	if err != nil {
		return err
	}
	defer dir.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the next run removes leftovers
	r.dir = dir.Path
	if err := r.build(ctx); err != nil {
		return err
	}
	name := filepath.Join(r.dir, "tasks."+r.File)
	r.Say("writing %d lines to %s", r.Tasks, name)
	made, err := writeFile(ctx, name, r.lines())
	if err != nil {
		return fmt.Errorf("write the file: %w", err)
	}
	r.report.FileBytes = made.bytes
	if err := r.importFile(ctx, name, made); err != nil {
		return err
	}
	if err := os.Remove(name); err != nil {
		return err
	}
	if err := r.compare(ctx, made); err != nil {
		return err
	}
	if r.Fires > 0 {
		if err := r.fire(ctx); err != nil {
			return fmt.Errorf("fire: %w", err)
		}
	}
	return r.stack.Died()
}

// quiet is how far ahead the first task is due, so that none fires before all are read back.
const quiet = 24 * time.Hour

// lines returns what the lines of the file are made of.
func (r *runner) lines() maker {
	from := time.Now().Add(quiet).Truncate(time.Hour)
	return maker{lines: r.Tasks, from: from, span: time.Duration(max(2, r.Days)) * 24 * time.Hour, keys: r.Keys, seed: r.Seed}
}
