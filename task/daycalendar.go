package task

// MissingCalendar is a calendar that a task names and that is not known. The zero value
// means that all are known.
type MissingCalendar struct {
	Name string
	// Reading is true if it has just been asked for, so that it may soon be known.
	Reading bool
}

// A DayCalendar is a named set of ranges of a tenant.
type DayCalendar struct {
	Name string
	// Zone is the IANA name of the time zone in which its days were read.
	Zone string
	// Version begins with 1 and rises by one with each change.
	Version   int32
	UpdatedAt Instant
	// ExpandedUntil is the instant until which recurring events were expanded. Never means
	// that it has none.
	ExpandedUntil Instant
	// Count is the number of ranges. Ranges are merged; a list of calendars leaves them out.
	Count  int
	Ranges []Range
}
