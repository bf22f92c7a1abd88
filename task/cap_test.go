package task

import (
	"math/rand/v2"
	"testing"
)

func TestThePartsOfACapAreThreeQuartersOfIt(t *testing.T) {
	for limit := range 1000 {
		sum := 0
		for d := range Databases {
			sum += CapPart(limit, d)
		}
		if sum != limit*3/4 {
			t.Fatalf("the parts of %d are %d together, want %d", limit, sum, limit*3/4)
		}
	}
}

// capModel has the open runs of a kind, and the parts that databases have, as stored.
type capModel struct {
	limit int
	open  [Databases]int
	parts [Databases]int
	// shared is what the last lease has reported.
	shared bool
}

// TestACapIsKeptByLeasesAndByDatabasesAlone plays random leases. Databases without a lease
// use their parts between any two steps of a lease, and also while it is acquired.
func TestACapIsKeptByLeasesAndByDatabasesAlone(t *testing.T) {
	most := 0
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := &capModel{limit: 1 + rng.IntN(60)}
		for range 30 {
			m.lease(rng)
			for d := range m.open {
				m.open[d] -= rng.IntN(m.open[d] + 1) // results
			}
			most = max(most, m.all())
			if m.all() > m.limit {
				t.Fatalf("seed %d: %d runs are open, the cap is %d", seed, m.all(), m.limit)
			}
		}
	}
	if most == 0 {
		t.Error("nothing was claimed")
	}
}

func TestACapIsReachedInOneDatabaseWithinTwoLeases(t *testing.T) {
	for limit := 1; limit < 100; limit++ {
		m := &capModel{limit: limit, shared: true}
		for range 2 {
			l := &CapLease{Shared: m.shared, Open: m.open}
			room := l.Room(limit, 3)
			l.Open[3] += m.claim(l, 3, room)
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

// alone lets some databases use their parts.
func (m *capModel) alone(rng *rand.Rand) {
	for d := range m.open {
		if room := m.parts[d] - m.open[d]; room > 0 && rng.IntN(3) == 0 {
			m.open[d] += 1 + rng.IntN(room)
		}
	}
}

// lease plays a lease. It may fail while it is acquired, and its end may not be stored.
func (m *capModel) lease(rng *rand.Rand) {
	l := &CapLease{Shared: m.shared}
	m.shared = false // until this lease has ended
	for d := range m.open {
		m.alone(rng)
		if rng.IntN(200) == 0 {
			m.shared = l.Shared
			return // a database does not answer
		}
		m.parts[d] = 0
		if l.Shared {
			m.parts[d] = CapPart(m.limit, d)
		}
		l.Open[d] = m.open[d]
	}
	starved := false
	for range 5 {
		m.alone(rng)
		d := rng.IntN(Databases)
		room := l.Room(m.limit, d)
		want := rng.IntN(m.limit + 1)
		got := m.claim(l, d, min(want, room))
		l.Open[d] += got
		starved = starved || want >= room
	}
	if rng.IntN(10) > 0 {
		m.shared = l.Share(m.limit, starved)
	}
}

// claim claims n runs in a database, or none if others have claimed there since the count.
func (m *capModel) claim(l *CapLease, d, n int) int {
	if l.Shared && m.open[d]+n > l.Open[d]+l.Room(m.limit, d) {
		return 0
	}
	m.open[d] += n
	return n
}
