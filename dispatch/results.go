package dispatch

import (
	"errors"
	"sync"
)

// A results collects the outcomes of the records of a call.
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
	handedOn // can never be published, and the settler was told
)

var errUnsettled = errors.New("publisher reported no outcome for the record")

func newResults(records []*record) *results {
	return &results{records: records, state: make([]resultState, len(records)), err: make([]error, len(records))}
}

// settleRecords stores the outcome of some records. It returns the newly acknowledged
// records and those that can never be published.
func (r *results) settleRecords(index []int, err error) (done []*record, never []unpublishable) {
	var u Unpublishable
	final := errors.As(err, &u) && u.Unpublishable()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range index {
		switch {
		case r.state[i] != unsettled:
		case err == nil:
			r.state[i] = acked
			done = append(done, r.records[i])
		case final:
			r.state[i] = handedOn
			never = append(never, unpublishable{r.records[i], err})
		default:
			r.state[i], r.err[i] = refused, err
		}
	}
	return done, never
}

// rest returns the indices of the records to send again, and the records whose shard was
// dropped.
func (r *results) rest() (failed []int, gone []*record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, rec := range r.records {
		switch {
		case r.state[i] == acked || r.state[i] == handedOn:
		case rec.part.dropped.Load():
			gone = append(gone, rec)
		default:
			if r.err[i] == nil {
				r.err[i] = errUnsettled
			}
			failed = append(failed, i)
		}
	}
	return failed, gone
}

// An outcome is the result of a call for one tenant.
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
