// Package schedule computes when a cron expression or a recurrence rule fires. It is pure: no clock,
// no I/O, no goroutines. [Parse] returns an immutable [Cron], and [Cron.Next]
// returns the first instant after a given one.
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
// must match either of them. If one of them begins with *, even as */2, a day
// must match both. H is a value determined by a hash of [Options.HashKey]: H
// anywhere in the field, H(a-b) within a range; in H/n and H(a-b)/n it is the
// start of the steps.
//
// [Quartz] has six fields, or seven:
//
//	second 0-59, minute 0-59, hour 0-23, day of month 1-31, month 1-12, day of week 1-7 (1 is Sunday) [year 1970-2099]
//
// with the same elements. Ranges may wrap around (FRI-MON, 22-2), except those
// of years, and /n is */n. One of the two day fields must be ?, and the other
// one decides. A day of month may be L (the last day), L-n (n days before it),
// nW (the weekday nearest to day n within the month), LW, L-nW. A day of week
// may be nL (the last such day of the month), n#k (the k-th), L (Saturday).
//
// [Named] has @yearly, @annually, @monthly, @weekly, @daily, @midnight and
// @hourly. @every is an interval: see [ParseEvery].
//
// [RRule] is a recurrence rule of RFC 5545 with its start, separated by blanks
// or ends of lines:
//
//	DTSTART:20260105T090000 RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR
//
// The start is by the clock of the time zone. All parts of a rule are there:
// FREQ, INTERVAL, COUNT, UNTIL, BYSECOND, BYMINUTE, BYHOUR, BYDAY, BYMONTHDAY,
// BYYEARDAY, BYWEEKNO, BYMONTH, BYSETPOS and WKST.
//
// Parsing is strict: anything without a meaning in the grammar is refused, with
// the field, the value, the rule and the position. An expression cannot change
// the time zone.
//
// # Daylight saving
//
// Local time is a clock that is set forward and back. One rule applies to all
// dialects; it is that of Debian's cron:
//
//   - An expression follows elapsed time if its second, minute or hour field
//     begins with * or is a step (a/n, without an end). It fires at each instant
//     whose local time matches: not in a gap, and again in the second pass of an
//     overlap.
//     So does a recurrence rule of hours, minutes or seconds.
//   - Any other expression follows the clock: each local time that it names fires
//     once. In an overlap it fires in the first pass. All local times in a gap fire
//     together, once, at the first instant after the gap.
//
// # How it is computed
//
// A zone is a table of segments with a constant offset ([zone]). Within a
// segment the next match is found by arithmetic on the fields ([Cron.match]),
// from the year down to the second, without trying every second: each field is
// a bit set, and a month is one word of days.
//
// A recurrence rule has the matching days of each kind of year as a set, and its
// periods are found by division ([Cron.matchRule]). Its start and end are
// instants, found when it is parsed: UNTIL, or the instant number COUNT.
//
// An expression that follows elapsed time searches segment after segment until
// one has a match. For an expression that follows the clock, each local time is
// compared with the latest one that the zone's clock has shown before: only
// later local times count. This high-water mark never decreases. So one search
// maps local time to instants, including gaps and overlaps, and the set of
// instants does not depend on where a search begins.
//
// The last instants are in the year [LastYear]. The zone data is embedded in
// this package and does not depend on the machine: see [ZoneDataVersion].
package schedule
