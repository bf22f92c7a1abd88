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
//
// A database may lend some of its part to another one, so that a kind whose tasks lie in one
// database for a while gets more than that part when there is no lease. The lender stores
// first that it has less. A lease that counts a borrower takes what it has borrowed, and
// while it counts it gives the lender nothing: it may fail before it has counted the
// borrower. (If the last lease has taken all parts back, nobody has lent, and it gives each
// database its part at once.) It returns what is missing, and not in use by a borrower, after it has counted all databases. A database
// borrows only what was lent after its own last count, or the lease would return it twice.
// Under a lease, a database that has lent since it was counted claims no more than the rest of
// its part.
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

// Return returns which of the missing parts the databases get back. A part that a borrower
// still uses is not returned.
func (l *CapLease) Return(limit int, missing [Databases]int) (parts [Databases]int) {
	reserved := 0
	for d, open := range l.Open {
		reserved += max(open, CapPart(limit, d)-missing[d])
	}
	for d, open := range l.Open {
		more := max(open, CapPart(limit, d)) - max(open, CapPart(limit, d)-missing[d])
		if missing[d] > 0 && reserved+more <= limit {
			parts[d] = missing[d]
			reserved += more
		}
	}
	return parts
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
