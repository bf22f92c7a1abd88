package assign

import (
	"maps"
	"slices"
)

// Drain drains members: they hand over their items and stay connected. Draining
// a drained member has no effect.
func (s *Strategy) Drain(names ...string) {
	s.Drained = slices.Compact(slices.Sorted(slices.Values(slices.Concat(s.Drained, names))))
}

// Undrain ends [Strategy.Drain].
func (s *Strategy) Undrain(names ...string) {
	s.Drained = slices.DeleteFunc(s.Drained, func(name string) bool { return slices.Contains(names, name) })
}

// Pin restricts items to the members that the name matches.
func (s *Strategy) Pin(who string, ids ...int) {
	if s.Pins == nil {
		s.Pins = map[int]string{}
	}
	for _, id := range ids {
		s.Pins[id] = who
	}
}

// Unpin ends [Strategy.Pin].
func (s *Strategy) Unpin(ids ...int) {
	maps.DeleteFunc(s.Pins, func(id int, _ string) bool { return slices.Contains(ids, id) })
}

// PauseItems pauses items: their owners release them, and they get no owner.
func (s *Strategy) PauseItems(ids ...int) {
	s.PausedItems = compactIDs(slices.Concat(s.PausedItems, ids))
}

// ResumeItems ends [Strategy.PauseItems].
func (s *Strategy) ResumeItems(ids ...int) {
	s.PausedItems = slices.DeleteFunc(s.PausedItems, func(id int) bool { return slices.Contains(ids, id) })
}

// ParseItems parses item ids written as ascending ranges, such as "0-31,40".
func ParseItems(text string) ([]int, error) { return parseIDs(text) }

// FormatItems formats item ids in the form that ParseItems reads.
func FormatItems(ids []int) string { return formatIDs(ids) }

// JSON returns the strategy in its stored form, with items as ranges.
func (s *Strategy) JSON() []byte { return encodeStrategy(s) }
