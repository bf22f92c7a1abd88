package shards

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// TestABacklogIsClaimedAsARange: up to its quota, the oldest rows first, and row by row if more
// rows than that are due at one instant.
func TestABacklogIsClaimedAsARange(t *testing.T) {
	b := setup(t)
	for _, at := range []int{0, 1, 2, 3, 3, 3} {
		due := begin(b.now.Add(time.Duration(at) * time.Second))
		b.add(b.spec(task.OneShot, due))
		b.tenant++ // another one, in the same shards
		b.add(b.spec(task.OneShot, due))
		b.tenant--
	}
	b.advance(10 * time.Second)
	for i, step := range []struct {
		quota, low int
		form       task.ClaimForm
		want       []int // when they were due, in s
		more       bool
	}{
		{4, -1, task.RangeForm, []int{0, 1, 2}, true}, // with one of those due after 3 s, all would be taken
		{2, -1, task.CappedForm, []int{3, 3}, false},
		{2, 3, task.CappedForm, nil, false},
		{1, 2, task.RangeForm, []int{3}, true},
		{4, -1, task.CappedForm, nil, false},
	} {
		flow := b.flow("", step.quota)
		flow.Low = b.now.Add(time.Duration(step.low-10) * time.Second)
		c := b.claimReq(task.ClaimRequest{Form: task.RangeForm, Flows: []task.Flow{flow}})
		var got []int
		for _, p := range c.Publications {
			if p.Tenant != b.tenant {
				t.Errorf("step %d claimed a run of another tenant", i)
			}
			got = append(got, int(p.ScheduledAt.Sub(b.now)/time.Second)+10)
		}
		slices.Sort(got)
		if !slices.Equal(got, step.want) || c.More != step.more || c.Form != step.form || !slices.Equal(c.FlowRows, []int{len(step.want)}) {
			t.Errorf("step %d: claimed those due after %v s, more = %t, form %s, rows %v; want %+v", i, got, c.More, c.Form, c.FlowRows, step)
		}
	}
}

func TestARangeOfABacklogPassesOverLockedRows(t *testing.T) {
	b := setup(t)
	ids := b.add(b.spec(task.OneShot), b.spec(task.OneShot), b.spec(task.OneShot))
	tx, err := b.db.Pool(b.d).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM task WHERE id = $1 FOR UPDATE`, int64(ids[1])); err != nil {
		t.Fatal(err)
	}
	c := b.claimReq(task.ClaimRequest{Form: task.RangeForm, Flows: []task.Flow{b.flow("", 9)}})
	if len(c.Publications) != 2 || c.Form != task.CappedForm {
		t.Errorf("claimed %d of 2 rows that are not locked, form %s", len(c.Publications), c.Form)
	}
}
