package dispatch

import (
	"errors"
	"sync"
)

// results collects what became of the records of a call.
type results struct {
	records []*record
	mu      sync.Mutex
	state   []resultState
	err     []error
}

type resultState uint8

const (
	unsettled resultState = iota
	acked
	refused
)

var errUnsettled = errors.New("the publisher said nothing about the record")

func newResults(records []*record) *results {
	return &results{records: records, state: make([]resultState, len(records)), err: make([]error, len(records))}
}

// settle notes the outcome of some records; it returns those that have been
// acknowledged by it.
func (r *results) settle(index []int, err error) []*record {
	r.mu.Lock()
	defer r.mu.Unlock()
	var done []*record
	for _, i := range index {
		if r.state[i] != unsettled {
			continue
		}
		if err != nil {
			r.state[i], r.err[i] = refused, err
			continue
		}
		r.state[i] = acked
		done = append(done, r.records[i])
	}
	return done
}

// rest returns the records to send again, those that never can be published,
// by database, and those whose shard is gone.
func (r *results) rest() (failed []int, never map[*database][]hopeless, gone []*record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	never = make(map[*database][]hopeless)
	for i, rec := range r.records {
		var u Unpublishable
		switch {
		case r.state[i] == acked:
		case rec.part.dropped.Load():
			gone = append(gone, rec)
		case errors.As(r.err[i], &u) && u.Unpublishable():
			never[rec.part.db] = append(never[rec.part.db], hopeless{rec, r.err[i]})
		default:
			if r.err[i] == nil {
				r.err[i] = errUnsettled
			}
			failed = append(failed, i)
		}
	}
	return failed, never, gone
}

// outcome is what a call did for one tenant.
type outcome struct {
	acked  int
	failed []*record
	err    error
}

func (r *results) byTenant(failed []int) map[int32]outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := make(map[int32]outcome)
	for i, rec := range r.records {
		o := m[rec.pub.Tenant]
		if r.state[i] == acked {
			o.acked++
		}
		m[rec.pub.Tenant] = o
	}
	for _, i := range failed {
		o := m[r.records[i].pub.Tenant]
		o.failed, o.err = append(o.failed, r.records[i]), r.err[i]
		m[r.records[i].pub.Tenant] = o
	}
	return m
}
