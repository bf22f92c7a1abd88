package midnight

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/loadtest/harness"
)

const (
	maxDeviation = 0.05
	perPart      = 10_000 // calls
	maxParts     = 60
	maxRise      = 0.1 // of the peak of lateness
	leastRise    = 1.0 // s
)

// Part is an equal part of the window.
type Part struct {
	FromS float64 `json:"from_s"`
	ToS   float64 `json:"to_s"`
	// Scheduled counts the runs whose instant lies in it, Fires those that were
	// called in it.
	Scheduled int64 `json:"scheduled"`
	Fires     int64 `json:"fires"`
}

// partition returns the parts of a window that n tasks are spread over.
func partition(n int64, window time.Duration) []Part {
	parts := make([]Part, min(max(n/perPart, 2), maxParts))
	length := window.Seconds() / float64(len(parts))
	for i := range parts {
		parts[i] = Part{FromS: float64(i) * length, ToS: float64(i+1) * length}
	}
	return parts
}

// partAt returns the part that an instant lies in; calls after the window, of runs
// that are due at its very end, count in the last one.
func partAt(parts []Part, s float64) *Part {
	length := parts[0].ToS
	return &parts[min(max(int(s/length), 0), len(parts)-1)]
}

// Flatness says how much the parts differ.
type Flatness struct {
	// Scheduled and Fires are the largest deviations from the mean, as shares.
	Scheduled float64 `json:"scheduled"`
	Fires     float64 `json:"fires"`
	Flat      bool    `json:"flat"`
}

func judgeParts(parts []Part) Flatness {
	f := Flatness{
		Scheduled: deviation(parts, func(p Part) int64 { return p.Scheduled }),
		Fires:     deviation(parts, func(p Part) int64 { return p.Fires }),
	}
	f.Flat = f.Fires <= maxDeviation && f.Scheduled <= maxDeviation
	return f
}

// deviation returns the largest distance of a part from the mean, as a share of it.
func deviation(parts []Part, of func(Part) int64) float64 {
	total := int64(0)
	for _, p := range parts {
		total += of(p)
	}
	mean, most := float64(total)/float64(len(parts)), 1.0
	if total > 0 {
		most = 0
		for _, p := range parts {
			most = max(most, math.Abs(float64(of(p))/mean-1))
		}
	}
	return math.Round(most*1e4) / 1e4
}

// Fall says how the lateness of the others went from its peak on.
type Fall struct {
	PeakS  float64 `json:"peak_s"`   // the highest median of a second
	PeakAt int     `json:"peak_at"`  // seconds after the instant
	Rise   float64 `json:"rise_s"`   // the most that it went up again
	LastS  float64 `json:"last_s"`   // in the last second
	Room   float64 `json:"may_be_s"` // what rise and last may be
	// Faults say what was not steady.
	Faults []string `json:"faults,omitempty"`
	Steady bool     `json:"steady"`
}

// judgeFall takes the median lateness of the others by the second that they were
// due in, from the instant on. What is no number had none.
func judgeFall(medians []float64) Fall {
	var f Fall
	medians = slices.Clone(medians)
	for i, m := range medians {
		if m > f.PeakS {
			f.PeakS, f.PeakAt = m, i
		}
	}
	f.Room = max(leastRise, maxRise*f.PeakS)
	lowest, seen := math.Inf(1), 0
	for _, m := range medians[min(f.PeakAt, len(medians)):] {
		if math.IsNaN(m) {
			continue
		}
		seen++
		f.Rise, f.LastS = max(f.Rise, m-lowest), m
		lowest = min(lowest, m)
	}
	if seen < 2 {
		f.Faults = append(f.Faults, "fewer than two seconds have others in them")
	}
	if f.Rise > f.Room {
		f.Faults = append(f.Faults, fmt.Sprintf("it went up again by %.1f s, more than %.1f s", f.Rise, f.Room))
	}
	if f.LastS > f.Room {
		f.Faults = append(f.Faults, fmt.Sprintf("it was still %.1f s in the last second, more than %.1f s", f.LastS, f.Room))
	}
	f.Steady = len(f.Faults) == 0
	return f
}

// Room is how much more memory a program may have resident during the burst than
// before it. It holds at most 64 MiB of records under way and some 32 MiB of
// bookkeeping, and its collector lets the heap grow to five times the live size.
const Room = 5 * (64 + 32) << 20

const memoryEvery = time.Second

// memory samples the resident memory of programs.
type memory struct {
	pids    map[string]func() int
	samples []memorySample
}

type memorySample struct {
	at             time.Time
	resident, peak map[string]int64 // bytes, by program
}

// look takes a sample. The first one is from before the burst.
func (m *memory) look() {
	s := memorySample{at: time.Now(), resident: map[string]int64{}, peak: map[string]int64{}}
	for name, pid := range m.pids {
		if now, peak, err := subprocess.Memory(pid()); err == nil {
			s.resident[name], s.peak[name] = now, peak
		}
	}
	m.samples = append(m.samples, s)
}

// Memory is what a program had resident, in MiB.
type Memory struct {
	Before float64 `json:"before_mib"`
	Peak   float64 `json:"peak_mib"`
	Bound  float64 `json:"bound_mib"`
}

// Bounded reports whether the program stayed within its bound.
func (m Memory) Bounded() bool { return m.Peak > 0 && m.Peak <= m.Bound }

func (m *memory) report() map[string]Memory {
	out := map[string]Memory{}
	for name := range m.pids {
		before, peak := int64(0), int64(0)
		for _, s := range m.samples {
			if before == 0 {
				before = s.resident[name]
			}
			peak = max(peak, s.peak[name])
		}
		// An earlier peak, such as that of adding, is not the burst's.
		bound := max(before, m.samples[0].peak[name]) + Room
		out[name] = Memory{Before: mib(before), Peak: mib(peak), Bound: mib(bound)}
	}
	return out
}

func (m *memory) names() []string { return slices.Sorted(maps.Keys(m.pids)) }

func mib(bytes int64) float64 { return harness.Round(float64(bytes) / (1 << 20)) }
