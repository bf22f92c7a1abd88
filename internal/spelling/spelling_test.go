package spelling

import "testing"

func TestADistanceCountsLettersToInsertDeleteAndReplace(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"kind", "kind", 0}, {"kidn", "kind", 2}, {"kin", "kind", 1}, {"kitten", "sitting", 3}, {"interval", "intervals", 1}} {
		if there, back := Distance(c.a, c.b), Distance(c.b, c.a); there != c.want || back != c.want {
			t.Errorf("%q and %q: %d there and %d back, want %d", c.a, c.b, there, back, c.want)
		}
	}
}
