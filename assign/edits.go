package assign

import (
	"maps"
	"slices"
)

// Drain lets those members have nothing. They hand over what they have, and
// stay. Already drained ones are no error.
func (s *Strategy) Drain(who ...string) {
	s.Drained = slices.Compact(slices.Sorted(slices.Values(slices.Concat(s.Drained, who))))
}

// Undrain ends [Strategy.Drain].
func (s *Strategy) Undrain(who ...string) {
	s.Drained = slices.DeleteFunc(s.Drained, func(name string) bool { return slices.Contains(who, name) })
}

// Pin lets only the named have the items.
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

// PauseItems takes the items from their owners, and gives them to nobody.
func (s *Strategy) PauseItems(ids ...int) {
	s.PausedItems = compactIDs(slices.Concat(s.PausedItems, ids))
}

// ResumeItems ends [Strategy.PauseItems].
func (s *Strategy) ResumeItems(ids ...int) {
	s.PausedItems = slices.DeleteFunc(s.PausedItems, func(id int) bool { return slices.Contains(ids, id) })
}

// ParseItems reads item ids written as ascending ranges: "0-31,40".
func ParseItems(text string) ([]int, error) { return parseIDs(text) }

// FormatItems writes item ids as ParseItems reads them.
func FormatItems(ids []int) string { return formatIDs(ids) }

// JSON is the strategy as it is stored, items as ranges.
func (s *Strategy) JSON() []byte { return encodeStrategy(s) }
