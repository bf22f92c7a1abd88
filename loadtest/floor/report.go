package floor

import (
	"fmt"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
)

// Report is what was found.
type Report struct {
	harness.Header
	harness.NoPicture
	Rate             float64 `json:"rate"`
	TickMs           float64 `json:"tick_ms"`
	RowsPerStatement float64 `json:"rows_per_statement"`
	// CyclesPerS is the full speed of the four statements, the floor (of recurring tasks: of
	// their two); the short form has its own.
	CyclesPerS float64 `json:"cycles_per_s"`
	Max        *Run    `json:"max"`
	Short      *Run    `json:"short,omitempty"`
	// Paced is nil unless it was asked for; Held says that it kept to its rate.
	Paced *Run `json:"paced,omitempty"`
	Held  bool `json:"held"`
}

// Run is what one form did.
type Run struct {
	Form       string  `json:"form"`
	CyclesPerS float64 `json:"cycles_per_s"`
	Seconds    float64 `json:"seconds"`
	harness.CPU
	WALBytesPerCycle float64 `json:"wal_bytes_per_cycle"`
	// WorkMs is how long a tick over all databases takes.
	WorkMs float64 `json:"work_ms"`
	// Moved are the rows of the whole run, all of which went all the way.
	Moved Moved `json:"moved"`
}

func (rep *Report) add(f form, run *Run) {
	switch {
	case f.paced:
		rep.Paced, rep.Held = run, run.CyclesPerS >= 0.98*rep.Rate
	case f.short:
		rep.Short = run
	default:
		rep.Max, rep.CyclesPerS = run, run.CyclesPerS
	}
}

// Summary is one line for people.
func (rep *Report) Summary() string {
	s := fmt.Sprintf("%.0f rows a statement; %.1f µs per cycle", rep.RowsPerStatement, rep.Max.UsPerCycle["total"])
	if rep.Short != nil {
		s += fmt.Sprintf("; where reports delete %.0f cycles/s, %.1f µs", rep.Short.CyclesPerS, rep.Short.UsPerCycle["total"])
	}
	return s
}

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	t.Line("\nfloor: bare SQL, %.0f rows a statement as ticks of %.0f ms have them at %.0f cycles/s (seed %d)",
		rep.RowsPerStatement, rep.TickMs, rep.Rate, rep.Seed)
	for _, run := range []*Run{rep.Max, rep.Short, rep.Paced} {
		if run == nil {
			continue
		}
		t.Line("\n  %s", run.Form)
		t.Row("cycles/s", "%.0f   (all %d rows moved)", run.CyclesPerS, run.Moved.Added)
		t.Row("work per tick", "%.1f ms", run.WorkMs)
		t.Row("WAL", "%.0f bytes per cycle", run.WALBytesPerCycle)
		t.WriteString(run.CPU.Table("cycle", time.Duration(run.Seconds*float64(time.Second))))
	}
	if rep.Paced != nil && !rep.Held {
		t.Line("\n  The paced run fell behind its rate.")
	}
}

// Verdict implements [harness.Report]: a floor has none.
func (rep *Report) Verdict() error { return nil }
