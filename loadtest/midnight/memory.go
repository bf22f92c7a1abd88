package midnight

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// Room is how much more memory a program may have resident during the burst than
// before it: it holds at most 64 MiB of what is under way, and some 32 MiB of
// bookkeeping, and its collector lets the heap grow to five times what lives.
const Room = 5 * (64 + 32) << 20

const memoryEvery = time.Second

// memory looks at the programs once a second.
type memory struct {
	pids  map[string]func() int
	looks []look
}

type look struct {
	at       time.Time
	resident map[string]int64 // bytes, by program
	peak     map[string]int64
}

// watch looks until ctx ends. The first look is that before the burst.
func (m *memory) watch(ctx context.Context) {
	for {
		l := look{at: time.Now(), resident: map[string]int64{}, peak: map[string]int64{}}
		for name, pid := range m.pids {
			if now, peak, err := subprocess.Memory(pid()); err == nil {
				l.resident[name], l.peak[name] = now, peak
			}
		}
		m.looks = append(m.looks, l)
		if harness.SleepUntil(ctx, l.at.Add(memoryEvery)) != nil {
			return
		}
	}
}

// Memory is what a program had resident, in MiB.
type Memory struct {
	Before float64 `json:"before_mib"`
	Peak   float64 `json:"peak_mib"`
	Bound  float64 `json:"bound_mib"`
}

// Bounded reports whether the program kept to its room.
func (m Memory) Bounded() bool { return m.Peak > 0 && m.Peak <= m.Bound }

func (m *memory) report() map[string]Memory {
	out := map[string]Memory{}
	for name := range m.pids {
		before, peak := int64(0), int64(0)
		for _, l := range m.looks {
			if before == 0 {
				before = l.resident[name]
			}
			peak = max(peak, l.peak[name])
		}
		// What it had ever had before, as for adding, is no matter of the burst.
		bound := max(before, m.looks[0].peak[name]) + Room
		out[name] = Memory{Before: mib(before), Peak: mib(peak), Bound: mib(bound)}
	}
	return out
}

func (m *memory) names() []string { return slices.Sorted(maps.Keys(m.pids)) }

func mib(bytes int64) float64 { return harness.Round(float64(bytes) / (1 << 20)) }

// kindOf is a part's name without its number.
func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, "-")
	return kind
}
