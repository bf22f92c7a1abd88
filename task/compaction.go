package task

import "time"

// CompactionKind says which packs a compaction takes.
type CompactionKind int

const (
	// CompactPromote opens the buckets that begin within the horizon, oldest first.
	CompactPromote CompactionKind = iota + 1
	// CompactLevel0 takes the packs of level 0, which group commits have added.
	CompactLevel0
	// CompactSplit takes buckets that are too coarse for their distance from now.
	CompactSplit
	// CompactMerge takes buckets with many small packs.
	CompactMerge
)

// String returns the kind in small letters.
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
	// Before bounds CompactLevel0: only packs that were added before it. 0: all.
	Before Instant
	// MaxTasks bounds the number of tasks that one transaction moves; a single pack
	// may have more. 0: the bound of the store, which no value exceeds.
	MaxTasks int
}

// Compaction is the result of a compaction or a demotion.
type Compaction struct {
	// Lost: the ownership is not that of the request any more. Nothing was changed.
	Lost bool
	// Now is the database's clock when the packs were chosen; 0: there were none.
	Now Instant
	// Near and Packed count the tasks that were written to the near tier and into
	// packs.
	Near, Packed int
	// Void counts copies that a tombstone had made void.
	Void int
	// Read and Written count packs; Bytes is the size of the packs that were read.
	Read, Written int
	Bytes         int64
	// Late is the largest lateness of the promoted tasks.
	Late time.Duration
	// More: there is more to compact at once.
	More bool
	// Damaged are packs that were quarantined.
	Damaged []DamagedPack
}

// Add adds what another part of the same compaction has moved.
func (c *Compaction) Add(m *Compaction) {
	c.Lost, c.More = c.Lost || m.Lost, c.More || m.More
	c.Near, c.Packed, c.Void = c.Near+m.Near, c.Packed+m.Packed, c.Void+m.Void
	c.Read, c.Written, c.Bytes = c.Read+m.Read, c.Written+m.Written, c.Bytes+m.Bytes
	c.Late = max(c.Late, m.Late)
}

// DamagedPack is a pack that could not be read and was quarantined.
type DamagedPack struct {
	// Pack is the id of the pack; for level 0 it is minus the first number.
	Pack int64
	// Tasks is the number of tasks that the pack claims to hold.
	Tasks  int
	Reason string
}

// FarStats says what the far tier of one database holds.
type FarStats struct {
	// Arrivals and Packs count packs; ArrivedTasks and PackedTasks the tasks in
	// them, those with a void copy included.
	Arrivals, ArrivedTasks, Packs, PackedTasks int64
	// Damaged counts packs that were set aside; they are in no other figure.
	Damaged int64
	// Oldest is the age of the oldest arrival; 0: there is none.
	Oldest time.Duration
	// Behind is how far the beginning of the oldest bucket lies behind now; 0:
	// it has not begun.
	Behind time.Duration
}

// ChoresShard returns the number of the item that stands for the chores of a
// database, where stores ask for a shard.
func ChoresShard(database int) Shard { return Shard(Shards + database) }
