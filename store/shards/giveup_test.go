package shards

import (
	"slices"
	"testing"

	"github.com/perceptor/perceptor/task"
)

func TestGivingUpReturnsTheLostShardsAndDoesNothing(t *testing.T) {
	b := setup(t)
	ids := b.add(b.spec(task.OneShot))
	c := b.claim(task.RangeForm)
	other := slices.IndexFunc(b.owned, func(o task.Ownership) bool { return o.Shard != ids[0].Shard() })
	lost := []task.Shard{b.owned[other].Shard}
	if _, err := b.Acquire(t.Context(), b.d, lost, task.Owner{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	parts := []task.OutboxPart{{Row: c.Outbox, Shards: []task.Shard{ids[0].Shard()}}}
	got, err := b.GiveUp(t.Context(), b.d, b.owned, c.Publications, task.Unpublishable, "too large", parts)
	if err != nil || !slices.Equal(got, lost) {
		t.Errorf("GiveUp returned %v, %v, want the lost shards %v", got, err, lost)
	}
	if n := b.counts(); n.Died != 0 {
		t.Errorf("counts = %+v, want no dead run", n)
	}
	if o, err := b.OutboxStats(t.Context(), b.d); err != nil || o.Rows != 1 {
		t.Errorf("%d outbox rows, %v, want 1", o.Rows, err)
	}
}
