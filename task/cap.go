package task

// A CapLease is the right to claim runs of a kind with a concurrency cap.
//
// Parts of a cap. So that a database that does not answer does not stop the kind in all
// others, most of the cap is divided among the databases, and each may use its part without
// a lease (the demarcation protocol, Barbará & Garcia-Molina 1992, with fixed limits). The
// sum over all databases of the open runs, or of the part if that is more, never exceeds the
// cap. A lease uses what is left of the cap, in any database. If that is not enough, the next
// lease takes all parts back, database by database, before it claims, and a later one
// returns them when they are free again.
type CapLease struct {
	// Epoch numbers the leases of a kind. It is 0 if another dispatcher has the lease.
	Epoch int64
	// Shared is set if each database has its part.
	Shared bool
	// Open is the number of open runs in each database, or more.
	Open [Databases]int
}

// CapPart returns the part of a cap that database d may have.
func CapPart(limit, d int) int { return (limit*3/4 + d) / Databases }

// All returns the number of open runs in all databases.
func (l *CapLease) All() (n int) {
	for _, open := range l.Open {
		n += open
	}
	return n
}

// Room returns how many runs may be claimed in database d.
func (l *CapLease) Room(limit, d int) int {
	if !l.Shared {
		return max(limit-l.All(), 0)
	}
	return max(limit-l.taken(limit), 0) + max(CapPart(limit, d)-l.Open[d], 0)
}

// taken returns how much of the cap open runs and parts take.
func (l *CapLease) taken(limit int) (n int) {
	for d, open := range l.Open {
		n += max(open, CapPart(limit, d))
	}
	return n
}

// Share reports whether each database can have its part after this lease. starved is set if
// the lease has found too little room. Parts that were taken back are returned when half of
// the cap is free.
func (l *CapLease) Share(limit int, starved bool) bool {
	if l.taken(limit) > limit || starved {
		return false
	}
	return l.Shared || l.All() <= limit/2
}
