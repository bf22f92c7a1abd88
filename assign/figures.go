package assign

import (
	"maps"
	"slices"
	"time"
)

// Bounds of what a member publishes about its work.
const (
	// MaxFigures bounds the figures of one member; of more, the first ones by
	// name are published.
	MaxFigures = 32
	// MaxFigureName bounds a figure's name, in bytes; others are left out.
	MaxFigureName = 64
)

// A pulse is what a member publishes every [Config.HeartbeatEvery].
type pulse struct {
	at      time.Time
	figures map[string]int64
}

// limitFigures keeps figures within their bounds.
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
