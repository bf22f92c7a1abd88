package task

import (
	"testing"
	"time"
)

func TestWhatIsNotKnownOfADiskIsNoReasonToRefuse(t *testing.T) {
	unknown := ServerSpace{Databases: []int{0}}
	if unknown.Known() || !unknown.Fits(1<<50) || unknown.Floor() != 0 {
		t.Errorf("%+v is known, or too small", unknown)
	}
}

func TestAPauseIsAsLongAsTheServerNeedsToCatchUp(t *testing.T) {
	for name, c := range map[string]struct {
		load  ServerLoad
		pause time.Duration
		why   PauseReason
	}{
		"nothing to do":                    {ServerLoad{MaxLog: 1 << 30}, 0, PauseNone},
		"as much log as a checkpoint has":  {ServerLoad{SinceCheckpoint: 1 << 30, MaxLog: 1 << 30}, 0, PauseNone},
		"log of which nothing is known":    {ServerLoad{SinceCheckpoint: 256 << 20}, 0, PauseNone},
		"more log":                         {ServerLoad{SinceCheckpoint: 1<<30 + 64<<20, MaxLog: 1 << 30}, time.Second, PauseLog},
		"a standby":                        {ServerLoad{Unreplayed: 384 << 20}, 2 * time.Second, PauseStandbys},
		"a slot that keeps what is normal": {ServerLoad{Retained: 1 << 30, MaxLog: 1 << 30}, 0, PauseNone},
		"a forgotten slot":                 {ServerLoad{Retained: 1 << 40, MaxLog: 1 << 30}, 10 * time.Second, PauseSlots},
		"the longest one counts":           {ServerLoad{Unreplayed: 320 << 20, Unarchived: 384 << 20}, 2 * time.Second, PauseArchive},
	} {
		if pause, why := c.load.Pause(); pause != c.pause || why != c.why {
			t.Errorf("%s: %s for %s, want %s for %s", name, pause, why, c.pause, c.why)
		}
	}
}
