package task

import "time"

// CompactionKind says which packs a compaction reads.
type CompactionKind int

const (
	// CompactPromote opens the buckets that begin within the horizon, oldest first.
	CompactPromote CompactionKind = iota + 1
	// CompactLevel0 rewrites the packs of level 0, which group commits have added.
	CompactLevel0
	// CompactSplit rewrites buckets that are too coarse for their distance from now.
	CompactSplit
	// CompactMerge rewrites buckets with many small packs.
	CompactMerge
)

// String returns the kind in lower case.
func (k CompactionKind) String() string {
	switch k {
	case CompactPromote:
		return "promote"
	case CompactLevel0:
		return "compact"
	case CompactSplit:
		return "split"
	case CompactMerge:
		return "merge"
	}
	return "unknown"
}

// CompactionRequest asks for one compaction of one database's packs.
type CompactionRequest struct {
	Database int
	// Own is the ownership of the database's chores.
	Own  Ownership
	Kind CompactionKind
	// Before restricts CompactLevel0 to packs that were added before it. 0 means all.
	Before Instant
	// MaxTasks bounds the tasks that one transaction moves, but a single pack may hold
	// more. 0 means the limit of the store, which also bounds every other value.
	MaxTasks int
}

// Compaction is the result of a compaction or a demotion.
type Compaction struct {
	// Lost is true if the request's ownership is out of date. Then nothing was changed.
	Lost bool
	// Now is the database's clock when the packs were chosen. 0 means that there were none.
	Now Instant
	// Near and Packed count the tasks that were written to the near tier and into packs.
	Near, Packed int
	// Void counts the copies that tombstones had made void.
	Void int
	// Read and Written count packs; Bytes is the size of the packs that were read.
	Read, Written int
	Bytes         int64
	// Late is the largest lateness of the promoted tasks.
	Late time.Duration
	// More is true if another compaction can follow at once.
	More bool
	// Damaged are packs that were quarantined.
	Damaged []DamagedPack
}

// Add adds the result of another part of the same compaction.
func (c *Compaction) Add(m *Compaction) {
	c.Lost, c.More = c.Lost || m.Lost, c.More || m.More
	c.Near, c.Packed, c.Void = c.Near+m.Near, c.Packed+m.Packed, c.Void+m.Void
	c.Read, c.Written, c.Bytes = c.Read+m.Read, c.Written+m.Written, c.Bytes+m.Bytes
	c.Late = max(c.Late, m.Late)
}

// DamagedPack is a pack that could not be read and was quarantined.
type DamagedPack struct {
	// Pack is the id of the pack. For level 0 it is the negated first number.
	Pack int64
	// Tasks is the number of tasks that the pack claims to hold.
	Tasks  int
	Reason string
}

// FarStats says what the far tier of one database holds.
type FarStats struct {
	// Level0 and Level0Tasks count the packs of level 0 and their tasks; Packs and
	// PackedTasks count the other packs and their tasks. Void copies are included.
	Level0, Level0Tasks, Packs, PackedTasks int64
	// Damaged counts quarantined packs. The other figures do not include them.
	Damaged int64
	// Waiting counts the packs, of those that the first four figures count, in which a
	// compaction has found a version that this program cannot read.
	Waiting int64
	// Oldest is the age of the oldest pack of level 0. 0 means that there is none.
	Oldest time.Duration
	// Behind is the time since the beginning of the oldest bucket. 0 means that no
	// bucket has begun.
	Behind time.Duration
}

// ChoresShard returns the number that stands for the chores of a database in calls
// that expect a shard.
func ChoresShard(database int) Shard { return Shard(Shards + database) }
