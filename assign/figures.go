package assign

import (
	"maps"
	"slices"
	"time"
)

// Bounds of the figures that a member publishes.
const (
	// MaxFigures is the maximum number of figures of one member. Of more
	// figures the first ones by name are published.
	MaxFigures = 32
	// MaxFigureName is the maximum length of a figure's name, in bytes. Figures
	// with longer names are left out.
	MaxFigureName = 64
)

// A heartbeat is what a member publishes every [Config.HeartbeatEvery].
type heartbeat struct {
	at      time.Time
	figures map[string]int64
}

// limitFigures enforces the bounds of figures.
func limitFigures(figures map[string]int64) map[string]int64 {
	if len(figures) == 0 {
		return nil
	}
	kept := make(map[string]int64, min(len(figures), MaxFigures))
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		if name != "" && len(name) <= MaxFigureName && len(kept) < MaxFigures {
			kept[name] = figures[name]
		}
	}
	return kept
}
