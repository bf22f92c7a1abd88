package migrations

import "testing"

func TestAProgramWorksOnTheSchemasOfTheReleasesBesideIt(t *testing.T) {
	const first = FirstRelease
	for _, c := range []struct {
		version, latest int64
		works           bool
	}{
		{0, first, false}, // no schema
		{first - 1, first, false},
		{first, first, true},
		{first + 1, first, true},
		{first + 2, first, false},
		{first, first + 1, true},
		{first, first + 2, false},
		{first + 1, first + 2, true},
	} {
		if got := works(c.version, c.latest); got != c.works {
			t.Errorf("a program of version %d on a schema of version %d: %v, want %v", c.latest, c.version, got, c.works)
		}
	}
}
