// Package timingspec holds docs/timing.md against the real stack, on a virtual clock:
// each story of its tests cites the sentences that it shows, as "timing: T1.1".
// Tests elsewhere may cite sentences, too; each sentence must be cited.
package timingspec
