package testenv

import "time"

// workUnits take an idle processor of the kind that the tests were written on about referenceTime.
const (
	workUnits     = 30_000_000
	referenceTime = 60 * time.Millisecond
)

// Slowness returns how many times longer computing takes now than on the idle machine for which tests set their
// limits, from 1 to 10. A test of what is promised within a time multiplies that time by it: others' work on the
// machine is not what it judges. It takes 50 ms on that machine, and is safe for concurrent use.
func Slowness() float64 {
	begun := time.Now()
	sum := uint64(1)
	for range workUnits {
		sum ^= sum << 13
		sum ^= sum >> 7
		sum ^= sum << 17
	}
	took := time.Since(begun)
	if sum == 0 { // never, but the compiler does not know
		return 1
	}
	return min(max(1, float64(took)/float64(referenceTime)), 10)
}

// Within returns what d is on a machine that is as slow as this one now.
func Within(d time.Duration) time.Duration { return time.Duration(float64(d) * Slowness()) }
