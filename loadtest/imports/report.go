package imports

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
)

// Report is the result of an import.
type Report struct {
	harness.Header
	harness.NoPicture
	File      string `json:"file"`
	Keys      bool   `json:"keys"`
	Tasks     int64  `json:"tasks"`
	FileBytes int64  `json:"file_bytes"`
	// LinesPerS is from the start of perceptorctl to its end, with its resumes.
	LinesPerS float64 `json:"lines_per_s"`
	ImportS   float64 `json:"import_s"`
	harness.CPU
	// Statements are those of PostgreSQL, with --statements.
	Statements []harness.Statement `json:"statements,omitempty"`
	// MaxRSS is the largest memory by process, in MiB. What processes share counts once.
	MaxRSS          map[string]float64 `json:"max_rss_mb"`
	BytesPerTask    float64            `json:"bytes_per_task"`
	WALBytesPerTask float64            `json:"wal_bytes_per_task"`
	// OthersP99Before and OthersP99During are those of the lateness of another tenant's tasks.
	OthersP99Before float64           `json:"others_p99_ms_before"`
	OthersP99During float64           `json:"others_p99_ms_during"`
	OthersBefore    harness.Quantiles `json:"others_ms_before"`
	OthersDuring    harness.Quantiles `json:"others_ms_during"`
	Killed          []string          `json:"killed"`
	Resumed         int               `json:"resumed"`
	// Said is how many tasks were added by the result of the import, Found how many were read back.
	Said      string  `json:"said"`
	Found     int64   `json:"found"`
	Same      bool    `json:"same"`
	ReadBackS float64 `json:"read_back_s"`
	Fired     int     `json:"fired"`
	// Violations is the number of rules that were broken, Faults says which.
	Violations int      `json:"violations"`
	Faults     []string `json:"faults,omitempty"`

	mu sync.Mutex
}

// fault adds a broken rule.
func (rep *Report) fault(format string, args ...any) {
	rep.mu.Lock()
	defer rep.mu.Unlock()
	rep.Violations++
	rep.Faults = append(rep.Faults, fmt.Sprintf(format, args...))
}

// kill records a kill.
func (rep *Report) kill(part string) {
	rep.mu.Lock()
	defer rep.mu.Unlock()
	rep.Killed = append(rep.Killed, part)
}

// Verdict implements [harness.Report].
func (rep *Report) Verdict() error { return harness.Verdict(rep.Faults) }

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	keys := "without keys"
	if rep.Keys {
		keys = "with keys"
	}
	t.Line("\nimport of a %s file of %d lines %s, %.1f MB (seed %d)", rep.File, rep.Tasks, keys, float64(rep.FileBytes)/1e6, rep.Seed)
	t.Row("imported", "in %.1f s: %.0f lines/s", rep.ImportS, rep.LinesPerS)
	if len(rep.Killed) > 0 {
		t.Row("killed", "%s; resumed %d times", strings.Join(rep.Killed, ", "), rep.Resumed)
	}
	t.Row("on disk", "%.1f bytes per task, WAL %.1f", rep.BytesPerTask, rep.WALBytesPerTask)
	for _, name := range slices.Sorted(maps.Keys(rep.MaxRSS)) {
		t.Row("  memory of "+name, "at most %.0f MiB", rep.MaxRSS[name])
	}
	t.WriteString(rep.CPU.Table("line", time.Duration(rep.ImportS*float64(time.Second))))
	t.Statements(rep.Statements)
	t.Row("others' lateness ms", "before: %s", rep.OthersBefore)
	t.Row("", "during: %s", rep.OthersDuring)
	t.Row("read back", "%d tasks in %.0f s, the same as the lines: %t", rep.Found, rep.ReadBackS, rep.Same)
	t.Row("fired", "%d", rep.Fired)
	t.Row("violations", "%d", rep.Violations)
	for _, f := range rep.Faults {
		t.Line("    %s", f)
	}
}
