// Package ranges reads the day calendars of tenants: from a list of days, or from the events
// of an iCalendar file (RFC 5545). The result are ranges of instants, so what uses a
// calendar knows neither time zones nor recurrence rules.
//
// Of a file it reads the components VEVENT, and of these DTSTART, DTEND, DURATION, RRULE,
// EXDATE, RECURRENCE-ID, UID and STATUS. An event with a RECURRENCE-ID replaces one
// occurrence of the event with its UID. Cancelled events count as absent. VTIMEZONE
// is not read: a TZID must be a name of the IANA database. RDATE and RANGE are refused
// rather than ignored, because a calendar without some of its days is worse than none.
//
//	days.go    lists of days
//	lines.go   the lines of a file, unfolded, as properties
//	events.go  properties as events
//	expand.go  events as ranges
package ranges
