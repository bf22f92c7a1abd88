package client

import "sort"

// tracker knows which records of one partition are done, for as long as one
// generation of the consumer group owns it. Only the contiguous prefix may be
// committed: Kafka keeps one offset per partition, so committing the highest
// one would skip whatever below it is still being worked on.
//
// Offsets come in ascending order, but not without gaps. Not safe for
// concurrent use.
type tracker struct {
	partition int
	seen      []seenOffset // from the first one not done
	next      int64        // the offset to commit when seen is empty
	committed int64        // the last offset that was taken, or the initial one
	over      bool         // the generation has ended: somebody else reads on
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

// lost reports whether the partition has been taken away since.
func (p position) lost() bool { return p.tracker.over }

// newTracker returns the tracker of a partition that is read from offset on;
// a negative offset is not known yet.
func newTracker(partition int, offset int64) *tracker {
	return &tracker{partition: partition, next: offset, committed: offset}
}

// add notes a record that was read.
func (t *tracker) add(offset int64) position {
	t.seen = append(t.seen, seenOffset{offset: offset})
	t.next = offset + 1
	return position{t, offset}
}

// done notes that the record at offset need not be read again.
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

// prefix returns the offset to commit: that of the first record which is not
// done. ok is false when it has not moved since the last commit.
func (t *tracker) prefix() (offset int64, ok bool) {
	offset = t.next
	if len(t.seen) > 0 {
		offset = t.seen[0].offset
	}
	return offset, offset > t.committed && offset >= 0
}
