package task

import (
	"math/rand/v2"
	"testing"
)

func TestThePartsOfACapAreHalfOfIt(t *testing.T) {
	for limit := range 1000 {
		sum := 0
		for d := range Databases {
			sum += CapPart(limit, d)
		}
		if sum != limit/2 {
			t.Fatalf("the parts of %d are %d together, want %d", limit, sum, limit/2)
		}
	}
}

// TestEachServerHasPartsOfASmallCap: neighboring databases are on one server.
func TestEachServerHasPartsOfASmallCap(t *testing.T) {
	for limit := 4; limit < 64; limit++ {
		for _, server := range []struct{ from, to int }{{0, Databases / 2}, {Databases / 2, Databases}} {
			sum := 0
			for d := server.from; d < server.to; d++ {
				sum += CapPart(limit, d)
			}
			if sum < limit/4 {
				t.Errorf("the databases %d to %d have %d of a cap of %d, want at least %d", server.from, server.to-1, sum, limit, limit/4)
			}
		}
	}
}

// capModel has the open runs of a kind, and the parts that databases have, as stored.
type capModel struct {
	limit int
	open  [Databases]int
	parts [Databases]int
	// epochs are those of the leases that have counted each database last.
	epochs [Databases]int
	epoch  int
	// taken is set if the last lease that has counted a database has taken its part back.
	taken [Databases]bool
	// lent is on the way from a database that has lent it to one that borrows it.
	lent *lentPart
	// shared is what the last lease has reported.
	shared bool
	// calm divides what the leases claim.
	calm int
}

type lentPart struct{ from, to, n, epoch int }

// TestACapIsKeptByLeasesAndByDatabasesAlone plays random leases. Databases without a lease
// use their parts between any two steps of a lease, and also while it is acquired.
func TestACapIsKeptByLeasesAndByDatabasesAlone(t *testing.T) {
	most, borrowed := 0, 0
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := &capModel{limit: 1 + rng.IntN(60), shared: rng.IntN(2) == 0, calm: 1 + rng.IntN(20)}
		for d := range m.taken {
			m.taken[d] = m.shared
		}
		for range 30 {
			m.lease(rng)
			if n, parts := m.reserved(); n > m.limit || parts > m.limit/2 {
				t.Fatalf("seed %d: open runs and parts are %d, parts alone %d, the cap is %d", seed, n, parts, m.limit)
			}
			for d := range m.open {
				m.open[d] -= rng.IntN(m.open[d] + 1) // results
			}
			most = max(most, m.all())
			for d, part := range m.parts {
				borrowed = max(borrowed, part-CapPart(m.limit, d))
			}
			if m.all() > m.limit {
				t.Fatalf("seed %d: %d runs are open, the cap is %d", seed, m.all(), m.limit)
			}
		}
	}
	if most == 0 || borrowed == 0 {
		t.Errorf("at most %d runs were open, and %d borrowed; want some", most, borrowed)
	}
}

func TestACapIsReachedInOneDatabaseWithinTwoLeases(t *testing.T) {
	for limit := 1; limit < 100; limit++ {
		m := &capModel{limit: limit, shared: true}
		for range 2 {
			l := &CapLease{Shared: m.shared, Open: m.open}
			for d := range l.Parts {
				if l.Shared {
					l.Parts[d] = CapPart(limit, d)
				}
			}
			room := l.Room(limit, 3)
			l.Open[3] += m.claim(l, 3, room, room)
			m.shared = l.Share(limit, true)
		}
		if m.all() != limit {
			t.Errorf("%d runs are open after two leases, want %d", m.all(), limit)
		}
	}
}

func (m *capModel) all() (n int) {
	for _, open := range m.open {
		n += open
	}
	return n
}

// reserved returns how much of the cap may be used without another lease, and how much of it
// is parts.
func (m *capModel) reserved() (n, parts int) {
	for d, open := range m.open {
		n += max(open, m.parts[d])
		parts += m.parts[d]
	}
	return n, parts
}

// alone lets some databases use their parts, and lend.
func (m *capModel) alone(rng *rand.Rand) {
	m.lend(rng)
	for d := range m.open {
		if room := m.parts[d] - m.open[d]; room > 0 && rng.IntN(3) == 0 {
			m.open[d] += 1 + rng.IntN(room)
		}
	}
}

// lend plays one step of a part that is lent, and begins another.
func (m *capModel) lend(rng *rand.Rand) {
	if l := m.lent; l != nil {
		if rng.IntN(8) > 0 {
			return // it takes long
		}
		m.lent = nil
		switch {
		case m.epochs[l.to] <= l.epoch && !m.taken[l.to]:
			m.parts[l.to] += l.n
		case m.epochs[l.from] == l.epoch:
			m.parts[l.from] += l.n
		}
	}
	from, to := rng.IntN(Databases), rng.IntN(Databases)
	if n := (m.parts[from] - m.open[from] + 1) / 2; n > 0 && from != to {
		m.parts[from] -= n
		m.lent = &lentPart{from, to, n, m.epochs[from]}
	}
}

// lease plays a lease. It may fail while it is acquired, and its end may not be stored.
func (m *capModel) lease(rng *rand.Rand) {
	l := &CapLease{Shared: m.shared}
	m.shared = false // until this lease has ended
	m.epoch++
	for _, d := range rng.Perm(Databases) {
		m.alone(rng)
		if rng.IntN(100) == 0 {
			m.shared = l.Shared
			return // a database does not answer
		}
		switch {
		case !l.Shared:
			m.parts[d] = 0
		case m.taken[d]:
			m.parts[d] = CapPart(m.limit, d)
		}
		m.epochs[d], m.taken[d] = m.epoch, !l.Shared
		l.Open[d], l.Parts[d] = m.open[d], m.parts[d]
	}
	starved := false
	for range 5 {
		m.alone(rng)
		starved = m.claimAtOnce(rng, l, rng.Perm(Databases)[:1+rng.IntN(4)]) || starved
	}
	if rng.IntN(10) > 0 {
		m.shared = l.Share(m.limit, starved)
	}
}

// claimAtOnce claims in several databases at the same time, under a lease. It reports whether
// one of them got no more than it could have.
func (m *capModel) claimAtOnce(rng *rand.Rand, l *CapLease, databases []int) (starved bool) {
	rooms, open := l.Rooms(m.limit, databases), l.Open
	for i, d := range databases {
		m.alone(rng)
		want := rng.IntN(m.limit/m.calm + 1)
		got := m.claim(l, d, min(want, rooms[i]), rooms[i])
		if open[d] += got; got > 0 {
			open[d] = max(open[d], m.open[d])
		}
		starved = starved || want >= rooms[i]
	}
	l.Open = open
	return starved
}

// claim claims up to n runs in a database that may claim as many as room, less what others
// have claimed there since the count.
func (m *capModel) claim(l *CapLease, d, n, room int) int {
	limit := l.Open[d] + room
	if m.parts[d] < l.Parts[d] {
		limit = min(limit, m.parts[d]) // it has lent since the count
	}
	if l.Shared {
		n = max(min(n, limit-m.open[d]), 0)
	}
	m.open[d] += n
	return n
}
