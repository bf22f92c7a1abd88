package task

import "time"

// Ahead says when the runs of a tenant may be published before they are due. All its listeners must hold runs then: a
// listener that calls handlers as soon as records come would call them too early. So listeners that do not hold runs are
// refused, and the times make sure that none of them still reads when the first run comes ahead, or reads before the last one
// has come. They are by the databases' clock, which may differ by half a minute between databases, and as a process knows it. The zero value is never.
type Ahead struct {
	// From is when it begins. 0: it does not.
	From Instant `json:"from,omitempty"`
	// Until is when it ends. 0: that is not decided.
	Until Instant `json:"until,omitempty"`
}

const (
	// AheadAfter is how long a listener may read that was not refused when runs were to be published ahead, and more: 55 s after
	// it was answered for the last time, by a taskd that went by what it had known for up to 35 s.
	AheadAfter = 150 * time.Second
	// aheadEnds is how long runs may come ahead after that has ended, and more: dispatchers go by what they have known for up to
	// 10 s, and what they publish then is due within 2.5 s.
	aheadEnds = 60 * time.Second
)

// StartAhead returns that runs are published ahead as soon as listeners that do not hold them have stopped.
func StartAhead(now Instant) Ahead { return Ahead{From: now.Add(AheadAfter)} }

// EndAhead returns that runs are not published ahead any more.
func EndAhead(now Instant) Ahead { return Ahead{Until: now} }

// On reports whether runs are to be published ahead, now or soon.
func (a Ahead) On() bool { return a.From != 0 && a.Until == 0 }

// Covers reports whether runs may be published ahead now.
func (a Ahead) Covers(now Instant) bool { return a.On() && now >= a.From }

// Ending returns how long runs may still be published ahead although that has ended.
func (a Ahead) Ending(now Instant) time.Duration {
	if a.Until == 0 {
		return 0
	}
	return max(a.Until.Add(aheadEnds).Sub(now), 0)
}

// changed returns a with a change. What is on or off already does not change. The end counts even if runs have not come ahead yet: a
// dispatcher may still go by an earlier setting by which they do, or its database's clock may say so.
func (a Ahead) changed(to Ahead) Ahead {
	if a.On() == to.On() {
		return a
	}
	return to
}
