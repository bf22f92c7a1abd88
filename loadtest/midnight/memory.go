package midnight

import (
	"maps"
	"slices"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/loadtest/harness"
)

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
