package harness

import (
	"bufio"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Header says what a figure was measured with; reports embed it.
type Header struct {
	Command     string            `json:"command"`
	CommandLine string            `json:"command_line"`
	Begin       time.Time         `json:"begin"`
	Seed        uint64            `json:"seed"`
	Commit      string            `json:"commit"`
	Machine     Machine           `json:"machine"`
	Versions    map[string]string `json:"versions"`
}

// NewHeader returns the header of a run that begins now. versions are those of
// the servers, as [stack.Stack] has them.
func NewHeader(command string, seed uint64, versions map[string]string) Header {
	all := map[string]string{"go": runtime.Version()}
	maps.Copy(all, versions)
	return Header{
		Command: command, CommandLine: CommandLine(), Begin: time.Now().UTC(), Seed: seed, Commit: commit(),
		Machine:  Machine{Cores: runtime.NumCPU(), MemoryGB: memoryGB(), OS: runtime.GOOS, Arch: runtime.GOARCH},
		Versions: all,
	}
}

// Machine is what a run was on.
type Machine struct {
	Cores    int     `json:"cores"`
	MemoryGB float64 `json:"memory_gb"`
	OS       string  `json:"os"`
	Arch     string  `json:"arch"`
}

// CommandLine is how this program was called, without the token.
func CommandLine() string {
	return strings.Join(append([]string{"loadtest"}, withoutToken(os.Args[1:])...), " ")
}

// withoutToken hides the token of a command line.
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

// memoryGB reads the machine's memory; 0 where that is not known.
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

// commit names what was built; "-dirty" when the tree has changes.
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

// Quantiles of a distribution, in milliseconds.
type Quantiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// QuantilesOf returns those of a histogram of microseconds.
func QuantilesOf(h *hdrhistogram.Histogram) Quantiles {
	q := func(p float64) float64 { return Round(float64(h.ValueAtQuantile(p)) / 1000) }
	return Quantiles{P50: q(50), P99: q(99), P999: q(99.9), Max: Round(float64(h.Max()) / 1000)}
}

// String returns one line for people.
func (q Quantiles) String() string {
	return fmt.Sprintf("p50 %.1f   p99 %.1f   p99.9 %.1f   max %.1f", q.P50, q.P99, q.P999, q.Max)
}

// Milliseconds rounds d to a hundredth of a millisecond.
func Milliseconds(d time.Duration) float64 { return Round(d.Seconds() * 1000) }

// Round keeps two digits after the point.
func Round(x float64) float64 { return math.Round(x*100) / 100 }

// CPU is the processor time of a window, by part; reports embed it.
type CPU struct {
	// Seconds by part.
	Seconds map[string]float64 `json:"cpu_s"`
	// UsPerCycle are microseconds per cycle by part, "total" among them.
	UsPerCycle map[string]float64 `json:"cpu_us_per_cycle"`
}

// NewCPU divides what was used by the number of cycles, or whatever was done.
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

// Table returns lines for people, the costliest part first; per names what the
// time was divided by, window is how long it was measured.
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
