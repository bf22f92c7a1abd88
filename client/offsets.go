package client

import "sort"

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
	seen      []seenOffset // from the first record that is not done
	next      int64        // the offset to commit when seen is empty
	committed int64        // the offset that was committed last; at first the initial one
	over      bool         // the generation has ended: the next owner reads on
}

type seenOffset struct {
	offset int64
	done   bool
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
	t.seen = append(t.seen, seenOffset{offset: offset})
	t.next = offset + 1
	return position{t, offset}
}

// done records that the record at offset need not be read again.
func (t *tracker) done(offset int64) {
	i := sort.Search(len(t.seen), func(i int) bool { return t.seen[i].offset >= offset })
	if i == len(t.seen) || t.seen[i].offset != offset {
		return
	}
	t.seen[i].done = true
	n := 0
	for n < len(t.seen) && t.seen[n].done {
		n++
	}
	t.seen = t.seen[n:]
}

// prefix returns the offset to commit: that of the first record that is not
// done. ok is false when it has not moved since the last commit.
func (t *tracker) prefix() (offset int64, ok bool) {
	offset = t.next
	if len(t.seen) > 0 {
		offset = t.seen[0].offset
	}
	return offset, offset > t.committed && offset >= 0
}
