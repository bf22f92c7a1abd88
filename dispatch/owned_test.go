package dispatch

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/task"
)

func own(s task.Shard, epoch int64) task.Ownership {
	return task.Ownership{Shard: s, Epoch: epoch, Nonce: epoch * 100}
}

func publications(ids ...task.ID) []task.Publication {
	var list []task.Publication
	for _, i := range ids {
		list = append(list, task.Publication{Task: i, Seq: 1, Attempt: 1})
	}
	return list
}

func everything(task.Shard) bool { return true }

func TestPartIsTakenOffWhenItsLastRecordIsAcknowledged(t *testing.T) {
	var l ownedShards
	l.own(own(0, 1))
	l.own(own(1, 1))
	owned := l.claimable()
	records := l.enter(7, owned, nil, publications(id(0, 1), id(0, 2), id(1, 3)), reading{}, begun)
	if l.confirmed(records[0].part, begun) || len(l.takePublished(9, everything)) != 0 {
		t.Fatal("a part was complete with a pending record")
	}
	if !l.confirmed(records[1].part, begun) {
		t.Fatal("a part was not complete after its last record")
	}
	got := outboxParts(l.takePublished(9, everything))
	if diff := cmp.Diff([]task.OutboxPart{{Row: 7, Shards: []task.Shard{0}}}, got); diff != "" {
		t.Error(diff)
	}
	first, _ := l.pending(0)
	if second, _ := l.pending(1); first != 0 || second != 1 {
		t.Errorf("pending records of shards 0 and 1 = %d, %d, want 0, 1", first, second)
	}
}

func TestRecordsOfAFormerOwnershipAreNotEntered(t *testing.T) {
	var l ownedShards
	l.own(own(0, 1))
	former := l.claimable()
	l.drop(0)
	l.own(own(0, 2))
	if records := l.enter(7, former, nil, publications(id(0, 1)), reading{}, begun); len(records) != 0 {
		t.Error("records of a former ownership were entered, though the new ownership reads them from the outbox")
	}
	if l.current(former[0]) != nil {
		t.Error("a former ownership is current")
	}
}

func TestDroppedShardTakesNothingOff(t *testing.T) {
	var l ownedShards
	l.own(own(0, 1))
	l.own(own(1, 1))
	records := l.enter(7, l.claimable(), nil, publications(id(0, 1), id(1, 2)), reading{}, begun)
	l.confirmed(records[0].part, begun)
	l.drop(0)
	l.drop(1)
	l.own(own(1, 2))
	if l.confirmed(records[1].part, begun) {
		t.Error("a late acknowledgement of a former ownership counted")
	}
	if parts := l.takePublished(9, everything); len(parts) != 0 {
		t.Errorf("parts to acknowledge = %v, want none", outboxParts(parts))
	}
	l.putBack([]*part{records[0].part}, begun)
	l.removed([]*part{records[0].part})
	if len(l.published) != 0 {
		t.Error("a dropped part came back")
	}
}

func TestListedShardWithoutAnOpenRunIsCompleteAtOnce(t *testing.T) {
	var l ownedShards
	l.own(own(0, 1))
	l.own(own(1, 1))
	l.enter(7, l.claimable(), []task.Shard{0, 1}, publications(id(1, 1)), reading{}, begun)
	got := outboxParts(l.takePublished(9, everything))
	if diff := cmp.Diff([]task.OutboxPart{{Row: 7, Shards: []task.Shard{0}}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestTakeableRespectsItsLimitAndKeepsTheRest(t *testing.T) {
	var l ownedShards
	for s := range task.Shard(4) {
		l.own(own(s, 1))
	}
	for row := range int64(3) {
		l.enter(row+1, l.claimable(), []task.Shard{0, 1, 2, 3}, nil, reading{}, begun)
	}
	first := l.takePublished(5, func(s task.Shard) bool { return s != 3 })
	rest := l.takePublished(99, everything)
	if len(first) != 5 || len(rest) != 7 || !l.publishedAt.IsZero() {
		t.Errorf("took %d parts and then %d, want 5 and 7", len(first), len(rest))
	}
	if slices.ContainsFunc(first, func(p *part) bool { return p.shard == 3 }) {
		t.Error("an unwanted shard was taken")
	}
}

func TestBatchesOfOneRowAreJoined(t *testing.T) {
	got := byRow([]task.OutboxBatch{
		{Part: task.OutboxPart{Row: 1, Shards: []task.Shard{2}}, Publications: publications(id(2, 1))},
		{Part: task.OutboxPart{Row: 2, Shards: []task.Shard{2}}},
		{Part: task.OutboxPart{Row: 1, Shards: []task.Shard{1, 2}}, Publications: publications(id(2, 2))},
	})
	want := []task.OutboxBatch{
		{Part: task.OutboxPart{Row: 1, Shards: []task.Shard{1, 2}}, Publications: publications(id(2, 1), id(2, 2))},
		{Part: task.OutboxPart{Row: 2, Shards: []task.Shard{2}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRecordsOfADroppedShardAreNotGivenUp(t *testing.T) {
	var tr tracker
	tr.acquired([]task.Ownership{own(0, 1), own(1, 1)}, nil, 0, reading{}, begun)
	c := &task.Claim{Outbox: 7, Publications: publications(id(0, 1), id(1, 2), id(1, 3))}
	var all []unpublishable
	for _, r := range tr.committed(nil, tr.claimable(), c, reading{}, begun) {
		all = append(all, unpublishable{record: r})
	}
	tr.drop([]task.Ownership{own(0, 1)})
	group, gone, owned, parts := tr.forGiveUp(all[:2]) // only one of the two records of shard 1
	if len(group) != 1 || len(gone) != 1 || len(owned) != 1 || owned[0].Shard != 1 || len(parts) != 0 {
		t.Errorf("forGiveUp = %d records, ownerships %v, parts %v, want one record of shard 1 and no part", len(group), owned, outboxParts(parts))
	}
	if _, _, _, parts = tr.forGiveUp(all[1:]); len(parts) != 1 {
		t.Errorf("parts = %v, want that of shard 1, which has no other record", outboxParts(parts))
	}
}
