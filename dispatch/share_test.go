package dispatch

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// TestWhoWasAheadGetsLessUntilAllHaveGotTheirShare: what claims of the front have
// taken of a tenant before it was held apart counts.
func TestWhoWasAheadGetsLessUntilAllHaveGotTheirShare(t *testing.T) {
	rates := map[int32]task.Rates{3: {Weight: 2}}
	a := newApart(nil, &Events{})
	got := map[int32]int{1: 4000, 2: 500, 3: 700}
	var lanes []*apartLane
	for tenant := range int32(3) {
		a.heavy[tenant+1] = &heavy{got: got[tenant+1]}
		lanes = append(lanes, &apartLane{key: task.TenantKind{Tenant: tenant + 1}})
	}
	for range 40 {
		sum := 0
		for _, l := range lanes {
			l.rows = 0
		}
		deal(400, lanes, rates)
		a.even(lanes, rates)
		for _, l := range lanes {
			if l.rows < 1 {
				t.Fatalf("tenant %d gets %d rows", l.key.Tenant, l.rows)
			}
			got[l.key.Tenant] += l.rows
			a.backlog(l.key.Tenant, 0, l.rows, true)
			sum += l.rows
		}
		if sum < 390 || sum > 403 {
			t.Fatalf("%d rows were dealt; want 400", sum)
		}
	}
	for tenant, n := range got {
		share := 21_200 / 4 * weight(rates, tenant)
		if n < share*95/100 || n > share*105/100 {
			t.Errorf("tenant %d has got %d in all; its share is %d", tenant, n, share)
		}
	}
}

// TestTheFrontIsPublishedByCallsOfItsOwn: never together with tenants that are held
// apart for their backlog, and without a wait for their calls.
func TestTheFrontIsPublishedByCallsOfItsOwn(t *testing.T) {
	now := time.Unix(1000, 0)
	d := &Dispatcher{cfg: Config{}.withDefaults()}
	d.apart = newApart(nil, &Events{})
	d.apart.heavy[2], d.apart.sorted = &heavy{}, []int32{2}
	c := newPipeline(d, nil)
	queue := func(tenant int32, n int) {
		l := &topicQueue{tenant: tenant}
		for range n {
			l.queue = append(l.queue, &record{pub: task.Publication{Tenant: tenant}, size: 1})
		}
		c.topics[tenant] = l
	}
	queue(1, 3)
	queue(2, 8000)
	queue(3, 2)
	first, _ := c.pick(now)
	if first == nil || first.in != &c.foreground || len(first.records) != 5 {
		t.Fatalf("the first call has %+v; want the 5 records of the front", first)
	}
	second, _ := c.pick(now)
	if second == nil || second.in != &c.background || len(second.records) != d.cfg.CallRecords {
		t.Fatalf("the second call is not one of %d records of the backlog", d.cfg.CallRecords)
	}
	c.foreground.took = time.Second // because of the backlog
	queue(1, 1)
	if third, at := c.pick(now); third != nil || at.Sub(now) != besideDistance*d.cfg.PublishEvery {
		t.Errorf("the next call for the front comes after %v; want %v", at.Sub(now), besideDistance*d.cfg.PublishEvery)
	}
}
