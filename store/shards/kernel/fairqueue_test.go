package kernel

import (
	"testing"
)

// call returns a waiting call of a tenant with n entries, of size bytes in total.
func call(tenant int32, n, size int) *batchCall[int, int] {
	return &batchCall[int, int]{tenant: tenant, entries: make([]int, n), bytes: size}
}

// tenantsOf counts calls by tenant.
func tenantsOf(calls []*batchCall[int, int]) map[int32]int {
	n := map[int32]int{}
	for _, c := range calls {
		n[c.tenant]++
	}
	return n
}

func TestACallOfAnotherTenantIsInTheNextGroupHoweverManyWait(t *testing.T) {
	const flood, polite = 1, 2
	q := newFairQueue[int, int]()
	for range 1000 {
		q.push(call(flood, 1, 4<<10))
	}
	q.push(call(polite, 1, 100))
	group, full := q.take(256, 1<<20)
	if n := tenantsOf(group); n[polite] != 1 || n[flood] == 0 || !full {
		t.Errorf("the group has %v, full: %v", n, full)
	}
}

func TestSmallCallsOfATenantDoNotFillAGroupBeforeTheNextTenantsTurn(t *testing.T) {
	const flood, polite = 1, 2
	q := newFairQueue[int, int]()
	for range 5000 {
		q.push(call(flood, 1, 100))
	}
	for range 5 {
		q.push(call(polite, 1, 100))
		if group, _ := q.take(256, 1<<20); tenantsOf(group)[polite] != 1 {
			t.Fatalf("the group has %v", tenantsOf(group))
		}
	}
}

func TestATenantSavesNoTurnsWhileGroupsAreFull(t *testing.T) {
	q := newFairQueue[int, int]()
	push := func(tenant int32, n, size int) {
		for range n {
			q.push(call(tenant, 1, size))
		}
	}
	push(1, 21, 100)
	push(2, 21, 100)
	for range 300 { // each group has calls of one tenant only
		group, _ := q.take(20, 2000)
		for tenant, n := range tenantsOf(group) {
			push(tenant, n, 100)
		}
	}
	push(1, 100, quantum)
	push(2, 100, quantum)
	group, _ := q.take(1000, 64*quantum)
	if n := tenantsOf(group); n[1] < 40 || n[2] < 40 {
		t.Errorf("the group has %v: a tenant has saved its turns", n)
	}
}

func TestLargeCallsOfATenantWaitWhileOthersCome(t *testing.T) {
	const flood, polite = 1, 2
	q := newFairQueue[int, int]()
	for range 10 {
		q.push(call(flood, 1, 8*quantum))
	}
	large := 0
	for range 80 {
		q.push(call(polite, 1, 100))
		group, _ := q.take(256, 16*quantum)
		n := tenantsOf(group)
		if n[polite] != 1 {
			t.Fatalf("the group has %v", n)
		}
		large += n[flood]
	}
	if large < 5 || large > 20 {
		t.Errorf("%d calls of 8 quanta are in 80 groups, want between one in 16 and one in 4", large)
	}
}

func TestATenantThatWaitsAloneFillsGroups(t *testing.T) {
	q := newFairQueue[int, int]()
	for range 10 {
		q.push(call(1, 10, 3*quantum))
	}
	if group, full := q.take(1000, 6*quantum); len(group) != 2 || !full {
		t.Errorf("bounded by bytes: %d calls, full: %v", len(group), full)
	}
	if group, full := q.take(35, 1<<30); len(group) != 4 || !full {
		t.Errorf("bounded by entries: %d calls, full: %v", len(group), full)
	}
	if group, full := q.take(1000, 1<<30); len(group) != 4 || full {
		t.Errorf("the rest: %d calls, full: %v", len(group), full)
	}
	if !q.empty() || len(q.flows) != 0 {
		t.Error("calls remain")
	}
}
