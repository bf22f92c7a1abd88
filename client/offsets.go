package client

import "slices"

// tracker knows which records of one partition are done, during one generation of
// the consumer group.
//
// Kafka keeps one offset per partition: committing an offset marks all records
// below it as done. Therefore only the contiguous prefix of done records may be
// committed. Committing the highest done offset would skip lower records that are
// still being worked on.
//
// Offsets arrive in ascending order, possibly with gaps. A tracker is not safe for
// concurrent use; the engine's lock guards it.
type tracker struct {
	partition int
	open      []int64 // the offsets of records that are not done
	next      int64   // the offset to commit when all are done
	committed int64   // the offset that was committed last; at first the initial one
	over      bool    // the generation has ended: the next owner reads on
}

// position is a record's place on a partition.
type position struct {
	tracker *tracker
	offset  int64
}

// lost reports whether the partition was reassigned after the record was read.
func (p position) lost() bool { return p.tracker.over }

// newTracker returns the tracker of a partition that is read from offset on. A
// negative offset means that it is not known yet.
func newTracker(partition int, offset int64) *tracker {
	return &tracker{partition: partition, next: offset, committed: offset}
}

// add records that the record at offset was read.
func (t *tracker) add(offset int64) position {
	t.open = append(t.open, offset)
	t.next = offset + 1
	return position{t, offset}
}

// done records that the record at offset need not be read again.
func (t *tracker) done(offset int64) {
	i, found := slices.BinarySearch(t.open, offset)
	switch {
	case !found:
	case i < len(t.open)/2: // move the shorter part
		copy(t.open[1:i+1], t.open[:i])
		t.open = t.open[1:]
	default:
		t.open = slices.Delete(t.open, i, i+1)
	}
}

// prefix returns the offset to commit: that of the first record that is not
// done. ok is false when it has not moved since the last commit.
func (t *tracker) prefix() (offset int64, ok bool) {
	offset = t.next
	if len(t.open) > 0 {
		offset = t.open[0]
	}
	return offset, offset > t.committed && offset >= 0
}
