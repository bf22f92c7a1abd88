package task

import "testing"

func TestFiltersMayShareATaskUnlessWhatNeverChangesDiffers(t *testing.T) {
	for name, c := range map[string]struct {
		a, b Filter
		want bool
	}{
		"all and all":            {Filter{}, Filter{}, true},
		"all and a kind":         {Filter{}, Filter{Kind: "a"}, true},
		"two kinds":              {Filter{Kind: "a"}, Filter{Kind: "b"}, false},
		"two types":              {Filter{Type: OneShot}, Filter{Type: Blocking}, false},
		"two tasks":              {Filter{Task: 1}, Filter{Task: 2}, false},
		"two backfills":          {Filter{Backfill: 1}, Filter{Backfill: 2}, false},
		"two tags":               {Filter{Tags: []string{"a"}}, Filter{Tags: []string{"b"}}, true},
		"two states":             {Filter{State: Scheduled}, Filter{State: Running}, true},
		"due at two times":       {Filter{DueUntil: 5}, Filter{DueFrom: 5}, true},
		"added one after other":  {Filter{AddedUntil: 5}, Filter{AddedFrom: 5}, false},
		"added at the same time": {Filter{AddedUntil: 6}, Filter{AddedFrom: 5}, true},
	} {
		if got, back := c.a.MayShare(&c.b), c.b.MayShare(&c.a); got != c.want || back != c.want {
			t.Errorf("%s: %t, in the other order %t, want %t", name, got, back, c.want)
		}
	}
}
