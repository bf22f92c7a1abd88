package shards

import (
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

const (
	// slowCheck is how long checks wait in databases that are too busy. Otherwise they wait for at most 48 ms until
	// their group begins, and for the some milliseconds that it takes. Two cores that were asked for 1.3 times of
	// what they could do had waits of 75 to 175 ms.
	slowCheck = 60 * time.Millisecond
	// lateResults is how late the results of an overloaded installation are taken to be. Listeners check runs that are
	// late by a second, so it is at least that.
	lateResults = 3 * time.Second
	// paceFor is how long a measured pace is used.
	paceFor = 100 * time.Millisecond
)

// pacing is a pace that was measured at an instant.
type pacing struct {
	at time.Time
	task.Pace
}

// ResultPace returns the pace of results while runs are late because this process and the databases are too
// busy to answer listeners; otherwise the zero value. It is up to paceFor old, so it costs nothing to ask for each add.
func (s *Store) ResultPace() task.Pace {
	now := time.Now()
	last := s.pace.Load()
	if last == nil || now.Sub(last.at) > paceFor {
		last = &pacing{now, s.measurePace()}
		s.pace.Store(last)
	}
	return last.Pace
}

func (s *Store) measurePace() task.Pace {
	var checks, results int
	var waits []time.Duration
	for _, db := range s.dbs {
		if n, wait := db.checks.Waits(); n > 0 {
			checks, waits = checks+n, append(waits, wait)
		}
		plain, _ := db.reports.Waits()
		capped, _ := db.cappedReports.Waits()
		results += plain + capped
	}
	return paceOf(checks, results, waits)
}

// paceOf returns the pace of results by what was counted in a second. Two signs together say that too much is asked
// for. Listeners check at least a quarter as many runs as they report: they check late ones. And the checks wait
// long, so it is not the handlers that are slow. The waits of the databases are judged by their lower quartile: a
// server that hangs makes those of its own databases long.
func paceOf(checks, results int, waits []time.Duration) task.Pace {
	if checks == 0 || 4*checks < results {
		return task.Pace{}
	}
	slices.Sort(waits)
	if waits[len(waits)/4] < slowCheck {
		return task.Pace{}
	}
	return task.Pace{Late: lateResults, PerSecond: float64(max(results, checks))}
}
