package shards

import (
	"testing"

	"github.com/perceptor/perceptor/task"
)

func TestHintsReachAnOwnerUntilItReleasesItsShards(t *testing.T) {
	b := setup(t)
	want := task.Owner{Name: "b", HintAddr: "127.0.0.1:7074", HintKey: "\x00key\xff"}
	of := func(shard task.Shard) task.Owner {
		t.Helper()
		list, err := b.Owners(t.Context(), b.d)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			if i.Item == int(shard) {
				return i.Owner
			}
		}
		return task.Owner{}
	}
	shard := b.owned[0].Shard
	owned, err := b.Acquire(t.Context(), b.d, []task.Shard{shard}, want)
	if err != nil {
		t.Fatal(err)
	}
	if got := of(shard); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if err := b.Release(t.Context(), b.d, owned); err != nil {
		t.Fatal(err)
	}
	if got := of(shard); got != (task.Owner{}) {
		t.Errorf("got %+v after the release", got)
	}
}
