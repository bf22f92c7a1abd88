package task

import (
	"errors"
	"math/bits"
)

// ErrCapLeaseOver is the error of a claim under a cap lease that has ended.
var ErrCapLeaseOver = errors.New("the cap lease of a kind is over")

// A CapLease is the right to claim runs of a kind with a concurrency cap.
//
// Parts of a cap. So that a database that is slow or does not answer does not hold up the
// kind in all others, half of the cap is divided among the databases, and each may use its
// part without a lease, at any time (the demarcation protocol, Barbará & Garcia-Molina 1992,
// with fixed limits). The sum over all databases of the open runs, or of the part if that is
// more, never exceeds the cap. A lease uses what is left of the cap, in any database. If that
// is not enough, the next lease takes all parts back, database by database, before it claims,
// and a later one returns them when they are free again.
//
// A database may lend some of its part to another one, so that a kind whose tasks lie in one
// database for a while gets more than that part when there is no lease. The lender stores
// first that it has less. A lease counts the parts as they are. A database borrows only what
// was lent after its own last count, or the lease would count it nowhere. Under a lease, a
// database that has lent since it was counted claims no more than the rest of its part. What
// was lent goes back when the next lease that can count all databases takes all parts back.
type CapLease struct {
	// Epoch numbers the leases of a kind. It is 0 if another dispatcher has the lease.
	Epoch int64
	// Shared is set if each database has its part.
	Shared bool
	// Open is the number of open runs in each database, or more.
	Open [Databases]int
	// Parts are the parts that the databases have, or had when they were counted.
	Parts [Databases]int
}

// CapPart returns the part of a cap that database d may have. Databases whose parts are larger
// by one are spread over all servers: neighboring databases are often on one server, so the
// order is that of the reversed bits of d. If one of two servers hangs, the databases of the
// other one have at least one part together of each cap of 4 or more.
func CapPart(limit, d int) int {
	const width = bits.UintSize
	return (limit/2 + int(bits.Reverse(uint(d))>>(width-bits.Len(Databases-1)))) / Databases
}

// All returns the number of open runs in all databases.
func (l *CapLease) All() (n int) {
	for _, open := range l.Open {
		n += open
	}
	return n
}

// Room returns how many runs may be claimed in database d.
func (l *CapLease) Room(limit, d int) int { return l.free(limit) + l.own(d) }

// free returns how much of the cap is neither open nor part of a database.
func (l *CapLease) free(limit int) int {
	taken := 0
	for d, open := range l.Open {
		taken += max(open, l.Parts[d])
	}
	return max(limit-taken, 0)
}

// own returns how much of the part of database d is not open.
func (l *CapLease) own(d int) int { return max(l.Parts[d]-l.Open[d], 0) }

// Rooms returns how many runs may be claimed in each of some databases at the same time. What
// is no part of a database is divided among them, and the first ones get the rest.
func (l *CapLease) Rooms(limit int, databases []int) []int {
	free, rooms := l.free(limit), make([]int, len(databases))
	for i, d := range databases {
		rooms[i] = l.own(d) + (free+len(databases)-1-i)/len(databases)
	}
	return rooms
}

// Share reports whether each database can have its part after this lease. starved is set if
// the lease has found too little room. Parts that were taken back are returned when half of
// the cap is free.
func (l *CapLease) Share(limit int, starved bool) bool {
	taken := 0
	for d, open := range l.Open {
		part := CapPart(limit, d)
		taken += max(open, part)
		if l.Shared && l.Parts[d] != part {
			return false // lent, or of another cap
		}
	}
	if taken > limit || starved {
		return false
	}
	return l.Shared || l.All() <= limit/2
}
