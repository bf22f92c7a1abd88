package harness

import (
	"fmt"
	"io"
	"strings"

	"github.com/perceptor/perceptor/loadtest/chart"
	"github.com/perceptor/perceptor/loadtest/check"
)

// Table collects the lines of a report for people.
type Table struct{ strings.Builder }

// Line adds a line.
func (t *Table) Line(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }

// Row adds a line with a name in the first column.
func (t *Table) Row(name, format string, args ...any) {
	fmt.Fprintf(t, "  %-22s %s\n", name, fmt.Sprintf(format, args...))
}

// WriteTable writes a report for people.
func WriteTable(w io.Writer, r Report) error {
	var t Table
	r.Table(&t)
	_, err := io.WriteString(w, t.String())
	return err
}

// Findings are the violations of the contract that a checker found; reports embed
// them.
type Findings struct {
	Violations map[check.Kind]int64 `json:"violations"`
	// Examples are the first violations of each kind.
	Examples []check.Violation `json:"examples,omitempty"`
}

// FindingsOf returns the findings of a check.
func FindingsOf(r check.Result) Findings { return Findings{r.Violations, r.Examples} }

// Broken returns the number of violations. f may be nil.
func (f *Findings) Broken() (n int64) {
	if f != nil {
		for _, k := range f.Violations {
			n += k
		}
	}
	return n
}

// Broke says for each kind of violation how many there are.
func (f *Findings) Broke() (faults []string) {
	for _, k := range check.Kinds {
		if n := f.Violations[k]; n > 0 {
			faults = append(faults, fmt.Sprintf("%s %d", k, n))
		}
	}
	return faults
}

// Verdict implements [Report].
func (f *Findings) Verdict() error { return Verdict(f.Broke()) }

// Findings adds the violations and the examples.
func (t *Table) Findings(f *Findings) {
	if f.Broken() == 0 {
		t.Row("violations", "none")
	} else {
		t.Row("violations", "%d   (%s)", f.Broken(), strings.Join(f.Broke(), ", "))
	}
	t.Examples(f)
}

// Examples adds the examples of violations.
func (t *Table) Examples(f *Findings) {
	for _, v := range f.Examples {
		t.Line("    %s", v)
	}
}

// LateLine draws by second the lateness that 99 of 100 runs do not exceed, in
// milliseconds. x counts seconds since the instant from.
func LateLine(name string, f *check.Figures, from check.Micros) chart.Line {
	l := chart.Line{Name: name}
	for i := range f.Seconds {
		if s := f.Seconds[i].Lateness; s != nil {
			l.Add(f.SecondAt(i).Sub(from).Seconds(), Milliseconds(s.Quantile(0.99)))
		}
	}
	return l
}
