// Package harness has the parts that all experiments share: the sequence of flags, run,
// verdict and report; the measurement of processor time, write-ahead log and table sizes;
// and the output of reports as JSON, table and chart.
//
// An experiment is a struct of options that embeds [Setup] and implements [Experiment]. Its
// report embeds [Header], usually [Findings] and [CPU], and implements [Report].
// loadtest/main.go lists the experiments.
//
// Reports use the same names for the same figures in the JSON: cycles_per_s, tasks_per_s,
// lateness_ms, cpu_us_per_cycle, floor_cycles_per_s, ratio_to_floor, ratio_to_empty,
// wal_bytes_per_fire, bytes_per_task, violations.
package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/perceptor/perceptor/internal/chart"
	"github.com/perceptor/perceptor/loadtest/check"
)

// Experiment answers one question about an installation. Implementations are
// structs of options that embed [Setup].
type Experiment[R Report] interface {
	About() About
	// Declare declares all options and their bounds. It changes no option, so that
	// [Validate] can call it, too.
	Declare(*Flags)
	// Common returns the embedded [Setup].
	Common() *Setup
	// Measure runs the experiment. It returns a report together with an error if something
	// failed after the first figures. Violations are not an error: the report has them.
	Measure(context.Context) (R, error)
}

// Completer is an experiment with options that depend on which flags were given.
type Completer interface {
	Complete(given func(flag string) bool)
}

// About names an experiment. Its help is the section of that name in the README.
type About struct {
	Name string
	// Without lists declared options that are no flags of this experiment.
	Without []string
	// Picture says that the reports have a chart.
	Picture bool
}

// Report is the result of an experiment. It is encoded as JSON as it is.
type Report interface {
	// Table writes the report as text.
	Table(*Table)
	// Chart returns the chart, or nil.
	Chart() *chart.Chart
	// Verdict returns an error if a rule was broken.
	Verdict() error
}

// NoPicture is embedded by reports without a chart.
type NoPicture struct{}

// Chart implements [Report].
func (NoPicture) Chart() *chart.Chart { return nil }

// ErrBroken is the error of verdicts with violations.
var ErrBroken = errors.New("the contract was broken")

// Verdict returns [ErrBroken] with the faults, or nil if there are none.
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

// Command returns the subcommand that runs an experiment and writes its report. Its help
// comes from a guide. The subcommand returns an error if the verdict is one.
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
	all.StringVar(&out.JSON, "json", "", "also write the report to this file (-: to standard output)")
	if about.Picture {
		all.StringVar(&out.SVG, "svg", "", "draw a chart of the figures over time to this file")
	}
	cmd.Flags().SortFlags = false
	all.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(about.Without, f.Name) {
			cmd.Flags().AddFlag(f)
		}
	})
	return cmd
}

// Run validates the options of an experiment, completes those that are not given, and measures.
func Run[R Report](ctx context.Context, e Experiment[R]) (report R, err error) {
	if err := errors.Join(Validate(e), e.Common().prepare()); err != nil {
		return report, err
	}
	return e.Measure(ctx)
}

// Output has the destinations of a report.
type Output struct {
	// JSON and SVG are file names; empty means not written. JSON may be "-" for standard output.
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

// Table collects the lines of a report as text.
type Table struct{ strings.Builder }

// Line adds a line.
func (t *Table) Line(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }

// Row adds a line with a name in the first column.
func (t *Table) Row(name, format string, args ...any) {
	fmt.Fprintf(t, "  %-22s %s\n", name, fmt.Sprintf(format, args...))
}

// WriteTable writes a report as text.
func WriteTable(w io.Writer, r Report) error {
	var t Table
	r.Table(&t)
	_, err := io.WriteString(w, t.String())
	return err
}

// Findings are the violations of the contract that a checker found. Reports embed them.
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

// Broke returns a text for each kind of violation with their number.
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
		t.Row("violations", "0")
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

// LateLine returns a line with the 99th percentile of the lateness of each second, in
// milliseconds. x is the number of seconds since from.
func LateLine(name string, f *check.Figures, from check.Micros) chart.Line {
	l := chart.Line{Name: name}
	for i := range f.Seconds {
		if s := f.Seconds[i].Lateness; s != nil {
			l.Add(f.SecondAt(i).Sub(from).Seconds(), Milliseconds(s.Quantile(0.99)))
		}
	}
	return l
}

// Header describes what the figures were measured with. Reports embed it.
type Header struct {
	Command     string            `json:"command"`
	CommandLine string            `json:"command_line"`
	Begin       time.Time         `json:"begin"`
	Seed        uint64            `json:"seed"`
	Commit      string            `json:"commit"`
	Machine     Machine           `json:"machine"`
	Versions    map[string]string `json:"versions"`
}

// NewHeader returns the header of a run that begins now. versions are the versions of the
// servers, as in [stack.Stack].
func NewHeader(command string, seed uint64, versions map[string]string) Header {
	all := map[string]string{"go": runtime.Version()}
	maps.Copy(all, versions)
	return Header{
		Command: command, CommandLine: CommandLine(), Begin: time.Now().UTC(), Seed: seed, Commit: commit(),
		Machine:  Machine{Cores: runtime.NumCPU(), MemoryGB: memoryGB(), OS: runtime.GOOS, Arch: runtime.GOARCH},
		Versions: all,
	}
}

// Machine describes the machine of a run.
type Machine struct {
	Cores    int     `json:"cores"`
	MemoryGB float64 `json:"memory_gb"`
	OS       string  `json:"os"`
	Arch     string  `json:"arch"`
}

// CommandLine returns the command line of this program without the token.
func CommandLine() string {
	return strings.Join(append([]string{"loadtest"}, withoutToken(os.Args[1:])...), " ")
}

// withoutToken replaces the token in a command line by dots.
func withoutToken(args []string) []string {
	shown := slices.Clone(args)
	for i, arg := range args {
		if i > 0 && args[i-1] == "--token" {
			shown[i] = "..."
		}
		if strings.HasPrefix(arg, "--token=") {
			shown[i] = "--token=..."
		}
	}
	return shown
}

// memoryGB returns the machine's memory, or 0 if that is not known.
func memoryGB() float64 {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var kb float64
		if n, _ := fmt.Sscanf(lines.Text(), "MemTotal: %f kB", &kb); n == 1 {
			return Round(kb / (1 << 20))
		}
	}
	return 0
}

