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
	obsolete // need not be published
)

var errUnsettled = errors.New("publisher reported no outcome for the record")

func newResults(records []*record) *results {
	return &results{records: records, state: make([]resultState, len(records)), err: make([]error, len(records))}
}

// A settlement holds the records that were settled for good: acknowledged ones, those that need
// not be published, and those that can never be published.
type settlement struct {
	acked, obsolete []*record
	never           []unpublishable
}

// settleRecords stores the outcome of some records. It returns those that are newly settled for
// good.
func (r *results) settleRecords(index []int, err error) (s settlement) {
	state := outcomeOf(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range index {
		if r.state[i] != unsettled {
			continue
		}
		r.state[i] = state
		switch state {
		case acked:
			s.acked = append(s.acked, r.records[i])
		case obsolete:
			s.obsolete = append(s.obsolete, r.records[i])
		case handedOn:
			s.never = append(s.never, unpublishable{r.records[i], err})
		default:
			r.err[i] = err
		}
	}
	return s
}

// outcomeOf returns the state of records with the error.
func outcomeOf(err error) resultState {
	var u Unpublishable
	var o Obsolete
	switch {
	case err == nil:
		return acked
	case errors.As(err, &u) && u.Unpublishable():
		return handedOn
	case errors.As(err, &o) && o.Obsolete():
		return obsolete
	}
	return refused
}

// rest returns the indices of the records to send again, and the records whose shard was
// dropped.
func (r *results) rest() (failed []int, gone []*record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, rec := range r.records {
		switch {
		case r.state[i] == acked || r.state[i] == handedOn || r.state[i] == obsolete:
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
	acked, obsolete int
	failed          []*record
	err             error
}

func (r *results) byTenant(failed []int) map[int32]outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := make(map[int32]outcome)
	for i, rec := range r.records {
		o := m[rec.pub.Tenant]
		switch r.state[i] {
		case acked:
			o.acked++
		case obsolete:
			o.obsolete++
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
