// Package schedule says when a cron expression fires. It is pure: no clock, no
// I/O, no goroutines. [Parse] makes an immutable [Cron], and [Cron.Next] answers
// with the first instant after a given one.
//
// # The dialects
//
// [Standard] has five fields, or six with seconds in front:
//
//	[second 0-59] minute 0-59, hour 0-23, day of month 1-31, month 1-12, day of week 0-7
//
// A field is a list of elements: *, a value, a range a-b, and each with a step:
// */n, a/n (from a to the field's end), a-b/n. JAN to DEC and SUN to SAT are
// values; 0 and 7 are both Sunday. If both day fields are restricted, a day
// that matches either is meant; if one of them begins with *, even as */2, a day
// must match both. H is a value picked by a hash of [Options.HashKey]: H anywhere
// in the field, H(a-b) within a range, H/n and H(a-b)/n where the steps begin.
//
// [Quartz] has six fields, or seven:
//
//	second 0-59, minute 0-59, hour 0-23, day of month 1-31, month 1-12, day of week 1-7 (1 is Sunday) [year 1970-2099]
//
// with the same elements; ranges may wrap around (FRI-MON, 22-2), except those of
// years, and /n is */n. One of the two day fields is ?, and the other decides. A day of month may be
// L (the last day), L-n (n days before it), nW (the weekday nearest to day n
// within the month), LW, L-nW. A day of week may be nL (the last such day of the
// month), n#k (the k-th), L (Saturday).
//
// [Named] has @yearly, @annually, @monthly, @weekly, @daily, @midnight and
// @hourly. @every is an interval: see [ParseEvery].
//
// All are read strictly: what the grammar does not give a meaning to is refused,
// with the field, the value, the rule and the position. Nothing in an expression
// can change the zone.
//
// # Daylight saving
//
// Local time is a clock that somebody sets forward and back. One rule serves all
// dialects; it is that of Debian's cron:
//
//   - An expression goes by elapsed time if its second, minute or hour field
//     begins with * or is a step (a/n, without an end). It fires at each instant whose
//     local time matches: not in a gap, and again in the second pass of an overlap.
//   - Any other expression goes by the clock: each local time that it names fires once.
//     In an overlap that is the first pass. Local times in a gap fire together, once,
//     at the first instant after it.
//
// # How it is computed
//
// A zone is a table of segments with a constant offset ([zone]). Within a
// segment the next match is found by arithmetic on the fields ([Cron.match]),
// from the year down to the second, without trying one second after the other:
// each field is a set of bits, and a month is one word of days.
//
// By elapsed time, the segments are walked until one holds a match. By the clock,
// each local time is compared with the latest one that any clock of the zone has
// shown before: local times only count where they go beyond it. This high-water
// mark never falls, so local time is mapped to instants by one search, gaps and
// overlaps included, and the set of instants does not depend on where a search
// begins.
//
// Instants end with the year [LastYear]. The zones are the ones embedded here,
// whatever the machine has: see [ZoneDataVersion].
package schedule
