// Package harness is what all experiments share: one frame of flags, run, verdict
// and report; the processor time, write-ahead log and table sizes that a stretch of
// work uses; and the JSON, the table and the picture that a report is written as.
//
// An experiment is a struct of options that embeds [Setup] and implements
// [Experiment]. Its report embeds [Header], usually [Findings] and [CPU], and
// implements [Report]. loadtest/main.go lists the experiments.
//
// Reports use the same names for the same figures in the JSON: cycles_per_s,
// tasks_per_s, lateness_ms, cpu_us_per_cycle, floor_cycles_per_s, ratio_to_floor,
// ratio_to_empty, wal_bytes_per_fire, bytes_per_task, violations.
package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/perceptor/perceptor/loadtest/chart"
	"github.com/perceptor/perceptor/loadtest/check"
)

// Experiment answers one question about an installation. Implementations are
// structs of options that embed [Setup].
type Experiment[R Report] interface {
	About() About
	// Declare names all options and their bounds. It changes no option, so that
	// [Validate] can call it, too.
	Declare(*Flags)
	// Common returns the embedded [Setup].
	Common() *Setup
	// Measure runs the experiment. A report comes with an error when something went
	// wrong after the first figures. Broken rules are no error: the report has them.
	Measure(context.Context) (R, error)
}

// Completer is an experiment with options that depend on which flags were given.
type Completer interface {
	Complete(given func(flag string) bool)
}

// About names an experiment. Its help is the section of that name in the README.
type About struct {
	Name string
	// Without names declared options that are no flags of this experiment.
	Without []string
	// Picture says that the reports have a chart.
	Picture bool
}

// Report is what an experiment found. It is encoded as JSON as it is.
type Report interface {
	// Table writes the report for people.
	Table(*Table)
	// Chart returns the picture, or nil.
	Chart() *chart.Chart
	// Verdict returns an error when a rule was broken.
	Verdict() error
}

// NoPicture is embedded by reports without a chart.
type NoPicture struct{}

// Chart implements [Report].
func (NoPicture) Chart() *chart.Chart { return nil }

// ErrBroken is returned by verdicts that found violations.
var ErrBroken = errors.New("the contract was broken")

// Verdict returns [ErrBroken] with the faults; nil when there are none.
func Verdict(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrBroken, strings.Join(faults, "; "))
}

// Section returns the section of a guide that explains an experiment: its question,
// which is the first line in bold, the text, and the examples in its last code block.
func Section(guide, name string) (question, text, examples string) {
	_, section, _ := strings.Cut(guide, "\n## "+name+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	text, examples, _ = strings.Cut(section, "```sh\n")
	examples, _, _ = strings.Cut(examples, "\n```")
	question, text, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return strings.Trim(question, "*"), strings.TrimSpace(text), "  " + strings.ReplaceAll(examples, "\n", "\n  ")
}

// Command returns the subcommand that runs an experiment and writes its report, with the
// help that a guide has. It returns an error when the verdict is one.
func Command[R Report](e Experiment[R], guide string) *cobra.Command {
	about, out, all := e.About(), Output{}, newFlags(e.Common())
	question, text, examples := Section(guide, about.Name)
	cmd := &cobra.Command{
		Use: about.Name, Short: question, Long: question + "\n\n" + text, Example: examples, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c, ok := e.(Completer); ok {
				c.Complete(cmd.Flags().Changed)
			}
			if e.Common().Progress == nil {
				e.Common().Progress = cmd.ErrOrStderr()
			}
			report, err := Run(cmd.Context(), e)
			var none R
			if any(report) == any(none) {
				return err
			}
			if err = errors.Join(err, out.Write(cmd, report)); err != nil {
				return err
			}
			return report.Verdict()
		},
	}
	e.Declare(all)
	all.StringVar(&out.JSON, "json", "", "write the report to this file, too (-: to standard output)")
	if about.Picture {
		all.StringVar(&out.SVG, "svg", "", "draw the figures over time into this file")
	}
	cmd.Flags().SortFlags = false
	all.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(about.Without, f.Name) {
			cmd.Flags().AddFlag(f)
		}
	})
	return cmd
}

// Run validates the options of an experiment, fills in those that are not given,
// and measures.
func Run[R Report](ctx context.Context, e Experiment[R]) (report R, err error) {
	if err := errors.Join(Validate(e), e.Common().prepare()); err != nil {
		return report, err
	}
	return e.Measure(ctx)
}

// Output says where a report goes.
type Output struct {
	// JSON and SVG are names of files; empty: not written. JSON may be "-".
	JSON, SVG string
}

// Write writes the table to standard output, and the files.
func (o *Output) Write(cmd *cobra.Command, r Report) error {
	table := cmd.OutOrStdout()
	if o.JSON == "-" {
		table = cmd.ErrOrStderr()
	}
	errs := []error{WriteTable(table, r)}
	switch o.JSON {
	case "":
	case "-":
		errs = append(errs, WriteJSON(cmd.OutOrStdout(), r))
	default:
		errs = append(errs, toFile(o.JSON, func(w io.Writer) error { return WriteJSON(w, r) }))
	}
	if c := r.Chart(); o.SVG != "" && c != nil {
		errs = append(errs, toFile(o.SVG, c.WriteSVG))
	}
	return errors.Join(errs...)
}

// WriteJSON writes v with indentation.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func toFile(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := write(file); err != nil {
		file.Close()
		return fmt.Errorf("write the report %s: %w", path, err)
	}
	return file.Close()
}

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