// commit returns the commit of the source tree, with "-dirty" if the tree has changes.
func commit() string {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	id := strings.TrimSpace(string(out))
	if changes, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output(); err != nil || len(changes) > 0 {
		id += "-dirty"
	}
	return id
}

// Quantiles are quantiles of a distribution, in milliseconds.
type Quantiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// QuantilesOf returns the quantiles of a histogram of microseconds.
func QuantilesOf(h *hdrhistogram.Histogram) Quantiles {
	q := func(p float64) float64 { return Round(float64(h.ValueAtQuantile(p)) / 1000) }
	return Quantiles{P50: q(50), P99: q(99), P999: q(99.9), Max: Round(float64(h.Max()) / 1000)}
}

// String returns the quantiles as one line of text.
func (q Quantiles) String() string {
	return fmt.Sprintf("p50 %.1f   p99 %.1f   p99.9 %.1f   max %.1f", q.P50, q.P99, q.P999, q.Max)
}

// Milliseconds rounds d to a hundredth of a millisecond.
func Milliseconds(d time.Duration) float64 { return Round(d.Seconds() * 1000) }

// MiB converts bytes to MiB, rounded.
func MiB[T int64 | float64](bytes T) float64 { return Round(float64(bytes) / (1 << 20)) }

// Round rounds x to two decimal places.
func Round(x float64) float64 { return math.Round(x*100) / 100 }

// CPU is the processor time of a window by part. Reports embed it.
type CPU struct {
	// Seconds is the processor time by part, in seconds.
	Seconds map[string]float64 `json:"cpu_s"`
	// UsPerCycle is the processor time per cycle by part and for "total", in microseconds.
	UsPerCycle map[string]float64 `json:"cpu_us_per_cycle"`
}

// NewCPU divides the used time by the number of cycles, or of the units of work of the experiment.
func NewCPU(used map[string]time.Duration, cycles int64) CPU {
	c := CPU{Seconds: map[string]float64{}, UsPerCycle: map[string]float64{}}
	total := 0.0
	for name, u := range used {
		c.Seconds[name] = Round(u.Seconds())
		total += u.Seconds()
		if cycles > 0 {
			c.UsPerCycle[name] = Round(u.Seconds() * 1e6 / float64(cycles))
		}
	}
	if cycles > 0 && len(used) > 0 {
		c.UsPerCycle["total"] = Round(total * 1e6 / float64(cycles))
	}
	return c
}

// Table returns the processor times as text, the largest first. per is the unit of work
// that the time was divided by, window the duration of the measurement.
func (c CPU) Table(per string, window time.Duration) string {
	names := slices.Collect(maps.Keys(c.Seconds))
	total := 0.0
	for _, used := range c.Seconds {
		total += used
	}
	slices.SortFunc(names, func(x, y string) int {
		if c.Seconds[x] != c.Seconds[y] {
			return int(math.Copysign(1, c.Seconds[y]-c.Seconds[x]))
		}
		return strings.Compare(x, y)
	})
	var b strings.Builder
	fmt.Fprintf(&b, "  %-22s %.1f s, %.2f cores, %.1f µs per %s\n", "processor time", total, total/max(window.Seconds(), 1e-9), c.UsPerCycle["total"], per)
	for _, name := range names {
		fmt.Fprintf(&b, "    %-20s %7.1f s %8.1f µs per %s\n", name, c.Seconds[name], c.UsPerCycle[name], per)
	}
	return b.String()
}
